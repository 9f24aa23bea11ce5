//! Where the lock service is.

use std::time::Duration;

use clap::Args;
use highwater_client::{Client, ConnectError, TlsError};

use crate::access::{ClientToken, Tls, TokenError};

/// How to reach the lock service.
///
/// The client token can also come from the environment variable HIGHWATER_CLIENT_TOKEN. It cannot be
/// given as an argument, because other users of the machine can read those.
#[derive(Args)]
pub(crate) struct Service {
    /// The lock server.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "HIGHWATER_SERVER",
        default_value = "127.0.0.1:5225"
    )]
    server: String,
    #[command(flatten)]
    token: ClientToken,
    #[command(flatten)]
    tls: Tls,
}

impl Service {
    /// Connects, within so long.
    pub(crate) async fn connect(&self, time: Duration) -> Result<Client, ServiceError> {
        let mut builder = Client::builder(&self.server).connect_time(time);
        if let Some(secret) = self.token.secret()? {
            builder = builder.token(secret);
        }
        if let Some(tls) = self.tls.config()? {
            builder = builder.tls(tls);
        }
        let connected = builder.connect().await;
        connected.map_err(|source| ServiceError::Connect {
            server: self.server.clone(),
            source,
        })
    }
}

/// Why the lock service cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("TLS cannot be turned on")]
    Tls(#[from] TlsError),
    #[error("no connection to the lock server at {server}")]
    Connect {
        server: String,
        source: ConnectError,
    },
}
