//! Where the lock service is.

use std::time::Duration;

use clap::Args;
use highwater_client::{Builder, Client, ConnectError, Domain, TlsError};

use crate::access::{ClientToken, Tls, TokenError};

/// How to reach the lock service.
///
/// The client token can also come from the environment variable HIGHWATER_CLIENT_TOKEN. It cannot be
/// given as an argument, because other users of the machine can read those.
#[derive(Args)]
pub(crate) struct Service {
    #[command(flatten)]
    addresses: Addresses,
    #[command(flatten)]
    token: ClientToken,
    #[command(flatten)]
    tls: Tls,
}

impl Service {
    /// Connects, within so long.
    pub(crate) async fn connect(&self, time: Duration) -> Result<Client, ServiceError> {
        let mut builder = self.addresses.client()?.connect_time(time);
        if let Some(secret) = self.token.secret()? {
            builder = builder.token(secret);
        }
        if let Some(tls) = self.tls.config()? {
            builder = builder.tls(tls);
        }
        let connected = builder.connect().await;
        connected.map_err(|source| ServiceError::Connect {
            server: self.addresses.server.join(", "),
            source,
        })
    }
}

/// Where it listens for clients: one server, or the nodes of a cluster.
#[derive(Args)]
pub(crate) struct Addresses {
    /// The lock server. For a cluster the addresses of all its nodes for clients, in the order of their
    /// slots, with commas between them.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "HIGHWATER_SERVER",
        default_value = "127.0.0.1:5225",
        value_delimiter = ','
    )]
    server: Vec<String>,
    /// The identity of the cluster: 64 hexadecimal digits, as `highwater cluster new` has printed
    /// them. Without it --server is a single server.
    #[arg(long, value_name = "HEX", env = "HIGHWATER_CLUSTER_IDENTITY")]
    identity: Option<Domain>,
}

impl Addresses {
    fn client(&self) -> Result<Builder, ServiceError> {
        let servers: Vec<&str> = self.server.iter().map(|server| server.trim()).collect();
        match (&*servers, self.identity) {
            (servers, Some(identity)) => Ok(Client::cluster(servers.iter(), identity)),
            ([server], None) => Ok(Client::builder(server)),
            (servers, None) => Err(ServiceError::NoIdentity {
                servers: servers.len(),
            }),
        }
    }
}

/// Why the lock service cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("{servers} addresses are those of a cluster: its --identity is missing")]
    NoIdentity { servers: usize },
    #[error("TLS cannot be turned on")]
    Tls(#[from] TlsError),
    #[error("no connection to the lock server at {server}")]
    Connect {
        server: String,
        source: ConnectError,
    },
}

impl ServiceError {
    /// Whether the options are wrong, whatever the server may be.
    pub(crate) fn is_usage(&self) -> bool {
        let of_connect = |error: &ConnectError| {
            let address = matches!(error, ConnectError::InvalidAddress { .. });
            address || matches!(error, ConnectError::InvalidCluster { .. })
        };
        match self {
            Self::NoIdentity { .. } => true,
            Self::Connect { source, .. } => of_connect(source),
            Self::Token(_) | Self::Tls(_) => false,
        }
    }
}
