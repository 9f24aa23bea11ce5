//! The newest snapshot of the machine, kept in memory to send and in a file where it has to survive.
//!
//! ```text
//! "HWSNAP" · version u16 = 1 · domain 32 · length u32 of the meta data · meta data
//! · length u64 of the machine · machine · CRC-32 u32 of all before
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use highwater_lock::Domain;

use super::bytes::{Malformed, Put as _, Reader, malformed};
use super::codec;
use super::journal::sync_folder;
use super::types::Snapshot;

const MAGIC: &[u8; 6] = b"HWSNAP";
const VERSION: u16 = 1;
const NAME: &str = "snapshot";
const NEW_NAME: &str = "snapshot.new";

/// See the module's description. Clones are the same snapshots.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    newest: Arc<Mutex<Option<Snapshot>>>,
    /// None for snapshots that end with the process.
    folder: Option<Arc<PathBuf>>,
    domain: Domain,
}

impl Snapshots {
    /// Reads the snapshot that is in this directory, if one is.
    pub(super) fn open(folder: &Path, domain: Domain) -> Result<Self, SnapshotError> {
        let newest = match fs::read(folder.join(NAME)) {
            Ok(bytes) => Some(decode(&bytes, domain)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            newest: Arc::new(Mutex::new(newest)),
            folder: Some(Arc::new(folder.to_owned())),
            domain,
        })
    }

    /// None yet, and none that survives.
    pub(super) fn in_memory(domain: Domain) -> Self {
        Self {
            newest: Arc::default(),
            folder: None,
            domain,
        }
    }

    pub(super) fn newest(&self) -> Option<Snapshot> {
        let newest = self.newest.lock();
        newest.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores a snapshot; when this returns it is the newest one and, with a directory, survives a
    /// crash.
    pub(super) async fn store(&self, snapshot: Snapshot) -> io::Result<()> {
        if self.folder.is_none() {
            return self.write(snapshot);
        }
        let this = self.clone();
        let stored = tokio::task::spawn_blocking(move || this.write(snapshot)).await;
        stored.map_err(io::Error::other)?
    }

    fn write(&self, snapshot: Snapshot) -> io::Result<()> {
        // Held while writing: one at a time, and an older one never replaces a newer one.
        let newest = self.newest.lock();
        let mut newest = newest.unwrap_or_else(PoisonError::into_inner);
        let last = |snapshot: &Snapshot| snapshot.meta.last_log_id;
        if newest
            .as_ref()
            .is_some_and(|newest| last(newest) > last(&snapshot))
        {
            return Ok(());
        }
        if let Some(folder) = &self.folder {
            let mut file = File::create(folder.join(NEW_NAME))?;
            file.write_all(&encode(&snapshot, self.domain))?;
            file.sync_all()?;
            fs::rename(folder.join(NEW_NAME), folder.join(NAME))?;
            sync_folder(folder)?;
        }
        *newest = Some(snapshot);
        Ok(())
    }
}

fn encode(snapshot: &Snapshot, domain: Domain) -> Vec<u8> {
    let mut meta = Vec::new();
    codec::put_meta(&mut meta, &snapshot.meta);
    let mut bytes = MAGIC.to_vec();
    bytes.u16(VERSION);
    bytes.put(domain.as_bytes());
    bytes.count(meta.len());
    bytes.put(&meta);
    bytes.u64(snapshot.snapshot.len() as u64);
    bytes.put(&snapshot.snapshot);
    bytes.u32(crc32fast::hash(&bytes));
    bytes
}

fn decode(bytes: &[u8], domain: Domain) -> Result<Snapshot, SnapshotError> {
    let (content, crc) = bytes.split_last_chunk::<4>().ok_or(malformed("snapshot"))?;
    if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
        return Err(malformed("snapshot").into());
    }
    let mut reader = Reader::new(content, "snapshot");
    if reader.take(6)? != MAGIC {
        return Err(reader.wrong().into());
    }
    match reader.u16()? {
        VERSION => {}
        found => return Err(SnapshotError::Version { found }),
    }
    if reader.array()? != *domain.as_bytes() {
        return Err(SnapshotError::Other);
    }
    let length = reader.u32()?;
    let mut meta = Reader::new(reader.take(length as usize)?, "snapshot");
    let length = usize::try_from(reader.u64()?).map_err(|_| reader.wrong())?;
    let machine = reader.take(length)?;
    reader.end()?;
    let found = codec::meta(&mut meta)?;
    meta.end()?;
    Ok(Snapshot {
        meta: found,
        snapshot: Arc::new(machine.to_vec()),
    })
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    #[error("the snapshot cannot be read")]
    Io(#[from] io::Error),
    #[error("the snapshot is damaged: let the other nodes replace this one")]
    Damaged(#[from] Malformed),
    #[error("snapshot format {found} is not known to this version")]
    Version { found: u16 },
    #[error("it is a snapshot of another cluster")]
    Other,
}
