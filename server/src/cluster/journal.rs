//! The log of a durable node as one file.
//!
//! ```text
//! file:   header · blocks
//! header: "HWLOG\0" · version u16 = 1 · domain 32 · node u64 · CRC-32 u32 of all before
//! block:  "HWB1" · length u32 of the body · position u64 of the block in the file
//!         · CRC-32 u32 of length, position and body · body: records
//! record: 1 · entry | 2 · vote | 3 · optional log id: what is behind it is gone
//!         | 4 · log id: what is up to it is in a snapshot and gone
//! ```
//!
//! What is asked for at once becomes one block, and no block is written before the one in front of
//! it is synced. So a block that cannot be read is the torn end of a crash if nothing readable
//! comes after it: nobody was told that it is stored, and it is cut off. If something does, the
//! file is damaged, and is refused. (A last block that the disk itself has spoiled later looks like
//! a torn end; the file system's own checks are for that.)
//!
//! A process that was killed may have left a block that was written and not synced, or a new file
//! whose name was not. The next one reads them as if they were stored, so it syncs file and
//! directory first: what the engine finds there it never stores again.
//!
//! Behind the last block there may be room: zeroes, which were written together with a block that
//! did not fit any more. A sync of what lies in such room need not store where the file ends and
//! what of it has been written, which costs a file system a second write. There is room only as
//! long as one block follows the other, and for a few of them, so that a disk that takes nothing
//! more is noticed soon, not when megabytes are used up. More zeroes than that are a torn end too.
//!
//! When most of a file is records that mean nothing any more, a new file with the rest takes its
//! place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Domain;
use tokio::time::Instant;

use super::bytes::{Malformed, Put as _, Reader};
use super::codec;
use super::types::{Entry, LogId, Vote};
use crate::system;

const MAGIC: &[u8; 6] = b"HWLOG\0";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 52;
const BLOCK_MAGIC: &[u8; 4] = b"HWB1";
const BLOCK_HEAD: usize = 20;
const NAME: &str = "log";
const NEW_NAME: &str = "log.new";
/// A file is never written anew for less.
const LEAST_WASTE: u64 = 16 * 1024 * 1024;
/// How large a block of a new file gets.
const BLOCK_BYTES: usize = 1024 * 1024;
/// Room is made if blocks come at least this often on average.
const ROOM_PACE: Duration = Duration::from_millis(2);
/// There is never room for more blocks, nor with more bytes, than this.
const MOST_ROOM_BLOCKS: usize = 16;
const MOST_ROOM: usize = 64 * 1024;

/// What the log says, in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) vote: Option<Vote>,
    /// The last one that only a snapshot still has.
    pub(super) purged: Option<LogId>,
    /// Without a gap, from behind `purged`.
    pub(super) entries: BTreeMap<u64, Entry>,
}

impl Contents {
    pub(super) fn append(&mut self, entry: Entry) {
        self.entries.insert(entry.log_id.index(), entry);
    }

    pub(super) fn truncate_after(&mut self, last: Option<&LogId>) {
        let first = last.map_or(0, |id| id.index() + 1);
        self.entries.split_off(&first);
    }

    pub(super) fn purge(&mut self, upto: LogId) {
        self.entries = self.entries.split_off(&(upto.index() + 1));
        self.purged = self.purged.max(Some(upto));
    }

    fn replay(&mut self, body: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(body, "log record");
        while !reader.rest().is_empty() {
            match reader.u8()? {
                1 => {
                    let entry = codec::entry(&mut reader)?;
                    let index = entry.log_id.index();
                    let last = self.entries.last_key_value().map(|(index, _)| *index);
                    let last = last.or(self.purged.as_ref().map(|id| id.index()));
                    if last.map_or(0, |last| last + 1) != index {
                        return Err(reader.wrong());
                    }
                    self.append(entry);
                }
                2 => self.vote = Some(codec::vote(&mut reader)?),
                3 => self.truncate_after(codec::maybe(&mut reader)?.as_ref()),
                4 => self.purge(codec::log_id(&mut reader)?),
                _ => return Err(reader.wrong()),
            }
        }
        Ok(())
    }
}

