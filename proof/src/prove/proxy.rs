//! A link to the lock server that can go silent, as a network does: nothing is closed.

use std::io;
use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::relay::Relay;

/// A proxy on a free port of the loopback interface. Dropping it closes its connections.
pub(super) struct Proxy {
    relay: Relay,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Passing,
    Partitioned,
    /// Everything is closed.
    Gone,
}

impl Proxy {
    pub(super) async fn start(server: SocketAddr) -> io::Result<Self> {
        let state = watch::Sender::new(State::Passing);
        let receiver = state.subscribe();
        // A connection that comes during the partition leads nowhere too.
        let relay = Relay::start(server.to_string(), move |client, server| {
            pass(client, server, receiver.clone())
        });
        Ok(Self {
            relay: relay.await?,
            state,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.relay.address()
    }

    /// From now on nothing passes, in either direction.
    pub(super) fn partition(&self) {
        self.state.send_replace(State::Partitioned);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.send_replace(State::Gone);
    }
}

/// Passes bytes until one side closes, or nothing passes any more. During a partition both ends stay
/// open.
async fn pass(mut client: TcpStream, mut server: TcpStream, mut state: watch::Receiver<State>) {
    tokio::select! {
        biased;
        _ = state.wait_for(|state| *state != State::Passing) => {}
        _ = copy_bidirectional(&mut client, &mut server) => return,
    }
    let _ = state.wait_for(|state| *state == State::Gone).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_partition_lets_nothing_pass_and_closes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"a").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'a');
        server.write_all(b"b").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'b');

        proxy.partition();
        client.write_all(b"c").await.unwrap();
        server.write_all(b"d").await.unwrap();
        // Nothing tells that a byte will never come but time.
        let silence = Duration::from_millis(50);
        assert!(timeout(silence, server.read_u8()).await.is_err());
        assert!(timeout(silence, client.read_u8()).await.is_err());

        drop(proxy);
        assert!(client.read_u8().await.is_err(), "closed with the proxy");
    }
}
