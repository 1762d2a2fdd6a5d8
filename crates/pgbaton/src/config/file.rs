//! Files that a configuration consists of: itself, and those that hold one value, such as a secret.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than any configuration or secret needs.
const MOST_BYTES: u64 = 1 << 20;

/// The text of a regular file of at most 1 MiB.
///
/// # Errors
/// What the system says, or which of these it is not. Devices and pipes may never end, so they are not even opened.
pub(super) fn read(path: &Path) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
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
