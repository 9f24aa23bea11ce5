//! What a server needs to know before it starts, and why it may refuse to.

use std::net::SocketAddr;
use std::num::NonZeroU32;
#[cfg(feature = "cluster")]
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_lock::{Domain, FencingToken};
use highwater_protocol::Secret;
use rustls::ServerConfig;
use tokio::net::TcpListener;

use crate::admin::Admin;
#[cfg(feature = "cluster")]
use crate::cluster::{self, ClusterError, ClusterFile, Seat};
use crate::connection::Shared;
use crate::desk::Desk;
use crate::front::Front;
use crate::limits::Limits;
use crate::metrics::Traffic;
use crate::server::Server;
use crate::storage::{
    self, AfterRestart, DEFAULT_BLOCK, FolderLock, Reserve, Start, StorageError, Writer,
};
use crate::swap::Swap;
use crate::system;
use crate::throttle::Throttle;

/// Configures a [`Server`].
///
/// Two things have no default, because neither choice is right for everybody: where tokens are
/// kept ([`Builder::data_dir`] or [`Builder::in_memory`]) and who may connect
/// ([`Builder::client_token`] or [`Builder::no_auth`]).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    storage: Option<Storage>,
    listen: SocketAddr,
    secrets: Vec<Secret>,
    no_auth: bool,
    tls: Option<Arc<ServerConfig>>,
    limits: Limits,
    first_token: Option<FencingToken>,
    admin: Option<Admin>,
    after_restart: AfterRestart,
    token_block: NonZeroU32,
    #[cfg(feature = "cluster")]
    seat: Option<Seat>,
}

