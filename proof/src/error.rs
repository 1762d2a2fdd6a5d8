//! The one error of this crate: a sentence for the person who reads a test's or the demo's output.
//!
//! Nobody decides anything by the kind of such an error, so it has none.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, with its causes already written out.
///
/// `Debug` prints the same text as `Display`, so that `unwrap` in a test shows a server's log as lines
/// rather than as one escaped string.
pub struct Error(String);

impl Error {
    /// An error that has no cause beyond what `message` says.
    pub fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }

    /// `what` failed because of `cause`; the causes behind it are appended, since drivers like
    /// tokio-postgres put the server's own words there.
    pub fn because(what: impl fmt::Display, cause: &dyn StdError) -> Error {
        let mut message = format!("{what}: {cause}");
        let mut next = cause.source();
        while let Some(deeper) = next {
            message.push_str(": ");
            message.push_str(&deeper.to_string());
            next = deeper.source();
        }
        Error(message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Error {}
