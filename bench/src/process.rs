//! The targets as processes: started for a measurement, on free ports of the loopback interface,
//! and ended with it.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A process that ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Removed when it has ended.
    _directory: Option<Directory>,
}

impl Process {
    fn new(child: Child) -> Self {
        Self {
            child,
            _directory: None,
        }
    }

    /// Has a directory removed with it.
    fn with(self, directory: Directory) -> Self {
        Self {
            _directory: Some(directory),
            ..self
        }
    }

    /// Ends it as a power failure would, with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// The system refuses.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Its number.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The system refuses.
    pub async fn ended(mut self) -> io::Result<()> {
        self.child.wait().await.map(drop)
    }
}

/// A temporary directory, removed in the end.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> io::Result<Self> {
        let mut number = 0;
        loop {
            let name = format!("highwater-bench-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // That of another server.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left in a temporary directory does no harm.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Where a single lock server keeps what it has to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Nowhere.
    Memory,
    /// In a temporary directory.
    Disk,
}

/// Starts a lock server of this `highwater` program, and gives its address.
///
/// # Errors
/// It does not start.
pub async fn server(program: &Path, storage: Storage) -> Result<(Process, String), ProcessError> {
    let mut words: Vec<OsString> = ["serve", "--listen", "127.0.0.1:0", "--no-auth"]
        .map(OsString::from)
        .into();
    if storage == Storage::Memory {
        words.push("--in-memory".into());
        return announced(program, words).await;
    }
    let directory = Directory::new().map_err(ProcessError::System)?;
    words.push("--data-dir".into());
    words.push(directory.path().into());
    let (process, address) = announced(program, words).await?;
    Ok((process.with(directory), address))
}

/// Starts the echo server of this `highwater` program, and gives its address.
///
/// # Errors
/// It does not start.
pub async fn echo(program: &Path) -> Result<(Process, String), ProcessError> {
    announced(program, ["bench-echo"]).await
}

/// A command of this `highwater` program, which is told nothing by the environment: what that says
/// is for other servers.
pub(crate) fn highwater<W: Into<OsString>>(
    program: &Path,
    words: impl IntoIterator<Item = W>,
) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HIGHWATER_") {
            command.env_remove(name);
        }
    }
    command.args(words.into_iter().map(Into::into));
    // Its log would tear the bar of progress apart.
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "error");
    }
    command
}

/// Starts `highwater` so that it tells its address on its first line.
pub(crate) async fn announced<W: Into<OsString>>(
    program: &Path,
    words: impl IntoIterator<Item = W>,
) -> Result<(Process, String), ProcessError> {
    let mut child = highwater(program, words)
        // Ends the echo with this process, however that ends.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ProcessError::System)?;
    let stdout = child.stdout.take().ok_or(ProcessError::Silent)?;
    let mut lines = BufReader::new(stdout).lines();
    let line = lines.next_line().await.map_err(ProcessError::System)?;
    let line = line.ok_or(ProcessError::Silent)?;
    let address = line
        .strip_prefix("highwater listens on ")
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or(ProcessError::Silent)?;
    Ok((Process::new(child), address.to_owned()))
}

/// Starts a Redis that keeps nothing on disk, and gives its URL.
///
/// # Errors
/// There is no `redis-server`, or it does not start.
pub async fn redis() -> Result<(Process, String), ProcessError> {
    for _ in 0..TRIES {
        // Redis does not choose a port by itself; another program may take this one first.
        let port = free_port()?;
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(ProcessError::NoRedis)?;
        let stdout = child.stdout.take().ok_or(ProcessError::Silent)?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await.map_err(ProcessError::System)? {
            if line.contains("eady to accept connections") {
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok((Process::new(child), format!("redis://127.0.0.1:{port}/")));
            }
        }
    }
    Err(ProcessError::Silent)
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> Result<u16, ProcessError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(ProcessError::System)?;
    let address = listener.local_addr().map_err(ProcessError::System)?;
    Ok(address.port())
}

/// Why a target does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system does not start it.
    #[error("a target cannot be started")]
    System(#[source] io::Error),
    /// There is no Redis.
    #[error("redis-server cannot be started (install it, or name one that runs with --redis-url)")]
    NoRedis(#[source] io::Error),
    /// It does not say where it listens.
    #[error("a target ended before it told its address; see what it wrote")]
    Silent,
    /// The command that makes or begins a cluster has failed.
    #[error("`highwater {command}` failed: {said}")]
    Command {
        /// Its words.
        command: String,
        /// What it wrote.
        said: String,
    },
}

pub(crate) const TRIES: u32 = 5;
