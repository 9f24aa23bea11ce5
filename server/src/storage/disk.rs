//! The data directory: the few operations on it that durability rests on.
//!
//! [`Disk`] is what the store builds on, so that a test can let each step fail or lose what was
//! not synced; [`Folder`] is the real one. It opens only what is empty or ours, and only for one
//! server at a time.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StorageError;
use super::record::{Record, Unreadable};

/// A directory of small files.
///
/// What was written is durable only after a sync: of the file for its content, of the folder for
/// what is in it under which name.
pub(crate) trait Disk: Send + 'static {
    /// Where it is, for messages.
    fn path(&self) -> &Path;

    /// The file's content, or `None` if there is no such file.
    fn read(&mut self, name: &'static str) -> io::Result<Option<Vec<u8>>>;

    /// Makes the file, or empties it, and writes these bytes.
    fn write(&mut self, name: &'static str, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was written to the file last.
    fn sync(&mut self, name: &'static str) -> io::Result<()>;

    /// Gives a file another name, in one step and in place of whatever has that name.
    fn rename(&mut self, from: &'static str, to: &'static str) -> io::Result<()>;

    /// Makes durable which files there are.
    fn sync_folder(&mut self) -> io::Result<()>;
}

/// The state itself.
pub(crate) const STATE: &str = "state";
/// A state on its way.
pub(crate) const NEW_STATE: &str = "state.new";
/// What somebody who looks into the directory should know. It is written after the first state
/// was, so where it is, there was a state.
pub(crate) const NOTE: &str = "README.txt";
/// The file that an open server has locked.
const LOCK: &str = "lock";

/// Keeps every other server out of the directory while any clone of it lives.
pub(crate) type FolderLock = Arc<File>;

/// The real directory, locked.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: FolderLock,
    /// What was written and not synced yet.
    written: Option<(&'static str, File)>,
}

impl Folder {
    /// Opens the directory, or makes it, and locks it.
    pub(crate) fn open_or_create(path: &Path) -> Result<Self, StorageError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        only_for_us(&mut builder);
        match builder.create(path) {
            Ok(()) => {}
            Err(_) if path.exists() => {}
            Err(source) => return Err(refused("made", path, source)),
        }
        Self::open(path)
    }

    /// Opens the directory, which has to be there, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, StorageError> {
        let path = fs::canonicalize(path).map_err(|source| refused("opened", path, source))?;
        if !path.is_dir() {
            return Err(StorageError::NotADirectory { path });
        }
        // Before the lock file is made: nothing of ours comes into a directory of others.
        check_names(&path)?;
        check_state(&path)?;
        let lock = lock(&path)?;
        check_names(&path)?;
        warn_if_writable(&path);
        Ok(Self {
            path,
            lock: Arc::new(lock),
            written: None,
        })
    }

    pub(crate) fn lock(&self) -> FolderLock {
        Arc::clone(&self.lock)
    }

    /// Makes the directory itself durable, where it was made and all the way up: an earlier start
    /// may have been interrupted before it got to that.
    pub(crate) fn sync_path(&self) -> Result<(), StorageError> {
        use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
        for folder in self.path.ancestors().skip(1) {
            match sync_folder(folder).map_err(|error| (error.kind(), error)) {
                Ok(()) => {}
                // Whoever cannot write there did not make anything there.
                Err((PermissionDenied | ReadOnlyFilesystem, _)) => {}
                // Not a file system that could be relied on; if it is that of the directory, the
                // first record will tell.
                Err((InvalidInput | Unsupported, _)) => {}
                Err((_, source)) => return Err(refused("synced", folder, source)),
            }
        }
        Ok(())
    }
}

impl Disk for Folder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&mut self, name: &'static str) -> io::Result<Option<Vec<u8>>> {
        read(&self.path.join(name))
    }

    fn write(&mut self, name: &'static str, bytes: &[u8]) -> io::Result<()> {
        self.written = None;
        let mut file = File::create(self.path.join(name))?;
        file.write_all(bytes)?;
        self.written = Some((name, file));
        Ok(())
    }

    fn sync(&mut self, name: &'static str) -> io::Result<()> {
        // The very file that was written: another handle might not be told of its failures.
        match self.written.take() {
            Some((written, file)) if written == name => file.sync_all(),
            _ => Err(io::Error::other("it was not written before")),
        }
    }

    fn rename(&mut self, from: &'static str, to: &'static str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        sync_folder(&self.path)
    }
}

/// The directory is empty, or has a state, or nothing but what we put there before the first one.
fn check_names(path: &Path) -> Result<(), StorageError> {
    let listed = |source| refused("read", path, source);
    let mut other = None;
    for entry in fs::read_dir(path).map_err(listed)? {
        let name = entry.map_err(listed)?.file_name();
        if name == STATE {
            return Ok(());
        }
        if ![NEW_STATE, NOTE, LOCK].iter().any(|ours| name == *ours) {
            other = Some(name.to_string_lossy().into_owned());
        }
    }
    match other {
        Some(name) => Err(StorageError::Foreign {
            path: path.to_owned(),
            name,
        }),
        None => Ok(()),
    }
}

/// A file that is called `state` and is another program's.
fn check_state(path: &Path) -> Result<(), StorageError> {
    let path = path.join(STATE);
    let bytes = read(&path).map_err(|source| refused("read", &path, source))?;
    match bytes.map(|bytes| Record::decode(&bytes)) {
        Some(Err(Unreadable::Foreign)) => Err(StorageError::NotAState { path }),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn lock(path: &Path) -> Result<File, StorageError> {
    let name = path.join(LOCK);
    let locked = |source| refused("locked", &name, source);
    // It must not be emptied or replaced: the lock belongs to this very file.
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false);
    let file = file.open(&name).map_err(locked)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StorageError::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(locked(source)),
    }
}

pub(super) fn refused(action: &'static str, path: &Path, source: io::Error) -> StorageError {
    StorageError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Elsewhere a directory is no file that could be synced; renaming is up to the file system.
#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn only_for_us(builder: &mut DirBuilder) {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700);
}

#[cfg(not(unix))]
fn only_for_us(_builder: &mut DirBuilder) {}

#[cfg(unix)]
fn warn_if_writable(path: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    if fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o022 != 0) {
        let path = path.display();
        tracing::warn!(%path, "other users may write into the data directory");
    }
}

#[cfg(not(unix))]
fn warn_if_writable(_path: &Path) {}

/// Far more than any file of ours has.
const MOST_BYTES: u64 = 64 * 1024;
