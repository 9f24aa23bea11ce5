//! The way from one process to the lock server, which can be cut.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Carries bytes to the server and back. While it is cut, connections stay open and nothing gets
/// through; what was sent arrives when it is whole again, as late as that.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    cut: watch::Sender<bool>,
    // Ends with the proxy.
    _carriers: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let (cut, is_cut) = watch::channel(false);
        let mut carriers = JoinSet::new();
        carriers.spawn(accept(listener, server, is_cut));
        Ok(Self {
            address,
            cut,
            _carriers: carriers,
        })
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.cut.send_replace(is_cut);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, is_cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let is_cut = is_cut.clone();
        connections.spawn(async move {
            // However a connection ends, its process opens another one.
            let _ = connect(client, server, is_cut).await;
        });
    }
}

async fn connect(
    client: TcpStream,
    server: SocketAddr,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    whole(&mut is_cut).await?;
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        ended = carry(from_client, to_server, is_cut.clone()) => ended,
        ended = carry(from_server, to_client, is_cut) => ended,
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes).await?;
        whole(&mut is_cut).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..read]).await?;
    }
}

async fn whole(is_cut: &mut watch::Receiver<bool>) -> io::Result<()> {
    let whole = is_cut.wait_for(|is_cut| !is_cut).await;
    whole.map(drop).map_err(io::Error::other)
}
