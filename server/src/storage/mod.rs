//! The memory of a server between its starts: its domain, a bound above all its tokens, and for
//! how long its leases may go on.
//!
//! [`record`] is the bytes, [`disk`] the directory, [`store`] the order of steps that is safe at
//! every crash, [`writer`] the thread that waits, [`reserve`] what may be given out meanwhile. The
//! locks themselves are not stored. Why it is done this way: `docs/adr/0009-*.md`.

mod disk;
mod error;
mod record;
mod reserve;
mod restore;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::path::Path;

pub(crate) use self::disk::{Folder, FolderLock};
pub use self::error::StorageError;
pub(crate) use self::record::Record;
pub use self::reserve::{AfterRestart, StorageCounts};
pub(crate) use self::reserve::{DEFAULT_BLOCK, END_OF_TOKENS, Reserve, Start, legal_lease};
pub use self::restore::{RestoreError, Restored, restore_as_new_domain};
pub(crate) use self::store::Store;
pub(crate) use self::writer::{WriteError, Writer};

/// Opens the data directory, or makes it, for this server alone. Waits for the disk.
pub(crate) fn open(
    path: &Path,
) -> Result<(Store<Folder>, Option<Record>, FolderLock), StorageError> {
    let folder = Folder::open_or_create(path)?;
    let lock = folder.lock();
    folder.sync_path()?;
    let (store, record) = Store::open(folder)?;
    match record {
        Some(record) if record.bound >= END_OF_TOKENS => Err(StorageError::TokensUsedUp {
            path: path.to_owned(),
        }),
        _ => Ok((store, record, lock)),
    }
}
