//! The way from clients to a server, which can be closed.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Passes everything on. While it is closed, connections end and new ones are not served.
pub(crate) struct Road {
    pub(crate) address: SocketAddr,
    closed: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Road {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (closed, is_closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, server, is_closed.clone()));
            }
        });
        Self {
            address,
            closed,
            _tasks: tasks,
        }
    }

    pub(crate) fn close(&self, is_closed: bool) {
        self.closed.send_replace(is_closed);
    }
}

async fn pass(mut client: TcpStream, server: SocketAddr, mut closed: watch::Receiver<bool>) {
    let bytes = async {
        let Ok(mut server) = TcpStream::connect(server).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    };
    tokio::select! {
        biased;
        _ = closed.wait_for(|closed| *closed) => {}
        () = bytes => {}
    }
}
