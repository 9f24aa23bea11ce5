//! Brings a node up: its files, the engine on top of them, and the tasks that keep it going.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_lock::Machine;
use highwater_protocol::Secret;
use highwater_protocol::handshake::Slot;
use openraft::{Config, SnapshotPolicy};
use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::desk::Desk;
use super::file::ClusterFile;
use super::file::ClusterMode;
use super::journal::{self, Contents, Journal, JournalError};
use super::log::Log;
use super::marks::{self, BEGUN, REMOVED};
use super::peer::{Trust, serve};
use super::presence::{Engine, Presence};
use super::retention::Retention;
use super::rules::{self, Pace};
use super::snapshots::{SnapshotError, Snapshots};
use super::types::Member;
use crate::metrics::SharedHistogram;
use crate::swap::Swap;
use crate::system::{self, ClockSkew, NodeClock};

/// A place in a cluster that a server is to take.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) file: ClusterFile,
    pub(crate) slot: u8,
    /// Where to listen for peers, if it is not where they look for this node.
    pub(crate) peer_listen: Option<SocketAddr>,
    /// How to know the other nodes, where TLS is on.
    pub(crate) peer_tls: Option<Arc<ClientConfig>>,
    /// After how many entries a snapshot is taken.
    pub(crate) snapshot_every: NonZeroU32,
    /// Which of the nodes of its slot a new one is; an old one knows by its data directory.
    pub(crate) generation: Option<NonZeroU64>,
    /// What is wrong with its clocks, in tests.
    pub(crate) clock_skew: Option<ClockSkew>,
    /// How patient it is with the others, and they with it.
    pub(crate) pace: Pace,
}

impl Seat {
    /// Whether a node there has no data directory.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.file.mode() == ClusterMode::Volatile
    }
}

/// A node, or what is to become one, and its tasks. Dropping it ends the tasks.
pub(crate) struct Running {
    pub(crate) presence: Arc<Presence>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) slot: Slot,
    pub(crate) peer_addr: SocketAddr,
    life: JoinHandle<()>,
    /// How long the writes of the log took.
    pub(super) writes: Arc<SharedHistogram>,
    /// Answers the other nodes.
    pub(crate) peers: JoinHandle<()>,
    /// Closed when the data directory is free again.
    pub(crate) written: watch::Receiver<()>,
    /// Closed when the engine has ended.
    pub(crate) ended: watch::Receiver<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.life.abort();
        self.peers.abort();
    }
}

impl Running {
    /// Whether a secret of clients opens the door of peers, and one of theirs that of clients.
    pub(crate) fn shares_secret(&self, client: &Secret) -> bool {
        self.presence.trust.secrets.has(client)
    }

    /// Proves itself to the other nodes, and knows them, by these from now on.
    pub(crate) fn replace_tls(
        &self,
        accept: Option<&Arc<ServerConfig>>,
        connect: Option<&Arc<ClientConfig>>,
    ) {
        let trust = &self.presence.trust;
        if let (Some(own), Some(new)) = (&trust.accept, accept) {
            own.set(Arc::clone(new));
        }
        if let (Some(own), Some(new)) = (&trust.connect, connect) {
            own.set(Arc::clone(new));
        }
    }
}

