//! A TCP proxy that delays the server's answers. One that cuts connections is `crate::wire`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    /// Everything is closed.
    Cut,
}

/// A proxy on a free port of the loopback interface.
#[derive(Debug)]
pub(super) struct Proxy {
    mode: Arc<watch::Sender<Mode>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy for the server of this URL, which holds every answer back for `delay`; gives the
    /// URL that leads through it.
    pub(super) async fn start(url: &str, delay: Duration) -> io::Result<(Self, String)> {
        let start = url.find("://").map_or(0, |at| at + 3);
        let start = url[start..].find('@').map_or(start, |at| start + at + 1);
        let end = url[start..].find('/').map_or(url.len(), |at| start + at);
        let target = url[start..end].to_owned();
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
                tokio::spawn(pump(from_client, to_server, sender.subscribe(), None));
                tokio::spawn(pump(
                    from_server,
                    to_client,
                    sender.subscribe(),
                    Some(delay),
                ));
            }
        });
        let url = format!("{}{address}{}", &url[..start], &url[end..]);
        Ok((Self { mode, accepting }, url))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.mode.send_replace(Mode::Cut);
    }
}

/// Passes bytes on; what is delayed are answers.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    delay: Option<Duration>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = mode.wait_for(|mode| *mode == Mode::Cut) => return,
        };
        let Ok(count @ 1..) = read else { return };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
            if *mode.borrow() == Mode::Cut {
                return;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
