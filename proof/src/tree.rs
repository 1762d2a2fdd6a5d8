//! A copy of the project that may be broken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// What of the project is copied.
pub(crate) const COPIED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "crates", "proof"];

/// Where builds go: copies and their builds have folders of their own in it.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// The copy.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Copies what differs from an earlier copy, so that what was built there stays built, and removes what is gone. These
    /// files, named from the project's folder, get this text instead of their own.
    pub(crate) fn copy(
        from: &Path,
        to: &Path,
        parts: &[&str],
        instead: &BTreeMap<String, String>,
    ) -> Result<Tree, Error> {
        fs::create_dir_all(to).map_err(|cause| Error::because(format!("creating {}", to.display()), &cause))?;
        let instead = instead.iter().map(|(file, text)| (from.join(file), text.as_str())).collect();
        for part in parts {
            copy(&from.join(part), &to.join(part), &instead)
                .map_err(|cause| Error::because(format!("copying {part} to {}", to.display()), &cause))?;
        }
        // A path from here would mean something else there.
        let root = fs::canonicalize(to).map_err(|cause| Error::because(to.display(), &cause))?;
        Ok(Tree { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn read(&self, file: &str) -> Result<String, Error> {
        fs::read_to_string(self.root.join(file)).map_err(|cause| Error::because(format!("reading {file}"), &cause))
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        fs::write(self.root.join(file), text).map_err(|cause| Error::because(format!("writing {file}"), &cause))
    }
}

fn copy(from: &Path, to: &Path, instead: &BTreeMap<PathBuf, &str>) -> std::io::Result<()> {
    if !from.is_dir() {
        return copy_file(from, to, instead.get(from).copied());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name), instead)?;
    }
    for entry in fs::read_dir(to)? {
        let path = entry?.path();
        let gone = path.file_name().is_none_or(|name| !from.join(name).exists());
        match (gone, path.is_dir()) {
            (true, true) => fs::remove_dir_all(path)?,
            (true, false) => fs::remove_file(path)?,
            (false, _) => {}
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, instead: Option<&str>) -> std::io::Result<()> {
    let wanted = match instead {
        Some(text) => text.as_bytes().to_vec(),
        None => fs::read(from)?,
    };
    if fs::read(to).ok().as_deref() != Some(&wanted) {
        fs::write(to, wanted)?;
    }
    Ok(())
}
