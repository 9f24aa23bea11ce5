//! What stands between nodes: a proxy in front of each one that knows who calls, and can hold back
//! what one node says to another. Nothing is lost: it arrives when it is let through again, as it
//! does after a break in a network. It can have everything take its time, too.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// What stands in the way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Obstacles {
    /// Pairs of slots, from and to, between which nothing passes.
    pub(crate) cuts: BTreeSet<(u8, u8)>,
    /// How long everything takes.
    pub(crate) delay: Duration,
}

pub(crate) type Cuts = watch::Sender<Obstacles>;

type Target = Arc<Mutex<Option<SocketAddr>>>;

/// In the place of the one that calls: everything that is part of a snapshot.
pub(crate) const SNAPSHOTS: u8 = 200;
const SNAPSHOT: u8 = 4;
const REPLY: u8 = 0x80;

/// How many parts of snapshots a node was sent, and has taken.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) sent: AtomicU32,
    pub(crate) taken: AtomicU32,
}

/// A proxy in front of one node.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) parts: Arc<Parts>,
    target: Target,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Passes everything on, under an address that stays when the node comes back.
    pub(crate) async fn plain() -> Self {
        Self::run(|listener, target| async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let Some(address) = *target.lock().unwrap() else {
                    continue;
                };
                connections.spawn(async move {
                    if let Ok(mut node) = TcpStream::connect(address).await {
                        let _ = (client.set_nodelay(true), node.set_nodelay(true));
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
                    }
                });
            }
        })
        .await
    }

    /// In front of a node for the other nodes.
    pub(crate) async fn for_peers(slot: u8, cuts: &Cuts) -> Self {
        let cuts = cuts.subscribe();
        let parts = Arc::new(Parts::default());
        let counted = Arc::clone(&parts);
        let mut proxy =
            Self::run(move |listener, target| accept(listener, slot, target, cuts, counted)).await;
        proxy.parts = parts;
        proxy
    }

    async fn run<F>(serve: impl FnOnce(TcpListener, Target) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(None));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&target)));
        Self {
            address,
            parts: Arc::default(),
            target,
            _tasks: tasks,
        }
    }

    /// Where the node is now.
    pub(crate) fn lead_to(&self, address: Option<SocketAddr>) {
        *self.target.lock().unwrap() = address;
    }
}

async fn accept(
    listener: TcpListener,
    slot: u8,
    target: Target,
    cuts: watch::Receiver<Obstacles>,
    parts: Arc<Parts>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (caller, _) = listener.accept().await.unwrap();
        let Some(address) = *target.lock().unwrap() else {
            continue;
        };
        let (cuts, parts) = (cuts.clone(), Arc::clone(&parts));
        connections.spawn(connect(caller, address, slot, cuts, parts));
    }
}

/// The caller says who it is after the node has said hello.
async fn connect(
    mut caller: TcpStream,
    address: SocketAddr,
    slot: u8,
    cuts: watch::Receiver<Obstacles>,
    parts: Arc<Parts>,
) {
    let Ok(mut node) = TcpStream::connect(address).await else {
        return;
    };
    let _ = (caller.set_nodelay(true), node.set_nodelay(true));
    let mut hello = [0; 37];
    let mut answer = [0; 4];
    let opening = async {
        node.read_exact(&mut hello).await?;
        caller.write_all(&hello).await?;
        caller.read_exact(&mut answer).await?;
        std::io::Result::Ok(())
    };
    if opening.await.is_err() {
        return;
    }
    let from = answer[3];
    let (caller_read, caller_write) = caller.into_split();
    let (node_read, mut node_write) = node.into_split();
    if !is_open(&mut cuts.clone(), (from, slot)).await
        || node_write.write_all(&answer).await.is_err()
    {
        return;
    }
    tokio::select! {
        () = pass(caller_read, node_write, (from, slot), cuts.clone(), Frames::behind(97, &parts)) => {}
        () = pass(node_read, caller_write, (slot, from), cuts, Frames::behind(33, &parts)) => {}
    }
}

/// Looks at the frames that pass: where one begins, and of which kind it is.
struct Frames {
    skip: usize,
    head: Vec<u8>,
    parts: Arc<Parts>,
}

impl Frames {
    /// Behind what is said in front of the first frame.
    fn behind(skip: usize, parts: &Arc<Parts>) -> Self {
        Self {
            skip,
            head: Vec::new(),
            parts: Arc::clone(parts),
        }
    }

    /// Counts what begins in these bytes, and says whether a part of a snapshot does.
    fn see(&mut self, bytes: &[u8]) -> bool {
        let mut has_part = false;
        for byte in bytes {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.head.push(*byte);
            let [a, b, c, d, kind] = self.head[..] else {
                continue;
            };
            self.head.clear();
            self.skip = u32::from_be_bytes([a, b, c, d]) as usize - 1;
            if kind == SNAPSHOT {
                has_part = true;
                self.parts.sent.fetch_add(1, Ordering::SeqCst);
            }
            if kind == SNAPSHOT | REPLY {
                self.parts.taken.fetch_add(1, Ordering::SeqCst);
            }
        }
        has_part
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    pair: (u8, u8),
    mut cuts: watch::Receiver<Obstacles>,
    mut frames: Frames,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if frames.see(&buffer[..count]) && !is_open(&mut cuts, (SNAPSHOTS, pair.1)).await {
            return;
        }
        let delay = cuts.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if !is_open(&mut cuts, pair).await || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn is_open(cuts: &mut watch::Receiver<Obstacles>, pair: (u8, u8)) -> bool {
    cuts.wait_for(|there| !there.cuts.contains(&pair))
        .await
        .is_ok()
}
