//! Proxies between nodes, which keep what passes for a while: there is no kernel option for that
//! everywhere.
//!
//! Each node has one for each place, in its own namespace and on its own loopback, so packets of a
//! node still come from that node, and cutting it off works as without them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Failure;
use crate::network::{PLACES, address};

/// Where the proxy of a node's own for the node in this slot listens.
pub(crate) const fn local(slot: u8) -> SocketAddr {
    SocketAddr::new(
        std::net::IpAddr::V4(Ipv4Addr::LOCALHOST),
        FIRST_PORT + slot as u16,
    )
}

/// Runs the proxies of one node, until the process is ended. The file has the milliseconds for which
/// everything is kept in each direction; nothing is kept if it is not there.
pub(crate) async fn run(file: &Path) -> Result<(), Failure> {
    let delay = Arc::new(AtomicU64::new(0));
    for slot in 0..PLACES {
        let listener = TcpListener::bind(local(slot)).await?;
        let delay = Arc::clone(&delay);
        tokio::spawn(async move {
            let target = SocketAddr::from((address(slot), PEERS));
            while let Ok((caller, _)) = listener.accept().await {
                tokio::spawn(pass(caller, target, Arc::clone(&delay)));
            }
        });
    }
    let file: PathBuf = file.to_owned();
    loop {
        let text = tokio::fs::read_to_string(&file).await.unwrap_or_default();
        delay.store(text.trim().parse().unwrap_or(0), Ordering::Relaxed);
        sleep(LOOK).await;
    }
}

async fn pass(caller: TcpStream, target: SocketAddr, delay: Arc<AtomicU64>) {
    let Ok(Ok(node)) = timeout(CONNECT, TcpStream::connect(target)).await else {
        return;
    };
    let _ = (caller.set_nodelay(true), node.set_nodelay(true));
    let (from_caller, to_caller) = caller.into_split();
    let (from_node, to_node) = node.into_split();
    // When one direction has ended, so has the connection.
    tokio::select! {
        () = keep(from_caller, to_node, &delay) => {}
        () = keep(from_node, to_caller, &delay) => {}
    }
}

/// Passes on what comes, in its order, each piece so long after it came.
async fn keep(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: &AtomicU64,
) {
    let (put, mut kept) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let take = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
            let piece = (Instant::now() + delay, buffer[..count].to_vec());
            if put.send(piece).await.is_err() {
                return;
            }
        }
    };
    let give = async move {
        while let Some((due, piece)) = kept.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(take, give);
}

const FIRST_PORT: u16 = 7_000;
/// Where nodes listen for each other.
pub(crate) const PEERS: u16 = 5_227;
const LOOK: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_secs(2);
/// How many pieces may be on their way in one direction.
const PIECES: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn everything_comes_later_and_in_its_order() {
        let (mut near, from) = tokio::io::duplex(64);
        let (to, mut far) = tokio::io::duplex(64);
        let delay = Arc::new(AtomicU64::new(80));
        let (kept, begun) = (Arc::clone(&delay), Instant::now());
        tokio::spawn(async move { keep(from, to, &kept).await });
        near.write_all(b"one").await.unwrap();
        let mut read = [0; 3];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(
            (&read, begun.elapsed()),
            (b"one", Duration::from_millis(80))
        );
        near.write_all(b"two").await.unwrap();
        tokio::task::yield_now().await;
        delay.store(0, Ordering::Relaxed);
        near.write_all(b"abc").await.unwrap();
        let mut read = [0; 6];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(
            (&read, begun.elapsed()),
            (b"twoabc", Duration::from_millis(160))
        );
        drop(near);
        assert_eq!(far.read(&mut read).await.unwrap(), 0);
    }
}
