//! What a server needs to know before it starts, and why it may refuse to.

use std::net::SocketAddr;
use std::sync::Arc;

use highwater_lock::FencingToken;
use highwater_protocol::Secret;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::admin::Admin;
use crate::connection::Shared;
use crate::desk::Desk;
use crate::limits::Limits;
use crate::metrics::Traffic;
use crate::server::Server;
use crate::system;
use crate::throttle::Throttle;

/// Configures a [`Server`].
///
/// Two things have no default, because neither choice is right for everybody: where tokens are
/// kept ([`Builder::in_memory`] is the only way yet) and who may connect
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
}

/// Where the server remembers what must survive it.
#[derive(Clone, Copy, Debug)]
enum Storage {
    /// Nowhere: every start is a new domain.
    Memory,
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
        }
    }

    /// Starts the tokens at this number at least.
    ///
    /// For databases whose marks are higher than this start's tokens would be, because the clock of
    /// an earlier host was ahead or another lock service counted further: `highwater fence floor`
    /// shows how high they are. The start is a new domain all the same, so the marks still have to
    /// be adopted, by an operator or by writers that adopt higher tokens. An in-memory server goes
    /// on from the system clock if that is further: its tokens must not go back either.
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
        let secrets = self.secrets()?;
        if let Some(token) = self.first_token.filter(|token| *token > HIGHEST_STORED) {
            return Err(StartError::FirstTokenOutOfRange { token });
        }
        let Some(Storage::Memory) = self.storage else {
            return Err(StartError::StorageNotChosen);
        };
        let listen_error = |source| StartError::Listen {
            address: self.listen,
            source,
        };
        let listener = TcpListener::bind(self.listen).await.map_err(listen_error)?;
        let local_addr = listener.local_addr().map_err(listen_error)?;
        let admin = match self.admin {
            Some(admin) => Some(admin.bind().await?),
            None => None,
        };
        let domain = system::new_domain().map_err(StartError::Random)?;
        // A client that takes all starts for one domain compares tokens across them: they must
        // go on upwards, and this clock is the only memory of earlier starts.
        let of_clock = system::unix_micros().and_then(FencingToken::new);
        let first_token = of_clock.max(self.first_token);
        let first_token = first_token.ok_or(StartError::SystemClock)?;
        let desk = Desk::new(domain, first_token, self.limits.locks.clone());
        tracing::info!(
            %local_addr, %domain, %first_token,
            tls = self.tls.is_some(), authentication = !self.no_auth,
            "lock server started in memory: this start is a domain of its own",
        );
        let shared = Shared {
            desk,
            limits: self.limits,
            secrets,
            tls: self.tls.map(TlsAcceptor::from),
            complaints: Throttle::default(),
            traffic: Traffic::new(),
        };
        Ok(Server::run(listener, local_addr, shared, admin))
    }

    fn secrets(&self) -> Result<Vec<Secret>, StartError> {
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

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Nothing says where tokens are kept. Ask for [`Builder::in_memory`].
    #[error("no storage was chosen: durable storage is not available yet, ask for in-memory")]
    StorageNotChosen,
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
