//! A TCP proxy that delays the server's answers. One that cuts connections is `crate::wire`.

use std::io;
use std::time::Duration;

use futures_util::future::join;
use highwater_proof::relay::{Relay, ServerUrl};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// A proxy on a free port of the loopback interface. Dropping it closes all connections.
#[derive(Debug)]
pub(super) struct Proxy {
    _relay: Relay,
    closed: watch::Sender<bool>,
}

impl Proxy {
    /// A proxy for the server of this URL, which holds every answer back for `delay`; gives the
    /// URL that leads through it.
    pub(super) async fn start(url: &str, delay: Duration) -> io::Result<(Self, String)> {
        let url = ServerUrl::new(url);
        let closed = watch::Sender::new(false);
        let receiver = closed.subscribe();
        let relay = Relay::start(url.server().to_owned(), move |client, server| {
            let mut closed = receiver.clone();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            async move {
                tokio::select! {
                    _ = closed.wait_for(|closed| *closed) => {}
                    ((), ()) = join(
                        pump(from_client, to_server, Duration::ZERO),
                        pump(from_server, to_client, delay),
                    ) => {}
                }
            }
        });
        let relay = relay.await?;
        let through = url.at(relay.address());
        Ok((
            Self {
                _relay: relay,
                closed,
            },
            through,
        ))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.closed.send_replace(true);
    }
}

/// Passes bytes on, each time after a while.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
