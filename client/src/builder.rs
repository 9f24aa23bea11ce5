//! What a client needs to know before it connects.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use highwater_lock::Domain;
use highwater_protocol::Secret;
use highwater_protocol::handshake::{Node, Slot};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::ConnectError;
use crate::client::Client;
use crate::setup::{Dial, Stream, Target};
use crate::system;
use crate::tls::ClientTls;

/// Configures a [`Client`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    addresses: Vec<String>,
    /// Of a cluster; none for a single server.
    identity: Option<Domain>,
    secret: Secret,
    tls: Option<ClientTls>,
    connect_time: Duration,
    dial: Option<Dial>,
}

impl Builder {
    pub(crate) fn new(address: String) -> Self {
        Self {
            addresses: vec![address],
            identity: None,
            secret: Secret::no_auth(),
            tls: None,
            connect_time: CONNECT_TIME,
            dial: None,
        }
    }

    pub(crate) fn cluster(addresses: Vec<String>, identity: Domain) -> Self {
        Self {
            addresses,
            identity: Some(identity),
            ..Self::new(String::new())
        }
    }

    /// The secret that the server knows this client by. Without one the server must be running
    /// without authentication.
    ///
    /// The secret itself never crosses the wire. Every client that has it can release every lock.
    pub fn token(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// Encrypts the connections.
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How long [`Builder::connect`] tries to reach the server. The default is 10 s.
    pub fn connect_time(mut self, time: Duration) -> Self {
        self.connect_time = time;
        self
    }

    /// Opens the byte streams under the connections with this function, and not over TCP: through
    /// a tunnel, a Unix socket, or memory.
    ///
    /// It is called for every connection, again and again while it fails, and has 10 s each time. A panic,
    /// of it or of a stream that it gave, is a connection that failed or ended.
    /// Not for a cluster, in which each node has an address of its own.
    /// The address is then only a name, in messages and for the check of the certificate. What it
    /// gives should not hold back small writes.
    pub fn dialer<D, F, S>(mut self, dial: D) -> Self
    where
        D: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.dial = Some(Arc::new(move || {
            let stream = dial();
            Box::pin(async move { Ok(Box::new(stream.await?) as Box<dyn Stream>) })
        }));
        self
    }

    /// Connects, in the current Tokio runtime; gives the client as soon as one connection is
    /// open.
    ///
    /// A server that is not there yet is tried again until the time is over. Dropping the future
    /// ends the attempt.
    ///
    /// # Errors
    /// The configuration is wrong, or the server cannot be reached in time.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let until = system::after(self.connect_time);
        let nodes = self.addresses.len();
        if self.identity.is_some() && (!matches!(nodes, 3 | 5) || self.dial.is_some()) {
            return Err(ConnectError::InvalidCluster { nodes });
        }
        let mut targets = Vec::with_capacity(nodes);
        for (index, address) in self.addresses.iter().enumerate() {
            let slot = u8::try_from(index).ok().and_then(Slot::new);
            let node = match (self.identity, slot) {
                (Some(identity), Some(slot)) => Node::Cluster {
                    identity: *identity.as_bytes(),
                    slot,
                },
                _ => Node::Single,
            };
            targets.push(self.target(address, node)?);
        }
        Client::start(targets, until).await
    }

    fn target(&self, address: &str, node: Node) -> Result<Target, ConnectError> {
        let host = host(address).ok_or_else(|| ConnectError::InvalidAddress {
            address: address.to_owned(),
        })?;
        let tls = match &self.tls {
            None => None,
            Some(tls) => {
                let name = tls.server_name.as_deref().unwrap_or(host);
                let name = ServerName::try_from(name.to_owned()).map_err(|_| {
                    ConnectError::InvalidServerName {
                        name: name.to_owned(),
                    }
                })?;
                Some((TlsConnector::from(tls.config.clone()), name))
            }
        };
        Ok(Target {
            node,
            secret: self.secret.clone(),
            tls,
            dial: self.dial.clone(),
            address: address.to_owned(),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("addresses", &self.addresses)
            .field("tls", &self.tls)
            .field("connect_time", &self.connect_time)
            .finish_non_exhaustive()
    }
}

/// How long to try to connect, if nothing else is said.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(10);

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port() {
        assert_eq!(host("localhost:5225"), Some("localhost"));
        assert_eq!(host("127.0.0.1:1"), Some("127.0.0.1"));
        assert_eq!(host("[::1]:5225"), Some("::1"));
        for wrong in [
            "",
            "localhost",
            ":5225",
            "localhost:",
            "localhost:0",
            "localhost:65536",
            "::1:5225",
            "[::1:5225",
        ] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
    }
}
