//! A DSN's text as keys with values: `key=value` words or a `postgresql://` URL, by libpq's rules.
//!
//! A problem never quotes the text. What stands where a key should stand may be a piece of a password with a blank in
//! it, or of a URL with an `@` that was not encoded: such a key is told by its place.

/// One key with its value.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) value: String,
    /// How a problem calls the key: by its name only where that is no piece of a secret.
    pub(super) called: String,
}

/// Reads a text. Of a key that is given twice, the caller takes the last.
pub(super) fn pairs(text: &str) -> Result<Vec<Pair>, String> {
    if text.contains('\0') {
        return Err("it holds a zero byte".into());
    }
    match text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://")) {
        Some(rest) => url(rest),
        None => words(text),
    }
}

/// `key = value`, `key='va\'lue'`, separated by blanks; a backslash takes the next character as it is.
fn words(text: &str) -> Result<Vec<Pair>, String> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut secret_before = false;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let number = pairs.len() + 1;
        let end = rest.find(|c: char| c == '=' || c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let Some(after) = after.trim_start().strip_prefix('=') else {
            return Err(format!(
                "word number {number} is followed by no `=` (a value with blanks needs quotes: 'a b')"
            ));
        };
        let (value, after) = value(after.trim_start()).ok_or("a quote is not closed")?;
        let called = if secret_before || !looks_like_a_key(key) {
            format!("key number {number} (a password with blanks needs quotes)")
        } else {
            format!("`{key}`")
        };
        // Also one that a quote too many has made a part of a value, or that a URL of another kind holds.
        secret_before |= !looks_like_a_key(key) || key.contains("password") || value.contains("password");
        pairs.push(Pair { key: key.to_owned(), value, called });
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// The value at the beginning of a text, and what follows it. `None` if a quote is not closed.
fn value(text: &str) -> Option<(String, &str)> {
    let quoted = text.starts_with('\'');
    let mut characters = text.char_indices().skip(usize::from(quoted));
    let mut value = String::new();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' if quoted => return Some((value, text.get(at + 1..)?)),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            blank if !quoted && blank.is_ascii_whitespace() => return Some((value, text.get(at..)?)),
            plain => value.push(plain),
        }
    }
    (!quoted).then_some((value, ""))
}

/// `[user[:password]@][host[:port],…][/database][?key=value&…]`, percent-encoded.
fn url(rest: &str) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::new();
    let mut add = |key: &str, value: String| {
        pairs.push(Pair { key: key.to_owned(), value, called: format!("`{key}`") });
    };
    // As libpq looks for it: the first `@`, unless a `/` comes before it.
    let credentials = rest.find(['@', '/']).filter(|at| rest.get(*at..).is_some_and(|rest| rest.starts_with('@')));
    let (credentials, rest) = match credentials {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..).unwrap_or_default()),
        None => ("", rest),
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    for (key, text) in [("user", user), ("password", password)] {
        if !text.is_empty() {
            add(key, decoded(text).map_err(|problem| format!("its {key} {problem}"))?);
        }
    }
    let (hosts, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (hosts, ports) = hosts_and_ports(hosts)?;
    for (key, text) in [("host", hosts), ("port", ports)] {
        if !text.is_empty() {
            add(key, text);
        }
    }
    // An `@` that stands behind the hosts was meant to stand before them.
    let odd = rest.contains('@');
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let database = path.strip_prefix('/').unwrap_or(path);
    if database.contains('@') {
        return Err("an `@` stands behind its hosts: `@`, `/` and `?` in a password must be percent-encoded".into());
    }
    if !database.is_empty() {
        add("dbname", decoded(database).map_err(|problem| format!("its database {problem}"))?);
    }
    for (number, parameter) in query.split('&').enumerate().filter(|_| !query.is_empty()) {
        pairs.push(parameter_of(parameter, number + 1, odd)?);
    }
    Ok(pairs)
}

/// The lists of hosts and ports, each separated by commas and empty if it says nothing.
fn hosts_and_ports(text: &str) -> Result<(String, String), String> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for part in text.split(',') {
        let (host, port) = match part.strip_prefix('[') {
            Some(address) => {
                let (address, after) = address.split_once(']').ok_or("the `[` of a host is not closed")?;
                let port = match after.strip_prefix(':') {
                    Some(port) => port,
                    None if after.is_empty() => "",
                    None => return Err("the `]` of a host is followed by something else than a port".into()),
                };
                (address.to_owned(), port)
            }
            None => {
                let (host, port) = part.split_once(':').unwrap_or((part, ""));
                (decoded(host).map_err(|problem| format!("a host {problem}"))?, port)
            }
        };
        hosts.push(host);
        ports.push(decoded(port).map_err(|problem| format!("a port {problem}"))?);
    }
    let listed = |items: Vec<String>| if items.iter().all(String::is_empty) { String::new() } else { items.join(",") };
    Ok((listed(hosts), listed(ports)))
}

