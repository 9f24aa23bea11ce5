//! The listener for operators and their programs: health, metrics, locks, force-release.
//!
//! Plain HTTP/1.1, apart from the port of the clients and with bounds of its own, so that whatever
//! happens here costs the locks nothing. What it tells and does is in [`routes`] and [`locks`]; who
//! may ask is in [`access`].

mod access;
mod connection;
mod leaders;
mod locks;
mod patience;
mod problem;
mod routes;
mod target;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use self::token::{AdminToken, AdminTokenError};

use self::access::Access;
pub(crate) use self::connection::Site;
use crate::builder::StartError;
use crate::connection::Shared;
use crate::swap::Swap;
use crate::system;

/// Where the admin listener is, and whom it lets in.
///
/// Without a token it is there for every program of the same machine, so it listens on a loopback
/// address only. Whoever is let in can end every hold.
///
/// ```
/// # use highwater_server::{Admin, Server};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder()
///     .in_memory()
///     .listen("127.0.0.1:0".parse()?)
///     .no_auth()
///     .admin(Admin::on("127.0.0.1:0".parse()?))
///     .start()
///     .await?;
/// println!("http://{}/metrics", server.admin_addr().expect("it was asked for"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it has to be given to a server's builder"]
pub struct Admin {
    listen: SocketAddr,
    tokens: Vec<AdminToken>,
    tls: Option<Arc<ServerConfig>>,
    open_probes: bool,
    limits: AdminLimits,
}

impl Admin {
    /// An admin listener on this address; port 0 takes a free one.
    pub fn on(listen: SocketAddr) -> Self {
        Self {
            listen,
            tokens: Vec::new(),
            tls: None,
            open_probes: false,
            limits: AdminLimits::default(),
        }
    }

    /// Lets in who shows this token, and nobody without one any more. Called again, it adds
    /// another one that is valid too.
    pub fn token(mut self, token: AdminToken) -> Self {
        self.tokens.push(token);
        self
    }

    /// Encrypts every connection; see [`tls_from_pem_files`](crate::tls_from_pem_files). Without it
    /// a token can be read on its way.
    pub fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Answers `/healthz` and `/readyz` without a token too, for probes that have none.
    pub fn open_probes(mut self) -> Self {
        self.open_probes = true;
        self
    }

    /// Replaces the default limits.
    pub fn limits(mut self, limits: AdminLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether everybody who reaches the address may be an operator.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        match self.listen.ip().to_canonical().is_loopback() || !self.tokens.is_empty() {
            true => Ok(()),
            false => Err(StartError::AdminOffLoopback {
                address: self.listen,
            }),
        }
    }

    /// Takes the address.
    pub(crate) async fn bind(self) -> Result<Bound, StartError> {
        self.check()?;
        let unusable = |source| StartError::AdminListen {
            address: self.listen,
            source,
        };
        let listener = TcpListener::bind(self.listen).await.map_err(unusable)?;
        let local_addr = listener.local_addr().map_err(unusable)?;
        Ok(Bound {
            admin: self,
            listener,
            local_addr,
        })
    }
}

/// What one admin listener accepts before it says no.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdminLimits {
    /// Open connections. One more is closed at once.
    pub connections: usize,
    /// The time for the head of a request, and as much again for its body; also how long a
    /// connection may wait for its next request. For the first request of a connection, and for
    /// TLS before it, at most five seconds.
    pub request_time: Duration,
    /// How long a reader may take nothing at all while an answer waits for it.
    pub stall_time: Duration,
    /// How long a connection may live. The answer that is on its way then still gets
    /// [`stall_time`](AdminLimits::stall_time).
    pub connection_time: Duration,
    /// The most locks in one answer of the list; at least one.
    pub page: usize,
}

impl Default for AdminLimits {
    fn default() -> Self {
        Self {
            connections: 32,
            request_time: Duration::from_secs(30),
            stall_time: Duration::from_secs(10),
            connection_time: Duration::from_secs(300),
            page: 1_000,
        }
    }
}

/// An admin listener that has its address and serves nobody yet.
#[derive(Debug)]
pub(crate) struct Bound {
    admin: Admin,
    listener: TcpListener,
    pub(crate) local_addr: SocketAddr,
}

impl Bound {
    /// Serves operators, to the last moment of the server. Dropping the future ends everything.
    pub(crate) fn open(
        self,
        shared: Arc<Shared>,
    ) -> (Arc<Site>, impl Future<Output = ()> + Send + 'static) {
        let Admin {
            tokens,
            tls,
            open_probes,
            limits,
            ..
        } = self.admin;
        let site = Arc::new(Site {
            shared,
            access: Access::new(tokens, open_probes),
            tls: tls.map(Swap::new),
            limits,
        });
        (Arc::clone(&site), accept(self.listener, site))
    }
}

async fn accept(listener: TcpListener, site: Arc<Site>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) if connections.len() < site.limits.connections => {
                    connections.spawn(connection::serve(Arc::clone(&site), tcp, peer));
                }
                Ok((_, peer)) => {
                    site.complain(peer, &"too many connections");
                }
                Err(error) => {
                    tracing::warn!(%error, "an admin connection was not accepted");
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                }
            }
        }
    }
}

impl Site {
    /// Writes a line about a peer, unless there were too many lately.
    fn complain(&self, peer: SocketAddr, what: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.shared.complaints.admit(system::now()) {
            tracing::warn!(%peer, reason = %what, suppressed, "admin request refused");
        }
    }
}

/// Out of file descriptors: trying again at once would only burn the processor.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);