/// Starts a node in the current Tokio runtime. One of a volatile cluster, which has no directory, may
/// have to wait for others until it is a node; it answers clients and peers meanwhile.
pub(crate) async fn start(
    seat: Seat,
    folder: Option<PathBuf>,
    client_secrets: &[Secret],
    tls: Option<Arc<ServerConfig>>,
) -> Result<Running, ClusterError> {
    let Seat { file, slot, .. } = &seat;
    let entry = file.node(*slot);
    let entry = entry.ok_or(ClusterError::NoSuchSlot { slot: *slot })?;
    let mut clients = client_secrets.iter();
    if clients.any(|client| file.peer_secrets().has(client)) {
        return Err(ClusterError::SameSecret);
    }
    if tls.is_some() != seat.peer_tls.is_some() {
        return Err(ClusterError::PeerTls);
    }
    let own_slot = entry.slot;
    let address = entry.addresses.peers.clone();
    let listen_error = |source| ClusterError::Listen {
        address: seat
            .peer_listen
            .map_or(address.clone(), |own| own.to_string()),
        source,
    };
    let listener = match seat.peer_listen {
        Some(own) => TcpListener::bind(own).await,
        None => TcpListener::bind(&address).await,
    };
    let listener = listener.map_err(listen_error)?;
    let peer_addr = listener.local_addr().map_err(listen_error)?;
    let trust = Arc::new(Trust {
        domain: file.identity(),
        secrets: file.peer_secrets().clone(),
        common: file.common(),
        accept: tls.map(|tls| Arc::new(Swap::new(tls))),
        connect: seat.peer_tls.clone().map(|tls| Arc::new(Swap::new(tls))),
    });
    let seed = system::hash_seed().map_err(no_random)?;
    let machine = Machine::seeded(rules::limits(), file.first_token(), seed);
    let clock = NodeClock::start(seat.clock_skew.clone());
    let desk = Desk::new(file.identity(), own_slot, machine, clock.clone());
    let desk = Arc::new(desk);
    let snapshot_every = seat.snapshot_every.get().into();
    let config = Arc::new(config(snapshot_every, seat.pace)?);
    let presence = Arc::new(Presence::new(
        own_slot,
        trust,
        file.clone(),
        Arc::clone(&desk),
        folder.clone(),
        Engine {
            config,
            retention: Retention::beside(snapshot_every),
            pace: seat.pace,
            seed,
            clock,
        },
        system::random().map_err(no_random)?,
    ));
    let (written, writes) = match (file.mode(), folder) {
        (ClusterMode::Durable, Some(folder)) => {
            let file = file.clone();
            let generation = seat.generation.map(NonZeroU64::get);
            let open = move || open(&file, own_slot, generation, &folder);
            let opened = tokio::task::spawn_blocking(open).await;
            let opened = opened.map_err(|panic| ClusterError::Io(panic.into()))??;
            let Files { member, log, .. } = opened;
            let writes = Arc::clone(&log.writes);
            presence.become_node(member, log, opened.snapshots).await?;
            if let Some(node) = presence.node() {
                node.set_begun(opened.begun);
            }
            (opened.written, writes)
        }
        (ClusterMode::Volatile, None) if seat.generation.is_none() => {
            if is_marked(file.marker(own_slot)).await? {
                presence.has_forgotten();
            }
            (watch::channel(()).1, Log::in_memory().writes)
        }
        (ClusterMode::Durable, None) => return Err(ClusterError::InMemory),
        (ClusterMode::Volatile, None) => return Err(ClusterError::ByItself),
        (ClusterMode::Volatile, Some(_)) => return Err(ClusterError::KeepsNothing),
    };
    tracing::info!(slot = own_slot.get(), %peer_addr, "cluster node started");
    let (ending, ended) = watch::channel(());
    let life = Arc::clone(&presence);
    Ok(Running {
        desk,
        writes,
        slot: own_slot,
        peer_addr,
        life: tokio::spawn(async move {
            life.live().await;
            drop(ending);
        }),
        ended,
        written,
        peers: tokio::spawn(serve::accept(listener, Arc::clone(&presence))),
        presence,
    })
}

fn no_random(error: getrandom::Error) -> ClusterError {
    ClusterError::Io(io::Error::other(error))
}

/// Whether there is a mark. If there is none, one must be able to be left there.
async fn is_marked(marker: PathBuf) -> Result<bool, ClusterError> {
    let looked = tokio::task::spawn_blocking(move || {
        let found = marks::found(&marker).and_then(|found| match found {
            Some(_) => Ok(true),
            None => marks::check(&marker).map(|()| false),
        });
        found.map_err(|source| ClusterError::Marker { marker, source })
    });
    looked
        .await
        .map_err(|panic| ClusterError::Io(panic.into()))?
}

