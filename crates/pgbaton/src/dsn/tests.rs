//! DSNs with an environment of their own: the process's is not touched.

use std::os::unix::fs::PermissionsExt;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::keys::{KEYS, Use};
use super::*;
use crate::tls::{Mode, Root};

/// Reads a DSN where these variables are set.
fn read_in(text: &str, variables: &[(&str, &str)]) -> Result<Dsn, Error> {
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
    Dsn::read(text, &Environment { variable: &variable, account: &|| Some("me".into()) })
}

fn read(text: &str) -> Dsn {
    read_in(text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn problem(text: &str, variables: &[(&str, &str)]) -> String {
    match read_in(text, variables) {
        Ok(_) => panic!("{text} is accepted"),
        Err(error) => {
            assert_eq!(error.code(), "config.invalid");
            error.to_string()
        }
    }
}

fn hosts(text: &str) -> Vec<String> {
    read(text).hosts.iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_not_said_has_a_default() {
    let dsn = read("host=db");
    assert_eq!((dsn.user.as_str(), dsn.database.as_str(), dsn.application_name.as_str()), ("me", "me", "pgbaton"));
    assert_eq!((dsn.target, dsn.tls.mode, dsn.shuffled), (Target::ReadWrite, Mode::Prefer, false));
    assert_eq!((dsn.hosts[0].port, dsn.hosts[0].password.as_deref(), dsn.options.as_deref()), (5432, None, None));
    assert!(dsn.tls.root.is_none() && dsn.tls.client.is_none() && dsn.tls.sni && !dsn.tls.direct);
    let dsn = read("host=db user=u fallback_application_name=f options='-c a=b' target_session_attrs=any");
    assert_eq!((dsn.user.as_str(), dsn.database.as_str(), dsn.application_name.as_str()), ("u", "u", "f"));
    assert_eq!((dsn.options.as_deref(), dsn.target), (Some("-c a=b"), Target::Any));
}

#[test]
fn hosts_addresses_and_ports_go_in_pairs() {
    for (text, expected) in [
        ("host=a,b port=1,2", &["a:1", "b:2"][..]),
        ("host=a,b port=7", &["a:7", "b:7"]),
        ("host=a,b port=,2", &["a:5432", "b:2"]),
        ("postgresql://a:1,[::2]:3,/d", &[]),
        ("postgresql://a:1,[::2]:3/d", &["a:1", "[::2]:3"]),
        ("postgresql://a,b/d?port=9", &["a:9", "b:9"]),
        ("host=/tmp,b port=5,6", &["/tmp/.s.PGSQL.5", "b:6"]),
        ("hostaddr=10.0.0.1,::2", &["10.0.0.1:5432", "[::2]:5432"]),
        ("host=a,b hostaddr=10.0.0.1,", &["a:5432", "b:5432"]),
        ("host=fe80::1%eth0", &["[fe80::1%eth0]:5432"]),
    ] {
        if expected.is_empty() {
            assert!(problem(text, &[]).contains("host number 3"), "{text}");
        } else {
            assert_eq!(hosts(text), expected, "{text}");
        }
    }
    for (text, word) in [
        ("", "PGHOST"),
        ("host=a,b port=1,2,3", "`port`"),
        ("host=a,b hostaddr=10.0.0.1", "`hostaddr`"),
        ("host=a port=x", "`port`"),
        ("host=a port=0", "`port`"),
        ("host=a port=65536", "`port`"),
        ("hostaddr=a", "`hostaddr`"),
        ("host=@a", "abstract"),
        ("host=a,,b", "host number 2"),
        ("host='a b'", "`host`"),
    ] {
        assert!(problem(text, &[]).contains(word), "{text}: {}", problem(text, &[]));
    }
}

#[test]
fn the_dsn_beats_the_environment() {
    let variables = [
        ("PGHOST", "there"),
        ("PGPORT", "7"),
        ("PGDATABASE", "db"),
        ("PGUSER", "env"),
        ("PGPASSWORD", "secret"),
        ("PGAPPNAME", "app"),
        ("PGSSLMODE", "require"),
        ("PGSSLNEGOTIATION", "direct"),
        ("PGCHANNELBINDING", "require"),
        ("PGTARGETSESSIONATTRS", "primary"),
        ("PGLOADBALANCEHOSTS", "random"),
        ("PGOPTIONS", "-c x=y"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGSSLSNI", "0"),
    ];
    let dsn = read_in("", &variables).unwrap();
    assert_eq!(dsn.hosts[0].to_string(), "there:7");
    assert_eq!((dsn.user.as_str(), dsn.database.as_str(), dsn.application_name.as_str()), ("env", "db", "app"));
    assert_eq!((dsn.hosts[0].password.as_deref(), dsn.options.as_deref()), (Some("secret"), Some("-c x=y")));
    assert_eq!((dsn.tls.mode, dsn.tls.direct, dsn.tls.sni), (Mode::Require, true, false));
    assert_eq!((dsn.channel_binding, dsn.target, dsn.shuffled), (ChannelBinding::Require, Target::Primary, true));
    let said = "postgresql://u:p@here:8/d?application_name=a&sslmode=disable&sslnegotiation=postgres&options=&\
                channel_binding=disable&target_session_attrs=any&load_balance_hosts=disable&sslsni=1";
    let dsn = read_in(said, &variables).unwrap();
    assert_eq!(dsn.hosts[0].to_string(), "here:8");
    assert_eq!((dsn.user.as_str(), dsn.database.as_str(), dsn.application_name.as_str()), ("u", "d", "a"));
    assert_eq!((dsn.hosts[0].password.as_deref(), dsn.options.as_deref()), (Some("p"), None));
    assert_eq!((dsn.tls.mode, dsn.tls.direct, dsn.tls.sni), (Mode::Disable, false, true));
    assert_eq!((dsn.channel_binding, dsn.target, dsn.shuffled), (ChannelBinding::Disable, Target::Any, false));
    // An empty variable says nothing; the oldest of them still counts, and only where no other does.
    assert_eq!(read_in("host=a", &[("PGSSLMODE", ""), ("PGREQUIRESSL", "1")]).unwrap().tls.mode, Mode::Require);
    assert_eq!(read_in("host=a sslmode=disable", &[("PGREQUIRESSL", "1")]).unwrap().tls.mode, Mode::Disable);
}

#[test]
fn what_cannot_be_honoured_is_refused_by_its_name() {
    for key in KEYS {
        let Use::Only(values, _) = key.usage else { continue };
        let found = problem(&format!("host=a {}=hunter2", key.name), &[]);
        assert!(found.contains(&format!("`{}`", key.name)) && !found.contains("hunter2"), "{found}");
        if let Some(variable) = key.variable {
            let found = problem("host=a", &[(variable, "hunter2")]);
            assert!(found.contains(variable) && !found.contains("hunter2"), "{found}");
        }
        for value in values {
            read(&format!("host=a {}={value}", key.name));
        }
        read(&format!("host=a {}=''", key.name));
    }
    for (text, word) in [
        ("host=a hots=b", "`hots` is unknown"),
        ("host=a sslmode=allow", "prefer"),
        ("host=a sslmode=''", "`sslmode`"),
        ("host=a sslmode=verify_full", "`sslmode`"),
        ("host=a sslmode=prefer sslnegotiation=direct", "`sslnegotiation=direct`"),
        ("host=a sslmode=require sslrootcert=system", "`sslrootcert=system`"),
        ("host=a_b_/c sslmode=disable", "`host`"),
        ("host=a..b sslmode=verify-full sslrootcert=system", "`host`"),
        ("host=a target_session_attrs=standby", "`target_session_attrs`"),
        ("host=a target_session_attrs=primry", "`target_session_attrs`"),
        ("host=a sslcert=/x", "`sslkey`"),
        ("host=a sslkey=/x", "`sslcert`"),
        ("host=a sslcertmode=require", "`sslcertmode`"),
        ("host=a ssl_max_protocol_version=TLSv1.1", "`ssl_max_protocol_version`"),
        ("host=a ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2", "above"),
    ] {
        let found = problem(text, &[]);
        assert!(found.contains(word), "{text}: {found}");
    }
    let all = problem("hots=a sslcrl=/x sslmode=full", &[("PGSERVICE", "s")]);
    for word in ["`hots`", "`sslcrl`", "`sslmode`", "PGSERVICE", "PGHOST"] {
        assert!(all.contains(word), "{word} is missing in {all}");
    }
}

#[test]
fn verification_is_as_the_mode_says_or_stricter() {
    let folder = std::env::temp_dir().join(format!("pgbaton-dsn-{}", std::process::id()));
    let home = folder.to_str().unwrap().to_owned();
    let mode = |text: &str| read_in(text, &[("HOME", &home)]).map(|dsn| (dsn.tls.mode, dsn.tls.root)).unwrap();
    assert_eq!(mode("host=a sslrootcert=system"), (Mode::VerifyFull, Some(Root::System)));
    assert_eq!(mode("host=a sslmode=verify-ca sslrootcert=/r"), (Mode::VerifyCa, Some(Root::File("/r".into()))));
    // There is no TLS on a socket, whatever the mode.
    assert_eq!(mode("host=/tmp sslmode=verify-full"), (Mode::Disable, None));
    for text in ["host=a sslmode=verify-ca", "host=a sslmode=verify-full"] {
        let error = read(text).tls.client_config().unwrap_err();
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    std::fs::create_dir_all(folder.join(".postgresql")).unwrap();
    std::fs::write(folder.join(".postgresql/root.crt"), "").unwrap();
    let root = Some(Root::File(folder.join(".postgresql/root.crt")));
    assert_eq!(mode("host=a sslmode=require"), (Mode::Require, root));
    std::fs::write(folder.join(".postgresql/root.crl"), "").unwrap();
    assert!(problem("host=a", &[("HOME", &home)]).contains("root.crl"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_unverified_connection_is_warned_of() {
    for (text, warned) in [
        ("host=db", true),
        ("host=db sslmode=require", true),
        ("host=localhost,db", true),
        ("host=x hostaddr=10.0.0.1", true),
        ("host=db sslmode=require sslrootcert=/r", false),
        ("host=db sslmode=verify-full sslrootcert=/r", false),
        ("host=db sslmode=disable", false),
        ("host=localhost", false),
        ("host=127.0.0.1,::1,/tmp", false),
        ("host=x hostaddr=127.0.0.1", false),
    ] {
        let warnings = read(text).warnings;
        assert_eq!(warnings.iter().any(|warning| warning.contains("verify-full")), warned, "{text}: {warnings:?}");
    }
}

#[test]
fn the_password_file_gives_each_host_its_password() {
    let path = std::env::temp_dir().join(format!("pgbaton-dsn-pgpass-{}", std::process::id()));
    std::fs::write(&path, "a:*:d:u:first\nb:6:d:u:second\nlocalhost:*:*:u:third\n/sock:*:*:*:fourth\n").unwrap();
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    let file = path.to_str().unwrap();
    let found = |text: &str, variables: &[(&str, &str)]| -> Vec<Option<String>> {
        read_in(text, variables).unwrap().hosts.into_iter().map(|host| host.password).collect()
    };
    let of = |words: &[&str]| -> Vec<Option<String>> {
        words.iter().map(|w| Some(w.to_string()).filter(|w| w != "-")).collect()
    };
    let hosts = "host=a,b,b,/tmp,/sock,c port=5,6,7,8,9,9 user=u dbname=d";
    assert_eq!(found(hosts, &[("PGPASSFILE", file)]), of(&["first", "second", "-", "third", "fourth", "-"]));
    assert_eq!(found(&format!("host=a user=u dbname=d passfile={file}"), &[("PGPASSFILE", "/x")]), of(&["first"]));
    assert_eq!(found("host=a user=u dbname=d password=p", &[("PGPASSFILE", file)]), of(&["p"]));
    assert_eq!(found("host=a user=u dbname=d", &[("PGPASSFILE", file), ("PGPASSWORD", "q")]), of(&["q"]));
    assert_eq!(found("host=a user=u dbname=other", &[("PGPASSFILE", file)]), of(&["-"]));
    mode(0o644);
    let dsn = read_in("host=a user=u dbname=d sslmode=disable", &[("PGPASSFILE", file)]).unwrap();
    assert!(dsn.hosts[0].password.is_none() && dsn.warnings[0].contains("0600"), "{:?}", dsn.warnings);
    std::fs::remove_file(&path).unwrap();
    let dsn = read_in("host=a sslmode=disable", &[("PGPASSFILE", file)]).unwrap();
    assert_eq!(dsn.warnings.len(), 1, "{:?}", dsn.warnings);
    assert!(read_in("host=a sslmode=disable", &[("HOME", "/nowhere")]).unwrap().warnings.is_empty());
}

/// Passwords of any characters, and nobody has quoted or encoded them.
#[test]
fn no_text_makes_it_panic_and_no_secret_is_told() {
    let seed = rand::random::<u64>();
    let mut random = StdRng::seed_from_u64(seed);
    let pieces =
        ["hunter", " ", "'", "\\", "@", "/", "?", "=", "&", "%", "%4", ":", "#", ",", "[", "]", "\n", "ä", "\0"];
    let rest = ["host=h", "hots=x", "sslmode=x", "port=x", "sslcrl=x", "user='", "=", " ", "sslmode", "hostaddr=1"];
    for _ in 0..1_500 {
        let password: String =
            (0..random.random_range(1..8)).filter_map(|_| pieces.choose(&mut random)).copied().collect();
        let (one, two) = (rest.choose(&mut random).unwrap(), rest.choose(&mut random).unwrap());
        for text in [
            format!("{one} password={password} {two}"),
            format!("{one} password='{password}' {two}"),
            format!("host=h user=u password={password}"),
            format!("postgresql://u:{password}@h/d?{one}&{two}"),
            format!("postgres://u:{password}@h:5"),
            format!("jdbc:postgresql://u:{password}@h/d?a=b"),
        ] {
            let told = match read_in(&text, &[]) {
                Ok(dsn) => dsn.warnings.join(" "),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!told.contains("hunter"), "seed {seed}: {text:?}: {told}");
        }
        let noise: String =
            (0..random.random_range(0..30)).filter_map(|_| pieces.choose(&mut random)).copied().collect();
        for text in [noise.clone(), format!("{noise}{one}"), format!("postgresql://{noise}{two}")] {
            let _ = read_in(&text, &[]);
        }
    }
}

/// Found by the test above: a blank and a `=` in the password of a URL that is none of PostgreSQL's.
#[test]
fn what_follows_something_that_is_no_key_is_not_named() {
    let told = read_in("jdbc:postgresql://u:=:,# hunter=@h/d?a=b", &[]).err().unwrap().to_string();
    assert!(!told.contains("hunter"), "{told}");
}
