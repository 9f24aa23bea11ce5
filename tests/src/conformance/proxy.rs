//! A TCP proxy that can swallow the server's answers and cut the connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Requests pass, answers do not.
    Swallow,
    /// Everything is closed.
    Cut,
}

/// A proxy on a free port of the loopback interface.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy for the server at `target`, a host and a port.
    pub(super) async fn start(target: String) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = Arc::new(watch::Sender::new(Mode::Forward));
        let sender = mode.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&target).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pump(from_client, to_server, sender.subscribe(), false));
                tokio::spawn(pump(from_server, to_client, sender.subscribe(), true));
            }
        });
        Ok(Self {
            address,
            mode,
            accepting,
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on no answer reaches a client.
    pub(super) fn swallow_answers(&self) {
        self.mode.send_replace(Mode::Swallow);
    }

    /// Closes all connections.
    pub(super) fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.mode.send_replace(Mode::Cut);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    answers: bool,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => return,
        };
        let Ok(count @ 1..) = read else { return };
        if answers && *mode.borrow() == Mode::Swallow {
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
