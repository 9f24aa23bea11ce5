//! What has to happen before a server may run on a copy of a data directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_lock::{Domain, FencingToken};

use super::StorageError;
use super::disk::Folder;
use super::record::Record;
use super::reserve::END_OF_TOKENS;
use super::store::Store;
use crate::system;

/// The new identity of a restored data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The domain of the copy, whose tokens mean nothing to the new one.
    pub old_domain: Domain,
    /// The domain from now on.
    pub new_domain: Domain,
    /// No token of the new domain is below it.
    pub first_token: FencingToken,
    /// For how long, after the next start, the leases that the copy knows of may go on.
    pub old_leases: Duration,
}

/// Makes the data directory a new domain, so that a server may run on it although its counter has
/// been turned back: after a restored backup, a copied directory, a rolled back virtual machine.
///
/// The new domain's tokens begin above those that the copy knows of, and at the system time in
/// microseconds if that is higher, and at `first_token` if that is higher still. Databases refuse
/// the new domain until their marks are moved to it, which is the point: the copy does not know
/// which tokens were given out after it was made. Nor does it know leases that were given out
/// after it was made: let them run out, or rely on the fences.
///
/// Waits for the disk. The server that used the directory has to be stopped.
///
/// # Errors
/// There is no whole state in the directory, a server runs on it, or something cannot be written;
/// then the directory may be of the old domain or of a new one, and the call can be repeated.
pub fn restore_as_new_domain(
    path: &Path,
    first_token: Option<FencingToken>,
) -> Result<Restored, RestoreError> {
    let folder = Folder::open(path)?;
    folder.sync_path()?;
    let (mut store, found) = Store::open(folder)?;
    let Some(found) = found else {
        let path = path.to_owned();
        return Err(RestoreError::NothingThere { path });
    };
    let clock = system::unix_micros().and_then(FencingToken::new);
    let bound = Some(found.bound).max(clock).max(first_token);
    let record = Record {
        domain: system::new_domain().map_err(RestoreError::Random)?,
        bound: bound.unwrap_or(found.bound).min(END_OF_TOKENS),
        ..found
    };
    store.commit(&record)?;
    Ok(Restored {
        old_domain: found.domain,
        new_domain: record.domain,
        first_token: record.bound,
        old_leases: record.horizon,
    })
}

/// Why a data directory was not made a new domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The directory holds no state: there is nothing to restore, and a server that starts on it
    /// makes a new domain anyway.
    #[error("{} holds no state of a lock server", path.display())]
    NothingThere {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be used; see there what to do.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The system gives no random bytes, so no new domain can be made.
    #[error("the system has no random bytes")]
    Random(#[source] getrandom::Error),
}