/// Records on their way to the file.
#[derive(Debug, Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    pub(super) fn entry(&mut self, entry: &Entry) {
        self.0.u8(1);
        codec::put_entry(&mut self.0, entry);
    }

    pub(super) fn vote(&mut self, vote: &Vote) {
        self.0.u8(2);
        codec::put_vote(&mut self.0, vote);
    }

    pub(super) fn truncate_after(&mut self, last: Option<&LogId>) {
        self.0.u8(3);
        codec::put_maybe(&mut self.0, last);
    }

    pub(super) fn purge(&mut self, upto: &LogId) {
        self.0.u8(4);
        codec::put_log_id(&mut self.0, upto);
    }

    pub(super) fn and(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Which node's log is in this directory, if one is.
pub(super) fn owner(folder: &Path) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    let read = File::open(folder.join(NAME)).and_then(|mut file| file.read_exact(&mut header));
    match read {
        Ok(()) => {
            let mut node = [0; 8];
            node.copy_from_slice(&header[HEADER_BYTES - 12..HEADER_BYTES - 4]);
            Ok(Some(u64::from_be_bytes(node)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The open file. After an error nobody knows what it holds: it must not be used any more.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    file: File,
    /// Where the last block ends.
    length: u64,
    /// Where the file ends: what is between is zeroes.
    end: u64,
    room: Room,
    /// How long it was when it was made.
    fresh: u64,
    domain: Domain,
    node: u64,
    /// Keeps every other server out of the directory for as long as anything may be written.
    lock: Arc<File>,
}

impl Journal {
    /// Opens the file, or makes it, and reads all of it. What a crash has torn is cut off.
    pub(super) fn open(
        folder: &Path,
        domain: Domain,
        node: u64,
        lock: Arc<File>,
    ) -> Result<(Self, Contents), JournalError> {
        let path = folder.join(NAME);
        let mut bytes = Vec::new();
        let mut options = File::options();
        match options.read(true).write(true).open(&path) {
            Ok(mut file) => {
                file.read_to_end(&mut bytes)?;
                check_header(&bytes, domain, node)?;
                let (contents, length) = replay(&bytes)?;
                let mut end = bytes.len();
                let rest = &bytes[length..];
                if rest.len() > MOST_ROOM || rest.iter().any(|byte| *byte != 0) {
                    tracing::warn!(bytes = rest.len(), "the torn end of the log is cut off");
                    end = length;
                    file.set_len(end as u64)?;
                }
                file.sync_all()?;
                sync_folder(folder)?;
                file.seek(io::SeekFrom::Start(length as u64))?;
                let journal = Self {
                    folder: folder.to_owned(),
                    file,
                    length: length as u64,
                    end: end as u64,
                    room: Room::default(),
                    fresh: 0,
                    domain,
                    node,
                    lock,
                };
                Ok((journal, contents))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let contents = Contents::default();
                let journal = Self::create(folder, domain, node, &contents, lock)?;
                Ok((journal, contents))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a whole new file and puts it in the place of the old one.
    fn create(
        folder: &Path,
        domain: Domain,
        node: u64,
        contents: &Contents,
        lock: Arc<File>,
    ) -> io::Result<Self> {
        let mut journal = Self {
            folder: folder.to_owned(),
            file: File::create(folder.join(NEW_NAME))?,
            length: 0,
            end: 0,
            room: Room::default(),
            fresh: 0,
            domain,
            node,
            lock,
        };
        let mut header = MAGIC.to_vec();
        header.u16(VERSION);
        header.put(domain.as_bytes());
        header.u64(node);
        header.u32(crc32fast::hash(&header));
        journal.file.write_all(&header)?;
        journal.length = header.len() as u64;
        journal.end = journal.length;
        let mut records = Records::default();
        contents.vote.iter().for_each(|vote| records.vote(vote));
        contents.purged.iter().for_each(|id| records.purge(id));
        for entry in contents.entries.values() {
            records.entry(entry);
            if records.len() >= BLOCK_BYTES {
                journal.put(&std::mem::take(&mut records), None)?;
            }
        }
        journal.put(&records, None)?;
        journal.fresh = journal.length;
        journal.file.sync_all()?;
        fs::rename(folder.join(NEW_NAME), folder.join(NAME))?;
        sync_folder(folder)?;
        Ok(journal)
    }

    /// From now on the file takes nothing.
    #[cfg(test)]
    pub(super) fn break_for_test(&mut self) {
        self.file = File::open(self.folder.join(NAME)).unwrap();
    }

    /// Stores these records; when this returns they survive a crash.
    pub(super) fn store(&mut self, records: &Records) -> io::Result<()> {
        if records.0.is_empty() {
            return Ok(());
        }
        self.put(records, Some(system::now()))?;
        self.file.sync_data()
    }

    /// Whether the file has grown so much since it was made that a new one is worth it.
    pub(super) fn is_wasteful(&self) -> bool {
        self.length > LEAST_WASTE + self.fresh * 2
    }

    /// Leaves out what means nothing any more.
    pub(super) fn rewrite(&mut self, contents: &Contents) -> io::Result<()> {
        let lock = Arc::clone(&self.lock);
        *self = Self::create(&self.folder, self.domain, self.node, contents, lock)?;
        Ok(())
    }

    /// Writes a block. If it does not fit any more and others are to follow, it brings room for them; this is the
    /// time then.
    fn put(&mut self, records: &Records, now: Option<Instant>) -> io::Result<()> {
        if records.0.is_empty() {
            return Ok(());
        }
        let mut bytes = block(self.length, &records.0);
        let length = self.length + bytes.len() as u64;
        let block = bytes.len();
        if length > self.end {
            let room = now.map_or(0, |now| self.room.after(now, block));
            bytes.resize(block + room, 0);
            self.file.write_all(&bytes)?;
            self.file.seek(io::SeekFrom::Start(length))?;
            self.end = length + room as u64;
        } else {
            self.file.write_all(&bytes)?;
        }
        self.room.written(block);
        self.length = length;
        Ok(())
    }
}

/// How much room there should be behind a block. It is doubled each time it was used up soon.
#[derive(Debug, Default)]
struct Room {
    /// For how many blocks room was made the last time.
    blocks: usize,
    /// When that was, and how many have been written since then.
    made: Option<Instant>,
    since: u32,
    /// How long the last of them was.
    last: usize,
}

impl Room {
    /// How many bytes of room to make behind a block of this length, for which there was none.
    fn after(&mut self, now: Instant, block: usize) -> usize {
        let made = self.made.replace(now);
        let since = std::mem::take(&mut self.since);
        let is_busy = made.is_some_and(|made| now.duration_since(made) <= ROOM_PACE * since);
        self.blocks = match is_busy {
            true => (self.blocks * 2).clamp(1, MOST_ROOM_BLOCKS),
            false => 0,
        };
        // One block with much in it does not promise others like it.
        (self.blocks * block.min(self.last)).min(MOST_ROOM)
    }

    fn written(&mut self, block: usize) {
        self.since = self.since.saturating_add(1);
        self.last = block;
    }
}

fn block(position: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = BLOCK_MAGIC.to_vec();
    bytes.count(body.len());
    bytes.u64(position);
    let crc = checksum(&bytes[4..16], body);
    bytes.u32(crc);
    bytes.put(body);
    bytes
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

/// The body of the block that begins here, if a whole one does.
fn block_at(bytes: &[u8], position: usize) -> Option<&[u8]> {
    let mut reader = Reader::new(bytes.get(position..)?, "block");
    let magic = reader.take(4).ok()?;
    let head = Reader::take(&mut reader.clone(), 12).ok()?;
    let length = reader.u32().ok()?;
    let at = reader.u64().ok()?;
    let crc = reader.u32().ok()?;
    let body = reader.take(length as usize).ok()?;
    let whole = magic == BLOCK_MAGIC && at == position as u64 && checksum(head, body) == crc;
    whole.then_some(body)
}

/// What a file says, and where its last whole block ends.
fn replay(bytes: &[u8]) -> Result<(Contents, usize), JournalError> {
    let mut contents = Contents::default();
    let mut position = HEADER_BYTES;
    while position < bytes.len() {
        let Some(body) = block_at(bytes, position) else {
            let mut later = position + 1..bytes.len();
            if later.any(|later| block_at(bytes, later).is_some()) {
                return Err(JournalError::Damaged { position });
            }
            break;
        };
        let replayed = contents.replay(body);
        replayed.map_err(|_| JournalError::Damaged { position })?;
        position += BLOCK_HEAD + body.len();
    }
    Ok((contents, position))
}

fn check_header(bytes: &[u8], domain: Domain, node: u64) -> Result<(), JournalError> {
    let damaged = |Malformed { .. }| JournalError::Damaged { position: 0 };
    let mut reader = Reader::new(bytes, "log header");
    if reader.take(6).map_err(damaged)? != MAGIC {
        return Err(JournalError::NotALog);
    }
    let version = reader.u16().map_err(damaged)?;
    if version != VERSION {
        return Err(JournalError::Version { found: version });
    }
    let found: [u8; 32] = reader.array().map_err(damaged)?;
    let owner = reader.u64().map_err(damaged)?;
    if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != reader.u32().map_err(damaged)? {
        return Err(JournalError::Damaged { position: 0 });
    }
    if &found != domain.as_bytes() || owner != node {
        return Err(JournalError::Other);
    }
    Ok(())
}

#[cfg(unix)]
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere a directory is no file that could be synced.
#[cfg(not(unix))]
pub(super) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error("the log cannot be read or written")]
    Io(#[from] io::Error),
    #[error("it is not a log of a cluster node")]
    NotALog,
    #[error("log format {found} is not known to this version")]
    Version { found: u16 },
    #[error("the log is damaged at byte {position}: let the other nodes replace this one")]
    Damaged { position: usize },
    #[error("it is the log of another cluster or of another of its nodes")]
    Other,
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::cluster::types::Payload;

    const DOMAIN: Domain = Domain::from_bytes([7; 32]);

    fn entry(index: u64) -> Entry {
        Entry {
            log_id: LogId::new_term_index(1, index),
            payload: Payload::Blank,
        }
    }

    fn store(journal: &mut Journal, indexes: std::ops::Range<u64>) {
        let mut records = Records::default();
        indexes.for_each(|index| records.entry(&entry(index)));
        journal.store(&records).unwrap();
    }

    fn indexes(contents: &Contents) -> Vec<u64> {
        contents.entries.keys().copied().collect()
    }

    fn open(folder: &TempDir) -> Result<(Journal, Contents), JournalError> {
        open_as(folder, DOMAIN, 1)
    }

    fn open_as(
        folder: &TempDir,
        domain: Domain,
        node: u64,
    ) -> Result<(Journal, Contents), JournalError> {
        let lock = Arc::new(tempfile::tempfile().unwrap());
        Journal::open(folder.path(), domain, node, lock)
    }

    #[test]
    fn what_was_stored_is_read_again_in_its_order() {
        let folder = TempDir::new().unwrap();
        let (mut journal, _) = open(&folder).unwrap();
        store(&mut journal, 0..5);
        let mut records = Records::default();
        records.truncate_after(Some(&LogId::new_term_index(1, 2)));
        records.entry(&entry(3));
        records.purge(&LogId::new_term_index(1, 1));
        journal.store(&records).unwrap();
        let (mut journal, contents) = open(&folder).unwrap();
        assert_eq!(indexes(&contents), [2, 3]);
        journal.rewrite(&contents).unwrap();
        store(&mut journal, 4..5);
        let (_, contents) = open(&folder).unwrap();
        assert_eq!(indexes(&contents), [2, 3, 4]);
        assert_eq!(contents.purged, Some(LogId::new_term_index(1, 1)));
    }

    /// A crash may leave any part of the last block, and anything in the place of the others.
    #[test]
    fn a_torn_end_is_cut_off_wherever_it_is_torn() {
        let folder = TempDir::new().unwrap();
        let (mut journal, _) = open(&folder).unwrap();
        store(&mut journal, 0..2);
        let whole = journal.length as usize;
        store(&mut journal, 2..4);
        let bytes = fs::read(folder.path().join(NAME)).unwrap();
        for length in whole..journal.length as usize {
            for filler in [None, Some(0), Some(0xff)] {
                let mut torn = bytes[..length].to_vec();
                torn.resize(filler.map_or(length, |_| bytes.len()), filler.unwrap_or(0));
                if torn == bytes {
                    continue;
                }
                fs::write(folder.path().join(NAME), &torn).unwrap();
                let (mut journal, contents) = open(&folder).unwrap();
                assert_eq!(indexes(&contents), [0, 1], "{length} {filler:?}");
                store(&mut journal, 2..3);
                let (_, contents) = open(&folder).unwrap();
                assert_eq!(indexes(&contents), [0, 1, 2], "{length} {filler:?}");
            }
        }
    }

    /// Writes blocks of one entry each, as a log does that is busy.
    fn store_soon(journal: &mut Journal, indexes: std::ops::Range<u64>) {
        let now = system::now();
        for index in indexes {
            let mut records = Records::default();
            records.entry(&entry(index));
            journal.put(&records, Some(now)).unwrap();
        }
    }

    #[test]
    fn room_for_some_blocks_is_used_also_by_who_comes_later() {
        let folder = TempDir::new().unwrap();
        let size = || fs::metadata(folder.path().join(NAME)).unwrap().len();
        let (mut journal, _) = open(&folder).unwrap();
        store_soon(&mut journal, 0..1);
        let block = journal.length - HEADER_BYTES as u64;
        let blocks = |count: u64| HEADER_BYTES as u64 + count * block;
        assert_eq!(size(), blocks(1));
        // Room for one more, then for two, then for four.
        for (index, end) in [(1, 3), (2, 3), (3, 6), (4, 6), (5, 6), (6, 11), (7, 11)] {
            store_soon(&mut journal, index..index + 1);
            assert_eq!(size(), blocks(end), "{index}");
        }
        let (mut journal, contents) = open(&folder).unwrap();
        assert_eq!(indexes(&contents), Vec::from_iter(0..8));
        store(&mut journal, 8..9);
        assert_eq!((journal.length, size()), (blocks(9), blocks(11)));
        store_soon(&mut journal, 9..11);
        assert_eq!((journal.length, size()), (blocks(11), blocks(11)));
        store_soon(&mut journal, 11..12);
        let (_, contents) = open(&folder).unwrap();
        assert_eq!(indexes(&contents), Vec::from_iter(0..12));
    }

    /// A block that lies in room, or reaches over its end, and that a crash has left in part.
    #[test]
    fn a_torn_block_in_the_room_is_cut_off_with_the_room_behind_it() {
        let folder = TempDir::new().unwrap();
        let name = folder.path().join(NAME);
        let (mut journal, _) = open(&folder).unwrap();
        store_soon(&mut journal, 0..4);
        let whole = journal.length as usize;
        let before = fs::read(&name).unwrap();
        assert!(before.len() > whole);
        let mut records = Records::default();
        (4..5).for_each(|index| records.entry(&entry(index)));
        let in_room = block(whole as u64, &records.0);
        (5..40).for_each(|index| records.entry(&entry(index)));
        let longer = block(whole as u64, &records.0);
        assert!(whole + in_room.len() < before.len() && whole + longer.len() > before.len());
        for block in [in_room, longer] {
            for written in 1..block.len() {
                let mut torn = before.clone();
                torn.resize(torn.len().max(whole + block.len()), 0);
                torn[whole..whole + written].copy_from_slice(&block[..written]);
                if torn[whole..].starts_with(&block) {
                    continue;
                }
                fs::write(&name, &torn).unwrap();
                let (mut journal, contents) = open(&folder).unwrap();
                assert_eq!(indexes(&contents), [0, 1, 2, 3], "{written}");
                assert_eq!(fs::metadata(&name).unwrap().len(), whole as u64);
                store(&mut journal, 4..5);
                let (_, contents) = open(&folder).unwrap();
                assert_eq!(indexes(&contents), [0, 1, 2, 3, 4], "{written}");
            }
        }
    }

    #[test]
    fn more_zeroes_than_there_is_ever_room_are_cut_off() {
        let folder = TempDir::new().unwrap();
        let name = folder.path().join(NAME);
        let (mut journal, _) = open(&folder).unwrap();
        store(&mut journal, 0..2);
        let length = journal.length;
        for (room, kept) in [(MOST_ROOM, MOST_ROOM), (MOST_ROOM + 1, 0)] {
            let file = File::options().write(true).open(&name).unwrap();
            file.set_len(length + room as u64).unwrap();
            let (journal, contents) = open(&folder).unwrap();
            assert_eq!(indexes(&contents), [0, 1]);
            assert_eq!(journal.length, length);
            let size = fs::metadata(&name).unwrap().len();
            assert_eq!(size, length + kept as u64);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_room_only_for_a_few_and_while_one_follows_the_other() {
        let mut room = Room::default();
        let mut made = Vec::new();
        for _ in 0..40 {
            made.push(room.after(system::now(), 100));
            room.written(100);
            tokio::time::advance(ROOM_PACE).await;
        }
        assert_eq!(made[..6], [0, 100, 200, 400, 800, 1_600]);
        assert_eq!(made[6..], [1_600; 34]);
        // As much as usual, and not as much as in a block with far more.
        assert_eq!(room.after(system::now(), 1_000_000), 1_600);
        room.written(1_000_000);
        assert_eq!(room.after(system::now(), 100), 1_600);
        room.written(1_000_000);
        assert_eq!(room.after(system::now(), 1_000_000), MOST_ROOM);
        room.written(100);
        tokio::time::advance(ROOM_PACE * 2).await;
        assert_eq!(room.after(system::now(), 100), 0);
        // Where much was used up, it may have lasted for long.
        (0..10).for_each(|_| room.written(100));
        tokio::time::advance(ROOM_PACE * 10).await;
        assert_eq!(room.after(system::now(), 100), 100);
    }

    #[test]
    fn damage_in_front_of_something_readable_is_refused() {
        let folder = TempDir::new().unwrap();
        let (mut journal, _) = open(&folder).unwrap();
        let first = journal.length as usize;
        store(&mut journal, 0..2);
        let second = journal.length as usize;
        store(&mut journal, 2..4);
        let bytes = fs::read(folder.path().join(NAME)).unwrap();
        for position in first..second {
            let mut spoiled = bytes.clone();
            spoiled[position] ^= 0x10;
            fs::write(folder.path().join(NAME), &spoiled).unwrap();
            let error = open(&folder).unwrap_err();
            assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
        }
        let mut spoiled = bytes.clone();
        spoiled[20] ^= 1;
        fs::write(folder.path().join(NAME), &spoiled).unwrap();
        assert!(open(&folder).is_err());
    }

    #[test]
    fn the_log_of_another_node_or_cluster_is_refused() {
        let folder = TempDir::new().unwrap();
        open(&folder).unwrap();
        let other = open_as(&folder, DOMAIN, 2).unwrap_err();
        assert!(matches!(other, JournalError::Other));
        let domain = Domain::from_bytes([8; 32]);
        let other = open_as(&folder, domain, 1).unwrap_err();
        assert!(matches!(other, JournalError::Other));
    }
}
