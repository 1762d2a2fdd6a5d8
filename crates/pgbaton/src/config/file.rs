//! Files that a configuration consists of: itself, and those that hold one value, such as a secret.

use std::io;
use std::path::Path;

use crate::plain_file;

/// The text of a plain file of at most 1 MiB.
///
/// # Errors
/// Those of [`plain_file::read`], or that it is not UTF-8.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let (_, bytes) = plain_file::read(path)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The value that a file holds: its text without its last line break.
///
/// # Errors
/// As [`read`].
pub(super) fn read_value(path: &Path) -> io::Result<String> {
    let mut text = read(path)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