pub(super) fn config(snapshot_every: u64, pace: Pace) -> Result<Config, ClusterError> {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: "highwater".to_owned(),
        heartbeat_interval: millis(pace.heartbeat()),
        election_timeout_min: millis(pace.election().0),
        election_timeout_max: millis(pace.election().1),
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot_every),
        // What is left out of the log is decided in `retention`.
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        // A restarted process must not go on with a term whose waiters were another process's.
        enable_leader_restore: Some(false),
        backoff: "100ms".to_owned(),
        ..Config::default()
    };
    config
        .validate()
        .map_err(|error| ClusterError::Engine(error.to_string()))
}

struct Files {
    member: Member,
    /// Whether the cluster has begun, as far as this directory knows.
    begun: bool,
    log: Log,
    written: watch::Receiver<()>,
    snapshots: Snapshots,
}

/// Opens the data directory. Waits for the disk.
fn open(
    file: &ClusterFile,
    slot: Slot,
    generation: Option<u64>,
    folder: &Path,
) -> Result<Files, ClusterError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    only_for_us(&mut builder);
    builder.create(folder)?;
    check_names(folder)?;
    let lock = Arc::new(lock(folder)?);
    if folder.join(REMOVED).exists() {
        return Err(ClusterError::Removed);
    }
    let marker = file.marker(slot);
    let begun = folder.join(BEGUN).exists();
    let known = journal::owner(folder)?.and_then(Member::from_id);
    let member = Member {
        slot,
        generation: match (known, generation) {
            (Some(known), None) => known.generation,
            (Some(known), Some(asked)) if known.generation != asked => {
                let found = known.generation;
                return Err(ClusterError::Generation { asked, found });
            }
            (_, asked) => asked.unwrap_or(1),
        },
    };
    if let Some(newer) = marks::found(&marker)?.filter(|marked| *marked > member.generation)
        && newer != u64::MAX
    {
        let own = member.generation;
        return Err(ClusterError::Replaced { own, newer });
    }
    // A node of an earlier generation may have promised things; this one has not.
    if marks::found(&marker)?.is_some_and(|marked| marked >= member.generation) && !begun {
        return Err(ClusterError::Forgotten { marker });
    }
    if begun && !folder.join("log").exists() {
        return Err(ClusterError::Gap);
    }
    let domain = file.identity();
    let snapshots = Snapshots::open(folder, domain).map_err(ClusterError::snapshot)?;
    let (journal, contents) =
        Journal::open(folder, domain, member.id(), lock).map_err(ClusterError::journal)?;
    check_gap(&contents, &snapshots)?;
    let used = contents.vote.is_some() || contents.purged.is_some() || !contents.entries.is_empty();
    if begun && !used && snapshots.newest().is_some() {
        return Err(ClusterError::Gap);
    }
    // One that takes a slot over is part of the cluster from its first start on.
    let is_unmarked = !begun || marks::found(&marker)? != Some(member.generation);
    if is_unmarked && (used || member.generation > 1) {
        marks::leave(&[folder.join(BEGUN), marker], member)?;
    }
    let (log, written) = Log::start(journal, contents)?;
    Ok(Files {
        member,
        begun: begun || used || member.generation > 1,
        log,
        written,
        snapshots,
    })
}

/// Everything that the log has left out must be in the snapshot.
fn check_gap(contents: &Contents, snapshots: &Snapshots) -> Result<(), ClusterError> {
    let last = snapshots
        .newest()
        .and_then(|newest| newest.meta.last_log_id);
    match contents.purged > last {
        true => Err(ClusterError::Gap),
        false => Ok(()),
    }
}

