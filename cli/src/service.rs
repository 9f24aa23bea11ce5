//! Where the lock service is, and how a command proves that it may use it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use highwater_client::{Client, ClientTls, ConnectError, Secret, SecretError, TlsError};

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
    /// A file that holds the client token.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CLIENT_TOKEN_FILE")]
    client_token_file: Option<PathBuf>,
    /// Encrypt, and trust the authorities in this PEM file.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The name that the server's certificate must have [default: the host of --server].
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl Service {
    /// Connects, within so long.
    pub(crate) async fn connect(&self, time: Duration) -> Result<Client, ServiceError> {
        let mut builder = Client::builder(&self.server).connect_time(time);
        if let Some(secret) = self.secret()? {
            builder = builder.token(secret);
        }
        if let Some(path) = &self.tls_ca {
            let mut tls = ClientTls::from_ca_file(path)?;
            if let Some(name) = &self.tls_name {
                tls = tls.server_name(name);
            }
            builder = builder.tls(tls);
        }
        let connected = builder.connect().await;
        connected.map_err(|source| ServiceError::Connect {
            server: self.server.clone(),
            source,
        })
    }

    /// The token; none for a server that lets everybody in.
    fn secret(&self) -> Result<Option<Secret>, ServiceError> {
        let variable = std::env::var_os(TOKEN_VARIABLE).filter(|value| !value.is_empty());
        match (&self.client_token_file, variable) {
            (Some(_), Some(_)) => Err(ServiceError::TwoTokens),
            (Some(path), None) => secret_from_file(path).map(Some),
            (None, Some(value)) => Secret::from_file_content(value.into_encoded_bytes())
                .map(Some)
                .map_err(ServiceError::TokenVariable),
            (None, None) => Ok(None),
        }
    }
}

fn secret_from_file(path: &Path) -> Result<Secret, ServiceError> {
    let unreadable = |source| ServiceError::TokenFile {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut content = Vec::new();
    file.take(MOST_TOKEN_FILE_BYTES)
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    Secret::from_file_content(content).map_err(|source| ServiceError::Token {
        path: path.to_owned(),
        source,
    })
}

/// Why the lock service cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("{TOKEN_VARIABLE} is set, and --client-token-file is given too: decide for one")]
    TwoTokens,
    #[error("{TOKEN_VARIABLE} holds no usable client token")]
    TokenVariable(#[source] SecretError),
    #[error("{} cannot be read", path.display())]
    TokenFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} holds no usable client token", path.display())]
    Token { path: PathBuf, source: SecretError },
    #[error("TLS cannot be turned on")]
    Tls(#[from] TlsError),
    #[error("no connection to the lock server at {server}")]
    Connect {
        server: String,
        source: ConnectError,
    },
}

pub(crate) const TOKEN_VARIABLE: &str = "HIGHWATER_CLIENT_TOKEN";
/// Far more than the longest token, and not enough to fill the memory with a wrong file.
const MOST_TOKEN_FILE_BYTES: u64 = 64 * 1024;
