//! A TCP relay in front of a server: what the proxies of the suites and of the proof have in common.
//!
//! It accepts on a free port of the loopback interface and connects to the server; what happens to the
//! bytes is up to whoever starts it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// An open relay. Dropping it stops accepting; connections go on until what serves them ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Relays to `server`; `serve` is called with both ends of each connection, the client's first. A
    /// connection that the server does not take is closed.
    ///
    /// # Errors
    /// There is no port to be had.
    pub async fn start<F>(
        server: String,
        serve: impl Fn(TcpStream, TcpStream) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&server).await {
                    // Whoever counts or delays messages wants them as they were sent.
                    let _ = client.set_nodelay(true);
                    let _ = server.set_nodelay(true);
                    tokio::spawn(serve(client, server));
                }
            }
        });
        Ok(Self { address, accepting })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A URL that names a server, taken apart at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerUrl<'u> {
    before: &'u str,
    server: &'u str,
    behind: &'u str,
}

impl<'u> ServerUrl<'u> {
    /// Takes a URL apart. Without a scheme or a user, the server comes first.
    pub fn new(url: &'u str) -> Self {
        let start = url.find("://").map_or(0, |at| at + 3);
        let authority = url[start..]
            .find(['/', '?'])
            .map_or(url.len(), |at| start + at);
        // A password may have an `@`.
        let start = url[start..authority]
            .rfind('@')
            .map_or(start, |at| start + at + 1);
        Self {
            before: &url[..start],
            server: &url[start..authority],
            behind: &url[authority..],
        }
    }

    /// The host and the port.
    pub fn server(&self) -> &'u str {
        self.server
    }

    /// The URL with another server.
    pub fn at(&self, address: SocketAddr) -> String {
        format!("{}{address}{}", self.before, self.behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_at_its_server() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        for (url, server, expected) in [
            (
                "mysql://u:p@h:1/d?x=/@",
                "h:1",
                "mysql://u:p@127.0.0.1:9/d?x=/@",
            ),
            ("postgres://h:1", "h:1", "postgres://127.0.0.1:9"),
            (
                "postgres://u:a@b@h:1?x",
                "h:1",
                "postgres://u:a@b@127.0.0.1:9?x",
            ),
        ] {
            let taken = ServerUrl::new(url);
            assert_eq!(taken.server(), server);
            assert_eq!(taken.at(address), expected);
        }
    }
}