/// Where the server remembers what must survive it.
#[derive(Clone, Debug)]
enum Storage {
    /// Nowhere: every start is a new domain.
    Memory,
    Directory(PathBuf),
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            storage: None,
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)),
            secrets: Vec::new(),
            no_auth: false,
            tls: None,
            limits: Limits::default(),
            first_token: None,
            admin: None,
            after_restart: AfterRestart::default(),
            token_block: NonZeroU32::new(DEFAULT_BLOCK).expect("it is not zero"),
            #[cfg(feature = "cluster")]
            seat: None,
        }
    }

    /// Takes this slot of a cluster, instead of being a server by itself.
    ///
    /// Every grant, release, extension and expiry is then decided by a majority of the nodes, and the
    /// locks survive every restart: the [`Builder::data_dir`], which a node must have, keeps the
    /// replicated log. Only a node of a [volatile](crate::cluster::ClusterMode) cluster has none, and locks
    /// survive there as long as a majority of the processes does. Tokens belong to the domain of the cluster. The limits of locks and the first
    /// token are those of the cluster. A new cluster begins with [`cluster::init`](crate::cluster::init).
    ///
    /// Clients are listened for at the address that the file has, if it is one of numbers, until
    /// [`Builder::listen`] says something else.
    #[cfg(feature = "cluster")]
    pub fn cluster(mut self, file: ClusterFile, slot: u8) -> Self {
        let mut nodes = file.nodes();
        let own = nodes.find(|(own, _)| *own == slot);
        if let Some(Ok(listen)) = own.map(|(_, own)| own.clients.parse()) {
            self.listen = listen;
        }
        drop(nodes);
        self.seat = Some(Seat {
            file,
            slot,
            peer_listen: None,
            peer_tls: None,
            clock_skew: None,
            pace: cluster::Pace::USUAL,
            generation: None,
            snapshot_every: NonZeroU32::new(cluster::SNAPSHOT_EVERY).expect("it is not zero"),
        });
        self
    }

    /// Listens here for the other nodes of the cluster, and not where the file says that they look.
    /// To be called after [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    pub fn peer_listen(mut self, address: SocketAddr) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.peer_listen = Some(address);
        }
        self
    }

    /// Takes the slot over from a node that is gone for good, or joins, as the generation that
    /// [`cluster::replace`](crate::cluster::replace) or [`cluster::grow`](crate::cluster::grow) has told, with a data directory of its own. Only
    /// needed for its first start. To be called after [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    pub fn generation(mut self, generation: NonZeroU64) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.generation = Some(generation);
        }
        self
    }

    /// Makes the clocks of the node run wrong, for tests of what is done about that. To be called after
    /// [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    #[doc(hidden)]
    pub fn clock_skew(mut self, skew: cluster::ClockSkew) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.clock_skew = Some(skew);
        }
        self
    }

    /// Has the node wait so many times longer than usual for the others, before it takes them for gone or asks for
    /// votes: for tests that expect no change of leaders, on machines that do much else. All nodes have to have the
    /// same. To be called after [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    #[doc(hidden)]
    pub fn slower_elections(mut self, times: std::num::NonZeroU8) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.pace = cluster::Pace::slower(times);
        }
        self
    }

    /// Takes a snapshot of the locks after so many entries of the log, 10,000 by default: fewer make a
    /// start quicker and the log shorter, and cost more work. To be called after
    /// [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    pub fn snapshot_every(mut self, entries: NonZeroU32) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.snapshot_every = entries;
        }
        self
    }

    /// Knows the other nodes of the cluster by this, where TLS is on: their certificates are those
    /// that [`Builder::tls`] gives to them. To be called after [`Builder::cluster`].
    #[cfg(feature = "cluster")]
    pub fn peer_tls(mut self, config: Arc<rustls::ClientConfig>) -> Self {
        if let Some(seat) = &mut self.seat {
            seat.peer_tls = Some(config);
        }
        self
    }

    /// Starts the tokens at this number at least.
    ///
    /// For databases whose marks are higher than this start's tokens would be, because the clock of
    /// an earlier host was ahead or another lock service counted further: `highwater fence floor`
    /// shows how high they are. A new domain goes on from the system clock in microseconds if that
    /// is further, and a data directory from its own tokens: they never go back. A new domain is
    /// one all the same, so the marks still have to be adopted, by an operator or by writers that
    /// adopt higher tokens.
    pub fn first_token(mut self, token: FencingToken) -> Self {
        self.first_token = Some(token);
        self
    }

    /// Keeps everything in memory: locks end with the process, and every start is a new domain.
    ///
    /// Databases refuse the tokens of a new domain until an operator moves their marks to it, or
    /// they are configured to take over higher tokens: those of a new start are higher than all
    /// earlier ones, as long as this machine's clock does not go back. So a restart never puts an
    /// old holder before a new one.
    pub fn in_memory(mut self) -> Self {
        self.storage = Some(Storage::Memory);
        self
    }

    /// Remembers in this directory which tokens were given out: the domain stays the same and
    /// tokens go on upwards over every restart, whatever ended the server. Locks still end with the
    /// process; see [`Builder::after_restart`].
    ///
    /// The directory is made if it is not there. It has to be empty or of an earlier start, on a
    /// local file system whose syncs and file locks can be relied on, and is used by one server at
    /// a time. A copy of it is a memory of the past and needs
    /// [`restore_as_new_domain`](crate::restore_as_new_domain) before a server may run on it.
    ///
    /// The disk is written once per block of tokens ([`Builder::token_block`]) and when a longer
    /// lease is asked for than ever before, ahead of need: no grant of another lock waits for it. If
    /// it fails, the server grants nothing more ([`Readiness`](crate::Readiness)).
    ///
    /// Replaces [`Builder::in_memory`], and the other way round.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.storage = Some(Storage::Directory(path.into()));
        self
    }

    /// What a durable server does about leases that an earlier start gave out and that may still
    /// be running. They are waited for if nothing else is said: after a crash for as long as the
    /// longest lease that was given out, after an orderly shutdown for what really remained.
    pub fn after_restart(mut self, after_restart: AfterRestart) -> Self {
        self.after_restart = after_restart;
        self
    }

    /// How many tokens are reserved with one write to the data directory, 1,048,576 by default.
    /// After a crash what is left of a block is never given out.
    pub fn token_block(mut self, tokens: NonZeroU32) -> Self {
        self.token_block = tokens;
        self
    }

    /// Listens on this address; port 0 takes a free one. The default is `127.0.0.1:5225`.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Accepts clients that know this secret. Called again, it adds another one that is valid
    /// too: keep the old one until all clients have the new one.
    ///
    /// Every client with a secret can release every lock; it is a right to the whole server.
    pub fn client_token(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Accepts every client that has no secret. Only for an address of the loopback.
    pub fn no_auth(mut self) -> Self {
        self.no_auth = true;
        self
    }

    /// Encrypts every connection; see [`tls_from_pem_files`](crate::tls_from_pem_files).
    pub fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Starts an admin listener too.
    pub fn admin(mut self, admin: Admin) -> Self {
        self.admin = Some(admin);
        self
    }

    /// Replaces the default limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Starts the server in the current Tokio runtime. Clients can connect once this returns.
    ///
    /// # Errors
    /// The configuration is incomplete or unsafe, or the address cannot be listened on; nothing
    /// runs then.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn start(self) -> Result<Server, StartError> {
        let secrets = self.client_access()?;
        if let Some(token) = self.first_token.filter(|token| *token > HIGHEST_STORED) {
            return Err(StartError::FirstTokenOutOfRange { token });
        }
        if self.storage.is_none() && !self.is_node() {
            return Err(StartError::StorageNotChosen);
        }
        let listen_error = |source| StartError::Listen {
            address: self.listen,
            source,
        };
        let listener = TcpListener::bind(self.listen).await.map_err(listen_error)?;
        let local_addr = listener.local_addr().map_err(listen_error)?;
        let admin = match self.admin.clone() {
            Some(admin) => Some(admin.bind().await?),
            None => None,
        };
        #[cfg(feature = "cluster")]
        if let Some(seat) = self.seat.clone() {
            let desk = self.in_cluster(seat, &secrets).await?;
            tracing::info!(
                %local_addr, domain = %desk.domain(), tls = self.tls.is_some(),
                authentication = !self.no_auth, "serves clients of the cluster",
            );
            let shared = self.shared(desk, secrets);
            return Ok(Server::run(listener, local_addr, shared, admin, None));
        }
        let Memory {
            domain,
            first_token,
            durable,
        } = match self.storage.clone().ok_or(StartError::StorageNotChosen)? {
            Storage::Memory => {
                let (domain, first_token) = self.new_domain()?;
                Memory {
                    domain,
                    first_token,
                    durable: None,
                }
            }
            Storage::Directory(path) => self.in_directory(path).await?,
        };
        tracing::info!(
            %local_addr, %domain, %first_token,
            tls = self.tls.is_some(), authentication = !self.no_auth,
            durable = durable.is_some(), "lock server started",
        );
        let (desk, writer) = durable.unzip();
        let seed = system::hash_seed().map_err(StartError::Random)?;
        let locks = self.limits.locks.clone();
        let desk = Desk::new(domain, first_token, locks, desk, seed);
        let shared = self.shared(Front::Single(Box::new(desk)), secrets);
        Ok(Server::run(listener, local_addr, shared, admin, writer))
    }

    fn shared(self, desk: Front, secrets: Vec<Secret>) -> Shared {
        Shared {
            desk,
            limits: self.limits,
            secrets: Swap::new(secrets),
            tls: self.tls.map(Swap::new),
            complaints: Throttle::default(),
            traffic: Traffic::new(),
        }
    }

    /// Whether it is to be a node of a cluster; what that keeps is said by the cluster file.
    fn is_node(&self) -> bool {
        #[cfg(feature = "cluster")]
        let is_node = self.seat.is_some();
        #[cfg(not(feature = "cluster"))]
        let is_node = false;
        is_node
    }

    /// Whether it is to be a node that needs no data directory.
    pub(crate) fn keeps_nothing(&self) -> bool {
        #[cfg(feature = "cluster")]
        let nothing = self.seat.as_ref().is_some_and(Seat::keeps_nothing);
        #[cfg(not(feature = "cluster"))]
        let nothing = false;
        nothing
    }

    #[cfg(feature = "cluster")]
    async fn in_cluster(&self, seat: Seat, secrets: &[Secret]) -> Result<Front, ClusterError> {
        let folder = match self.storage.clone() {
            Some(Storage::Directory(folder)) => Some(folder),
            Some(Storage::Memory) => return Err(ClusterError::InMemory),
            None => None,
        };
        if self.first_token.is_some() || self.limits.locks != Limits::default().locks {
            return Err(ClusterError::Rules);
        }
        let running = cluster::start(seat, folder, secrets, self.tls.clone()).await?;
        Ok(Front::Cluster(Box::new(running)))
    }

    /// A domain without a past, and its first token.
    fn new_domain(&self) -> Result<(Domain, FencingToken), StartError> {
        // A client that takes all starts for one domain compares tokens across them: they must
        // go on upwards, and this clock is the only memory of earlier starts.
        let of_clock = system::unix_micros().and_then(FencingToken::new);
        let first_token = of_clock.max(self.first_token);
        let first_token = first_token.ok_or(StartError::SystemClock)?;
        let domain = system::new_domain().map_err(StartError::Random)?;
        Ok((domain, first_token))
    }

    async fn in_directory(&self, path: PathBuf) -> Result<Memory, StartError> {
        let builder = self.clone();
        let opened = tokio::task::spawn_blocking(move || builder.open(&path)).await;
        opened.map_err(|panic| StartError::Writer(panic.into()))?
    }

    /// Opens the directory and stores that this start begins. Waits for the disk.
    fn open(&self, path: &Path) -> Result<Memory, StartError> {
        let (mut store, found, folder) = storage::open(path)?;
        let start = Start::new(
            found,
            || self.new_domain(),
            self.first_token,
            self.after_restart,
            self.token_block.get().into(),
        )?;
        let reserve = Reserve::begin(start, &mut store)?;
        let path = path.display();
        match found {
            None => {
                tracing::info!(%path, domain = %start.domain, "the data directory is new: a new domain")
            }
            Some(found) => tracing::info!(
                %path, after_crash = !found.closed, old_leases = ?start.old_leases,
                policy = ?start.after_restart, "the data directory was used before",
            ),
        }
        if reserve.held_back_until().is_some() {
            tracing::warn!(
                wait = ?start.old_leases,
                "nothing is granted yet: leases of earlier starts may still be running",
            );
        }
        let writer = Writer::start(store).map_err(StartError::Writer)?;
        Ok(Memory {
            domain: start.domain,
            first_token: start.first_token,
            durable: Some(((reserve, folder), writer)),
        })
    }

    /// Whether the admin listener may be there as it is asked for.
    pub(crate) fn check_admin_access(&self) -> Result<(), StartError> {
        self.admin.as_ref().map_or(Ok(()), Admin::check)
    }

    /// Who may connect, if that can be so.
    pub(crate) fn client_access(&self) -> Result<Vec<Secret>, StartError> {
        let configured = !self.secrets.is_empty();
        if self.secrets.iter().any(Secret::is_no_auth) {
            return Err(StartError::EmptySecret);
        }
        match (configured, self.no_auth) {
            (true, true) => Err(StartError::AuthenticationContradicts),
            (false, false) => Err(StartError::AuthenticationNotChosen),
            (true, false) => Ok(self.secrets.clone()),
            (false, true) if self.listen.ip().to_canonical().is_loopback() => {
                Ok(vec![Secret::no_auth()])
            }
            (false, true) => Err(StartError::NoAuthOffLoopback {
                address: self.listen,
            }),
        }
    }
}

