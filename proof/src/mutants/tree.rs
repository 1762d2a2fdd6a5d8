//! A copy of the project that may be broken.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The copy.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Copies what differs from an earlier copy, so that what was built there stays built, and removes what is gone.
    pub(super) fn copy(from: &Path, to: &Path, parts: &[&str]) -> Result<Tree, Error> {
        fs::create_dir_all(to).map_err(|cause| Error::because(format!("creating {}", to.display()), &cause))?;
        for part in parts {
            copy(&from.join(part), &to.join(part))
                .map_err(|cause| Error::because(format!("copying {part} to {}", to.display()), &cause))?;
        }
        // A path from here would mean something else there.
        let root = fs::canonicalize(to).map_err(|cause| Error::because(to.display(), &cause))?;
        Ok(Tree { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn read(&self, file: &str) -> Result<String, Error> {
        fs::read_to_string(self.root.join(file)).map_err(|cause| Error::because(format!("reading {file}"), &cause))
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        fs::write(self.root.join(file), text).map_err(|cause| Error::because(format!("writing {file}"), &cause))
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.is_dir() {
        return copy_file(from, to);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
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

fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let wanted = fs::read(from)?;
    if fs::read(to).ok().as_deref() != Some(&wanted) {
        fs::write(to, wanted)?;
    }
    Ok(())
}