fn check_names(folder: &Path) -> Result<(), ClusterError> {
    let ours = [
        "begun",
        "lock",
        "log",
        "log.new",
        "removed",
        "snapshot",
        "snapshot.new",
    ];
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !ours.iter().any(|known| name == *known) {
            return Err(ClusterError::Foreign {
                path: folder.to_owned(),
                name: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

fn lock(folder: &Path) -> Result<File, ClusterError> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false);
    let file = file.open(folder.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ClusterError::InUse {
            path: folder.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(source.into()),
    }
}

#[cfg(unix)]
fn only_for_us(builder: &mut DirBuilder) {
    use std::os::unix::fs::DirBuilderExt as _;
    builder.mode(0o700);
}

#[cfg(not(unix))]
fn only_for_us(_builder: &mut DirBuilder) {}

/// Why a node of a cluster did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Give a slot that is in the cluster file.
    #[error("slot {slot} is not in the cluster file")]
    NoSuchSlot {
        /// The slot that was asked for.
        slot: u8,
    },
    /// Every client could then act as a node. Make another client token.
    #[error("a client token is the same as a peer secret")]
    SameSecret,
    /// A node keeps its part of the replicated log in a data directory. Give one. Only a volatile
    /// cluster has none, and that is said by its file.
    #[error("a node of a cluster needs a data directory")]
    InMemory,
    /// The cluster file says that the cluster is volatile. Give no data directory, or make a durable
    /// cluster.
    #[error("a node of a volatile cluster keeps nothing in a data directory")]
    KeepsNothing,
    /// The leader of a volatile cluster says which generation a process has. Give none.
    #[error("a node of a volatile cluster learns its generation from the leader")]
    ByItself,
    /// Without the mark nobody would know that the identity has been used. Make the directory of the
    /// cluster file writable, and let it survive a restart of the machine.
    #[error("the mark {} cannot be read or left", marker.display())]
    Marker {
        /// The mark.
        marker: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The limits of locks and the first token decide what the log means, so they are the same on all
    /// nodes and come with the cluster. Leave them out.
    #[error("the limits of locks and the first token are those of the cluster")]
    Rules,
    /// Clients are served over TLS, so nodes must be too: give the authority of their certificates.
    /// Without TLS, leave it out.
    #[error("TLS for clients and the authority for peers have to be given together")]
    PeerTls,
    /// The address for peers is in use or not one of this machine.
    #[error("cannot listen for peers on {address}")]
    Listen {
        /// The address that was asked for.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The data directory cannot be used. See what the system says.
    #[error("the data directory cannot be used")]
    Io(#[from] io::Error),
    /// Another server uses the data directory.
    #[error("{} is in use by another server", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory has something in it that is not of a cluster node. Give an empty one.
    #[error("{} is not the data directory of a cluster node: there is {name:?} in it", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// What is in it.
        name: String,
    },
    /// The data directory is that of another node of this slot. Leave the generation out, or give the
    /// new node a directory of its own.
    #[error("the data directory belongs to generation {found} of this slot, and not to {asked}")]
    Generation {
        /// The generation that was asked for.
        asked: u64,
        /// That of the directory.
        found: u64,
    },
    /// Another node has taken the slot over. Leave it in its place.
    #[error("generation {newer} has taken this slot over from generation {own}")]
    Replaced {
        /// The generation of the data directory.
        own: u64,
        /// That of the node which was here last.
        newer: u64,
    },
    /// An operator has removed this node. A new one of its slot needs an empty data directory, and the
    /// generation that `highwater cluster grow` tells.
    #[error("this node was removed from the cluster")]
    Removed,
    /// This node has been part of the cluster, and its data directory does not know of it. It may
    /// have promised votes and stored entries that are lost: it must not go on as if it had not.
    #[error(
        "{} says that this node has been part of the cluster, and its data directory is not the one it had",
        marker.display()
    )]
    Forgotten {
        /// The mark.
        marker: PathBuf,
    },
    /// The log begins behind the end of the snapshot: a file is missing or was replaced.
    #[error("the log and the snapshot in the data directory do not fit each other")]
    Gap,
    /// A file in the data directory cannot be used; the text says which and why.
    #[error("{0}")]
    Storage(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The consensus engine refuses what it finds.
    #[error("the consensus engine does not start: {0}")]
    Engine(String),
}

impl ClusterError {
    fn journal(error: JournalError) -> Self {
        Self::Storage(
            "the log in the data directory cannot be used".to_owned(),
            error.into(),
        )
    }

    fn snapshot(error: SnapshotError) -> Self {
        let text = "the snapshot in the data directory cannot be used";
        Self::Storage(text.to_owned(), error.into())
    }
}