/// What a server knows when it starts.
struct Memory {
    domain: Domain,
    first_token: FencingToken,
    durable: Option<((Reserve, FolderLock), Writer)>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Nothing says where tokens are kept. Give a [`Builder::data_dir`], or ask for
    /// [`Builder::in_memory`].
    #[error("neither a data directory nor in-memory storage was chosen")]
    StorageNotChosen,
    /// The data directory cannot be used. See there what to do.
    #[error("the data directory cannot be used")]
    Storage(#[from] StorageError),
    /// The server cannot take its place in the cluster. See there what to do.
    #[cfg(feature = "cluster")]
    #[error("the server cannot be a node of the cluster")]
    Cluster(#[from] ClusterError),
    /// The thread that writes the state cannot be had. See what the system says.
    #[error("the state cannot be written")]
    Writer(#[source] std::io::Error),
    /// Nothing says who may connect. Give a client token, or ask for no authentication.
    #[error("neither a client token nor running without authentication was chosen")]
    AuthenticationNotChosen,
    /// A client token and no authentication exclude each other. Decide for one.
    #[error("a client token and running without authentication exclude each other")]
    AuthenticationContradicts,
    /// The empty secret is not a client token. Use [`Builder::no_auth`] if that is meant.
    #[error("an empty client token accepts everybody")]
    EmptySecret,
    /// Without authentication everybody who reaches the port can release every lock. Listen on
    /// a loopback address, or give a client token.
    #[error("running without authentication is refused on {address}: it is not a loopback address")]
    NoAuthOffLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address is in use or not one of this machine. Choose another one.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Whoever reaches the admin listener can end every hold. Let it listen on a loopback address,
    /// or give it a token.
    #[error(
        "an admin listener without a token is refused on {address}: it is not a loopback address"
    )]
    AdminOffLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address of the admin listener is in use or not one of this machine. Choose another one.
    #[error("the admin listener cannot listen on {address}")]
    AdminListen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system gives no random bytes, so neither a domain nor a challenge can be made.
    #[error("the system has no random bytes")]
    Random(#[source] getrandom::Error),
    /// No database can store such a token, so every fence would be refused. Give a lower one.
    #[error(
        "the first token {token} is above {HIGHEST_STORED}, the highest one a database can store"
    )]
    FirstTokenOutOfRange {
        /// The token that was given.
        token: FencingToken,
    },
    /// The system clock stands before 1970. Set it: tokens start from it.
    #[error("the system clock stands before 1970")]
    SystemClock,
}

/// What the databases can store, see the fencing crate.
const HIGHEST_STORED: FencingToken =
    FencingToken::new(i64::MAX.unsigned_abs()).expect("it is not zero");
/// The port that clients try when they are told none.
const DEFAULT_PORT: u16 = 5225;
