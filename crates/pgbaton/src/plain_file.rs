//! Reading what an operator names: configurations, secrets, certificates, keys, password files.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// More than any of them needs.
const MOST_BYTES: u64 = 1 << 20;

/// The bytes of a plain file of at most 1 MiB, and what the system says of it.
///
/// # Errors
/// What the system says, or which of these it is not. Devices and pipes may never end, so they are not even opened.
pub(crate) fn read(path: &Path) -> io::Result<(Metadata, Vec<u8>)> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
    if !std::fs::metadata(path)?.is_file() {
        return Err(invalid("it is not a plain file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(invalid("it is larger than 1 MiB"));
    }
    Ok((metadata, bytes))
}
