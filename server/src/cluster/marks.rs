//! The marks by which a later process knows that its slot has been part of the cluster.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::journal::sync_folder;
use super::types::Member;

/// The file in the data directory that says that it belongs to a cluster that has begun.
pub(super) const BEGUN: &str = "begun";

/// The file in the data directory that says that an operator has removed the node.
pub(super) const REMOVED: &str = "removed";

/// Leaves marks of this node; when this returns they survive a crash.
pub(super) fn leave(marks: &[PathBuf], member: Member) -> io::Result<()> {
    for path in marks {
        let mut file = File::create(path)?;
        io::Write::write_all(&mut file, member.generation.to_string().as_bytes())?;
        file.sync_all()?;
        sync_folder(folder_of(path))?;
    }
    Ok(())
}

/// The generation in a mark, if there is one. One that says nothing is taken for the highest.
pub(super) fn found(mark: &Path) -> io::Result<Option<u64>> {
    match std::fs::read_to_string(mark) {
        Ok(text) => Ok(Some(text.trim().parse().unwrap_or(u64::MAX))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// That a mark could be left here.
pub(super) fn check(mark: &Path) -> io::Result<()> {
    let mut name = mark.as_os_str().to_owned();
    name.push(".try");
    File::create(&name)?;
    std::fs::remove_file(&name)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
