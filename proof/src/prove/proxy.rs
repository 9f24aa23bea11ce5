//! A link to the lock server that can go silent, as a network does: nothing is closed.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy on a free port of the loopback interface. Dropping it closes its connections.
pub(super) struct Proxy {
    address: SocketAddr,
    partitioned: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(super) async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let partitioned = watch::Sender::new(false);
        let state = partitioned.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut pumps = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                // A connection that comes during the partition leads nowhere too.
                let Ok(server) = TcpStream::connect(server).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                pumps.spawn(pump(from_client, to_server, state.clone()));
                pumps.spawn(pump(from_server, to_client, state.clone()));
            }
        });
        Ok(Self {
            address,
            partitioned,
            _tasks: tasks,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes, in either direction.
    pub(super) fn partition(&self) {
        self.partitioned.send_replace(true);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut partitioned: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 4096];
    loop {
        let read = tokio::select! {
            biased;
            _ = partitioned.wait_for(|partitioned| *partitioned) => break,
            read = from.read(&mut buffer) => read,
        };
        match read {
            Ok(length @ 1..) if to.write_all(&buffer[..length]).await.is_ok() => {}
            _ => return,
        }
    }
    // Both ends stay open until the proxy is dropped, which ends this task.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