fn parameter_of(text: &str, number: usize, odd: bool) -> Result<Pair, String> {
    let what = || format!("parameter number {number} of the URL");
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{} has no `=`", what()))?;
    if value.contains('=') {
        return Err(format!("{} has more than one `=`: write %3D in a value", what()));
    }
    let key = decoded(key).map_err(|problem| format!("{} {problem}", what()))?;
    let value = decoded(value).map_err(|problem| format!("{} {problem}", what()))?;
    let called = if odd || !looks_like_a_key(&key) {
        format!("{} (an `@`, `/` or `?` in a password must be percent-encoded)", what())
    } else {
        format!("`{key}`")
    };
    // What JDBC writes, and libpq takes.
    let (key, value) =
        if key == "ssl" && value == "true" { ("sslmode".into(), "require".into()) } else { (key, value) };
    Ok(Pair { key, value, called })
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.next().zip(rest.next()).and_then(|(high, low)| Some((digit(high)?, digit(low)?)));
        match digits {
            None => return Err("has a `%` without two hexadecimal digits: write %25 for a percent sign"),
            Some((0, 0)) => return Err("has a zero byte"),
            Some((high, low)) => bytes.push(high << 4 | low),
        }
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8")
}

fn digit(character: u8) -> Option<u8> {
    char::from(character).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn looks_like_a_key(text: &str) -> bool {
    (1..=40).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, String> {
        Ok(pairs(text)?.into_iter().map(|pair| (pair.key, pair.value)).collect())
    }

    #[test]
    fn words_are_read_as_libpq_does() {
        for (text, expected) in [
            ("", &[][..]),
            ("  \n ", &[]),
            ("host=a port=1", &[("host", "a"), ("port", "1")]),
            ("\thost = a\n port\t=\r\n1 ", &[("host", "a"), ("port", "1")]),
            ("password='a b\\'c\\\\d' user=u", &[("password", "a b'c\\d"), ("user", "u")]),
            ("password=a\\ b\\'c", &[("password", "a b'c")]),
            ("password='' user=u", &[("password", ""), ("user", "u")]),
            ("password='a'user=u", &[("password", "a"), ("user", "u")]),
            ("password=a\\", &[("password", "a")]),
            ("password=a=b", &[("password", "a=b")]),
            ("password=a'b", &[("password", "a'b")]),
            // libpq skips blanks behind the sign, too.
            ("host= port=1", &[("host", "port=1")]),
            ("host=", &[("host", "")]),
            ("user=ä password='ö ü'", &[("user", "ä"), ("password", "ö ü")]),
        ] {
            let expected: Vec<_> = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            assert_eq!(read(text), Ok(expected), "{text:?}");
        }
        for bad in ["host", "host=a port", "=", "password='a", "password='a\\'", "host=a\0"] {
            let read = read(bad);
            assert!(read.is_err() || bad == "=", "{bad:?}: {read:?}");
        }
    }

    #[test]
    fn urls_are_read_as_libpq_does() {
        for (text, expected) in [
            ("postgresql://", &[][..]),
            ("postgres://h", &[("host", "h")]),
            ("postgresql://h:5/d", &[("host", "h"), ("port", "5"), ("dbname", "d")]),
            ("postgresql://u@h", &[("user", "u"), ("host", "h")]),
            (
                "postgresql://u:p%40%2F%3a%25@h/d",
                &[("user", "u"), ("password", "p@/:%"), ("host", "h"), ("dbname", "d")],
            ),
            ("postgresql://u:p?q#r@h", &[("user", "u"), ("password", "p?q#r"), ("host", "h")]),
            ("postgresql://a:1,b,c:3/d", &[("host", "a,b,c"), ("port", "1,,3"), ("dbname", "d")]),
            ("postgresql://a,b", &[("host", "a,b")]),
            ("postgresql://[::1]:5,[fe80::2]/", &[("host", "::1,fe80::2"), ("port", "5,")]),
            ("postgresql://%2Fvar%2Frun/d", &[("host", "/var/run"), ("dbname", "d")]),
            ("postgresql:///d?host=/tmp&port=7", &[("dbname", "d"), ("host", "/tmp"), ("port", "7")]),
            ("postgresql://:6/", &[("port", "6")]),
            ("postgresql://h?sslmode=verify-full", &[("host", "h"), ("sslmode", "verify-full")]),
            ("postgresql://h/?ssl=true", &[("host", "h"), ("sslmode", "require")]),
            ("postgresql://h/d?options=-c%20a%3Db", &[("host", "h"), ("dbname", "d"), ("options", "-c a=b")]),
            ("postgresql://h/?", &[("host", "h")]),
            ("postgresql://%C3%A4@h", &[("user", "ä"), ("host", "h")]),
        ] {
            let expected: Vec<_> = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            assert_eq!(read(text), Ok(expected), "{text:?}");
        }
        for bad in [
            "postgresql://[::1",
            "postgresql://[::1]x",
            "postgresql://u:p/q@h/d",
            "postgresql://h/%",
            "postgresql://h/%4",
            "postgresql://h/%zz",
            "postgresql://h/%+1",
            "postgresql://h/%00",
            "postgresql://h/%ff",
            "postgresql://h?a",
            "postgresql://h?a=b=c",
            "postgresql://h?a=b&",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_may_be_a_piece_of_a_secret_is_not_named() {
        let called =
            |text: &str| pairs(text).map(|pairs| pairs.last().map(|pair| pair.called.clone()).unwrap_or_default());
        assert_eq!(called("host=a hots=b"), Ok("`hots`".into()));
        assert_eq!(called("postgresql://u:p@h/d?hots=b"), Ok("`hots`".into()));
        for text in [
            "password=correct horse=1",
            "host=a password=p\thorse=1",
            "postgresql://u:p/a?horse=1@h",
            "postgresql://u:p@h?horse=1@h",
            "jdbc:postgresql://u:horse@h?a=b",
        ] {
            let called = called(text).unwrap_or_default();
            assert!(!called.is_empty() && !called.contains("horse"), "{text}: {called}");
        }
    }
}
