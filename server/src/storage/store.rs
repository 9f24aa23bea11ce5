//! Gets a record onto the disk so that after any crash there is a whole one: the last one that
//! was reported durable, or one that was on its way after it.
//!
//! A new file is written and synced, takes the name of the old one in one step, and the directory
//! is synced. Whatever fails ends the store for good: after a failed sync nobody knows what is on
//! the disk, and trying again would report success for what was lost.

use super::StorageError;
use super::disk::{Disk, NEW_STATE, NOTE, STATE, refused};
use super::record::{Record, Unreadable};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Store<D> {
    disk: D,
    /// The bytes in the state file.
    current: Option<[u8; Record::BYTES]>,
    noted: bool,
    given_up: bool,
    syncs: u64,
}

impl<D: Disk> Store<D> {
    /// Reads what is there: the last record, or `None` in a directory that never had one.
    pub(crate) fn open(mut disk: D) -> Result<(Self, Option<Record>), StorageError> {
        let state = disk.read(STATE);
        let state = state.map_err(|source| refused("read", &disk.path().join(STATE), source))?;
        let note = disk.read(NOTE);
        let note = note.map_err(|source| refused("read", &disk.path().join(NOTE), source))?;
        let record = match state {
            Some(bytes) => Some(decode(&disk, &bytes)?),
            None if note.is_some() => {
                let path = disk.path().to_owned();
                return Err(StorageError::StateGone { path });
            }
            None => None,
        };
        let store = Self {
            disk,
            current: record.map(|record| record.encode()),
            noted: note.is_some(),
            given_up: false,
            syncs: 0,
        };
        Ok((store, record))
    }

    /// Makes the record durable. Until it returns `Ok`, what the record allows is not allowed.
    ///
    /// # Errors
    /// Something failed, now or before: nothing that is not durable yet ever will be.
    pub(crate) fn commit(&mut self, record: &Record) -> Result<(), StorageError> {
        if self.given_up {
            let path = self.disk.path().join(STATE);
            return Err(StorageError::GivenUp { path });
        }
        self.given_up = true;
        let bytes = record.encode();
        self.check_unchanged()?;
        self.write(NEW_STATE, &bytes)?;
        self.step("replaced", STATE, |disk| disk.rename(NEW_STATE, STATE))?;
        self.sync_folder()?;
        self.current = Some(bytes);
        if !self.noted {
            self.write(NOTE, NOTE_TEXT.as_bytes())?;
            self.sync_folder()?;
            self.noted = true;
        }
        self.given_up = false;
        Ok(())
    }

    /// How often something was made durable: what the disk costs.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs
    }

    /// A second server must not get in, but a lock file can be removed and a copy put back: then
    /// whoever finds out first stops.
    fn check_unchanged(&mut self) -> Result<(), StorageError> {
        let mut found = None;
        self.step("read", STATE, |disk| {
            found = disk.read(STATE)?;
            Ok(())
        })?;
        if found.as_deref() == self.current.as_ref().map(<[u8; _]>::as_slice) {
            return Ok(());
        }
        let path = self.disk.path().join(STATE);
        Err(StorageError::Changed { path })
    }

    fn write(&mut self, name: &'static str, bytes: &[u8]) -> Result<(), StorageError> {
        self.step("written", name, |disk| disk.write(name, bytes))?;
        self.syncs += 1;
        self.step("synced", name, |disk| disk.sync(name))
    }

    fn sync_folder(&mut self) -> Result<(), StorageError> {
        self.syncs += 1;
        let path = self.disk.path().to_owned();
        let synced = self.disk.sync_folder();
        synced.map_err(|source| refused("synced", &path, source))
    }

    fn step(
        &mut self,
        action: &'static str,
        name: &'static str,
        run: impl FnOnce(&mut D) -> std::io::Result<()>,
    ) -> Result<(), StorageError> {
        let done = run(&mut self.disk);
        done.map_err(|source| refused(action, &self.disk.path().join(name), source))
    }
}

fn decode(disk: &impl Disk, bytes: &[u8]) -> Result<Record, StorageError> {
    let path = disk.path().join(STATE);
    Record::decode(bytes).map_err(|unreadable| match unreadable {
        Unreadable::Foreign => StorageError::NotAState { path },
        Unreadable::Format(format) => StorageError::UnknownFormat { path, format },
        Unreadable::Damaged(reason) => StorageError::Damaged { path, reason },
    })
}

const NOTE_TEXT: &str = "\
This directory is the memory of a Highwater lock server: its fencing domain, and a bound above all
tokens that it gave out. Do not edit it, and do not remove `lock` while a server runs.

A copy of it is a memory of the past. Before a server may run on a copy, or after a snapshot of the
machine was put back, make it a new domain:

    highwater restore --new-domain --data-dir DIR
";
