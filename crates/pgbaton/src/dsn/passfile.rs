//! `.pgpass`: one line for each server, `host:port:database:user:password`, where `*` stands for anything.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::plain_file;

/// A password file's lines. Holds secrets: it cannot be printed.
#[derive(Default)]
pub(super) struct Passfile {
    lines: Vec<Line>,
}

struct Line {
    /// Host, port, database, user; `None` is anything.
    wanted: [Option<String>; 4],
    password: String,
}

/// Why a password file is not used.
pub(super) enum Unused {
    Missing,
    /// With what to tell its owner.
    Unfit(String),
}

impl Passfile {
    /// Reads a file. One that others than its owner may read is not used, as in libpq.
    pub(super) fn read(path: &Path) -> Result<Self, Unused> {
        let (metadata, bytes) = plain_file::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Unused::Missing,
            _ => Unused::Unfit(error.to_string()),
        })?;
        if metadata.mode() & 0o077 != 0 {
            return Err(Unused::Unfit("others than its owner may use it; make its permissions 0600".into()));
        }
        let text = String::from_utf8(bytes).map_err(|_| Unused::Unfit("it is not UTF-8".into()))?;
        Ok(Self::parse(&text))
    }

    /// Lines that are comments or have too few fields are passed over.
    fn parse(text: &str) -> Self {
        Self { lines: text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect() }
    }

    /// The password of the first line that fits.
    pub(super) fn password(&self, wanted: [&str; 4]) -> Option<&str> {
        let fits = |line: &&Line| {
            line.wanted.iter().zip(wanted).all(|(field, wanted)| field.as_deref().is_none_or(|field| field == wanted))
        };
        self.lines.iter().find(fits).map(|line| line.password.as_str()).filter(|password| !password.is_empty())
    }
}

fn line(text: &str) -> Option<Line> {
    let mut rest = text.chars();
    let mut wanted = || {
        let field = field(&mut rest);
        field.ended_by_colon.then_some((!field.anything).then_some(field.text))
    };
    let wanted = [wanted()?, wanted()?, wanted()?, wanted()?];
    Some(Line { wanted, password: field(&mut rest).text })
}

struct Field {
    text: String,
    /// A bare `*`.
    anything: bool,
    ended_by_colon: bool,
}

/// The characters up to the next colon or the end. A backslash takes the next one as it is; at the end it is one itself.
fn field(rest: &mut std::str::Chars<'_>) -> Field {
    let (mut text, mut escaped) = (String::new(), false);
    let ended_by_colon = loop {
        match rest.next() {
            None => break false,
            Some(':') => break true,
            Some('\\') => {
                escaped = true;
                text.push(rest.next().unwrap_or('\\'));
            }
            Some(plain) => text.push(plain),
        }
    };
    Field { anything: text == "*" && !escaped, text, ended_by_colon }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_line_that_fits_counts() {
        let file = Passfile::parse(
            "# db:5432:app:relay:comment\n\
             db:5432:app:relay:one\n\
             db:*:app:relay:two\r\n\
             \\:\\:1:5432:*:relay:three:and a comment\n\
             a\\*b:*:*:*:s\\:e\\\\c\n\
             *:*:other:*:four\n\
             \\*:*:*:star:five\n\
             short:1:2\n\
             *:*:*:nobody:\n\
             *:*:*:nobody:never\n\
             *:*:*:ü:p ä\n\
             *:*:*:slash:p\\",
        );
        for (wanted, password) in [
            (["db", "5432", "app", "relay"], Some("one")),
            (["db", "5433", "app", "relay"], Some("two")),
            (["db", "5433", "app", "Relay"], None),
            (["::1", "5432", "x", "relay"], Some("three")),
            (["a*b", "1", "x", "y"], Some("s:e\\c")),
            (["any", "1", "other", "y"], Some("four")),
            (["any", "1", "x", "star"], None),
            (["*", "1", "x", "star"], Some("five")),
            (["short", "1", "2", "3"], None),
            (["x", "1", "x", "nobody"], None),
            (["x", "1", "x", "ü"], Some("p ä")),
            (["x", "1", "x", "slash"], Some("p\\")),
        ] {
            assert_eq!(file.password(wanted), password, "{wanted:?}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let path = std::env::temp_dir().join(format!("pgbaton-passfile-{}", std::process::id()));
        std::fs::write(&path, "*:*:*:*:secret\n").unwrap();
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Passfile::read(&path);
            assert_eq!(read.is_ok(), used, "{mode:o}");
            if let Err(Unused::Unfit(text)) = read {
                assert!(text.contains("0600") && !text.contains("secret"), "{text}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Passfile::read(&path), Err(Unused::Missing)));
        assert!(matches!(Passfile::read(&std::env::temp_dir()), Err(Unused::Unfit(_))));
    }
}
