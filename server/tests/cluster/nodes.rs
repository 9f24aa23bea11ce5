//! A cluster under test.

use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater_protocol::{FencingToken, Reply};
use highwater_server::cluster::{
    self, ClockSkew, ClusterFile, ClusterMode, NodeAddresses, NodeRole,
};
use highwater_server::{Admin, Builder, Secret, Server, StartError};
use rustls::{ClientConfig, ServerConfig};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::proxy::{Cuts, Obstacles, Parts, Proxy, SNAPSHOTS};

pub(crate) const TOKEN: &[u8] = b"a client token of tests";

/// How long anything may take that is expected to come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How many times longer than usual nodes wait for each other. Tests run beside others, on machines that do much
/// else, and a leader that is only slow must not be taken for gone.
const STEADY: NonZeroU8 = NonZeroU8::new(3).unwrap();
/// The same, where no leader may change by itself.
const CALM: NonZeroU8 = NonZeroU8::new(8).unwrap();

/// To be called with, and to call with.
pub(crate) type Tls = (Arc<ServerConfig>, Arc<ClientConfig>);

pub(crate) struct Nodes {
    folder: TempDir,
    pub(crate) file: ClusterFile,
    /// The file that each node is started with.
    pub(crate) told: Vec<ClusterFile>,
    proxies: Vec<Proxy>,
    entrances: Vec<Proxy>,
    tls: Option<Tls>,
    snapshot_every: NonZeroU32,
    pace: NonZeroU8,
    /// Of nodes that have taken a slot over, for their first start.
    pub(crate) generations: Vec<u64>,
    /// What is wrong with the clocks of the nodes.
    pub(crate) skews: Vec<ClockSkew>,
    cuts: Cuts,
    servers: Vec<Option<Server>>,
    /// Where clients find the nodes, also after a restart.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Nodes {
    /// From the next start of a node on.
    pub(crate) fn snapshot_every(&mut self, entries: u32) {
        self.snapshot_every = NonZeroU32::new(entries).unwrap();
    }

    /// Nodes that are up; the cluster has not begun.
    pub(crate) async fn fresh(count: u8) -> Self {
        Self::fresh_with(count, None).await
    }

    /// The same, with TLS for clients and between nodes.
    pub(crate) async fn fresh_with(count: u8, tls: Option<Tls>) -> Self {
        Self::fresh_as(ClusterMode::Durable, count, tls).await
    }

    /// The same as [`Nodes::fresh`], for tests of what happens under one leader.
    pub(crate) async fn fresh_and_calm(count: u8) -> Self {
        Self::fresh_at(CALM, ClusterMode::Durable, count, None).await
    }

    /// A volatile cluster that has begun and has a leader.
    pub(crate) async fn volatile(count: u8) -> Self {
        let nodes = Self::fresh_as(ClusterMode::Volatile, count, None).await;
        nodes.begin().await
    }

    /// The same, for tests of what happens under one leader.
    pub(crate) async fn volatile_and_calm(count: u8) -> Self {
        let nodes = Self::fresh_at(CALM, ClusterMode::Volatile, count, None).await;
        nodes.begin().await
    }

    async fn begin(self) -> Self {
        cluster::init(&self.file, 0, None).await.unwrap();
        self.leader().await;
        self
    }

    pub(crate) async fn fresh_as(mode: ClusterMode, count: u8, tls: Option<Tls>) -> Self {
        Self::fresh_at(STEADY, mode, count, tls).await
    }

    async fn fresh_at(pace: NonZeroU8, mode: ClusterMode, count: u8, tls: Option<Tls>) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_max_level(tracing::Level::WARN)
            .try_init();
        let folder = tempfile::tempdir().unwrap();
        let cuts = Cuts::new(Obstacles::default());
        let (mut proxies, mut entrances) = (Vec::new(), Vec::new());
        for slot in 0..count {
            // Who calls cannot be seen through TLS, so there nothing can be held back.
            proxies.push(match &tls {
                None => Proxy::for_peers(slot, &cuts).await,
                Some(_) => Proxy::plain().await,
            });
            entrances.push(Proxy::plain().await);
        }
        let addresses = proxies.iter().enumerate();
        let addresses: Vec<NodeAddresses> = addresses
            .map(|(slot, proxy)| NodeAddresses {
                clients: format!("127.0.0.1:{}", slot + 1),
                peers: proxy.address.to_string(),
            })
            .collect();
        let new = ClusterFile::create_as(mode, folder.path().join("files"), &addresses).unwrap();
        let file = ClusterFile::read(&new.file).unwrap();
        let mut nodes = Self {
            folder,
            told: vec![file.clone(); count.into()],
            file,
            proxies,
            cuts,
            servers: (0..count).map(|_| None).collect(),
            addresses: entrances.iter().map(|proxy| proxy.address).collect(),
            entrances,
            tls,
            snapshot_every: NonZeroU32::new(10_000).unwrap(),
            pace,
            generations: vec![1; count.into()],
            skews: (0..count).map(|_| ClockSkew::none()).collect(),
        };
        for slot in 0..count {
            nodes.start(slot).await;
        }
        nodes
    }

    /// Has a file with a fourth and a fifth node from now on. Those that run have the old one.
    pub(crate) async fn know_five(&mut self) {
        let path = self.folder.path().join("files/cluster.toml");
        let mut text = std::fs::read_to_string(&path).unwrap();
        for slot in 3..5 {
            let proxy = Proxy::for_peers(slot, &self.cuts).await;
            text.push_str(&format!(
                "\n[[node]]\nslot = {slot}\nclients = \"127.0.0.1:{}\"\npeers = \"{}\"\n",
                slot + 1,
                proxy.address
            ));
            self.proxies.push(proxy);
            let entrance = Proxy::plain().await;
            self.addresses.push(entrance.address);
            self.entrances.push(entrance);
            self.servers.push(None);
            self.generations.push(1);
            self.skews.push(ClockSkew::none());
        }
        std::fs::write(&path, text).unwrap();
        self.file = ClusterFile::read(&path).unwrap();
        self.told = vec![self.file.clone(); 5];
    }

    /// A cluster that has begun and has a leader.
    pub(crate) async fn begun(count: u8) -> Self {
        Self::fresh(count).await.begin().await
    }

    /// The same, for tests of what happens under one leader.
    pub(crate) async fn calm(count: u8) -> Self {
        Self::fresh_and_calm(count).await.begin().await
    }

    /// Where the cluster file is.
    pub(crate) fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// The mark of a slot that has been part of the cluster.
    pub(crate) fn marker(&self, slot: u8) -> PathBuf {
        self.files().join(format!("cluster.toml.slot-{slot}.used"))
    }

    /// Lets a process that was started beside this harness, or was taken from it, have the address of its
    /// slot; gives the one that had it.
    pub(crate) fn put(&mut self, slot: u8, server: Server) -> Option<Server> {
        self.proxies[usize::from(slot)].lead_to(server.peer_addr());
        self.entrances[usize::from(slot)].lead_to(Some(server.local_addr()));
        self.servers[usize::from(slot)].replace(server)
    }

    pub(crate) fn data_dir(&self, slot: u8) -> PathBuf {
        let generation = self.generations[usize::from(slot)];
        self.folder.path().join(format!("data-{slot}-{generation}"))
    }

    pub(crate) fn builder(&self, slot: u8) -> Builder {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let builder = Server::builder()
            .cluster(self.told[usize::from(slot)].clone(), slot)
            .listen(any)
            .peer_listen(any)
            .admin(Admin::on(any))
            .clock_skew(self.skews[usize::from(slot)].clone())
            .slower_elections(self.pace)
            .client_token(Secret::new(TOKEN).unwrap());
        let builder = match self.file.mode() {
            ClusterMode::Volatile => builder,
            _ => builder.data_dir(self.data_dir(slot)),
        };
        let builder = builder.snapshot_every(self.snapshot_every);
        let builder = match self.generations[usize::from(slot)] {
            1 => builder,
            taken_over => builder.generation(NonZeroU64::new(taken_over).unwrap()),
        };
        match &self.tls {
            Some((accept, connect)) => builder.tls(accept.clone()).peer_tls(connect.clone()),
            None => builder,
        }
    }

    /// Starts a node; one that was stopped before in this process may need a moment to be gone.
    pub(crate) async fn start(&mut self, slot: u8) {
        let start = Instant::now();
        let server = loop {
            match self.builder(slot).start().await {
                Ok(server) => break server,
                Err(StartError::Cluster(cluster::ClusterError::InUse { .. }))
                    if start.elapsed() < LIMIT =>
                {
                    sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("slot {slot}: {error:?}"),
            }
        };
        drop(self.put(slot, server));
    }

    /// Ends a node at once, without telling anybody.
    pub(crate) fn kill(&mut self, slot: u8) {
        self.proxies[usize::from(slot)].lead_to(None);
        self.entrances[usize::from(slot)].lead_to(None);
        drop(self.servers[usize::from(slot)].take());
    }

    /// Ends a node in an orderly way.
    pub(crate) async fn stop(&mut self, slot: u8) {
        let server = self.servers[usize::from(slot)].take().unwrap();
        self.entrances[usize::from(slot)].lead_to(None);
        server.shutdown().await;
        self.proxies[usize::from(slot)].lead_to(None);
    }

    pub(crate) fn server(&self, slot: u8) -> &Server {
        self.servers[usize::from(slot)].as_ref().unwrap()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u8> {
        let up = self.servers.iter().enumerate();
        let up = up.filter(|(_, server)| server.is_some());
        let up: Vec<u8> = up.map(|(slot, _)| u8::try_from(slot).unwrap()).collect();
        up.into_iter()
    }

    /// The one leader that a majority of the nodes that are up agrees on, itself included.
    pub(crate) async fn leader(&self) -> u8 {
        self.leader_among(&self.slots().collect::<Vec<_>>()).await
    }

    /// The one leader on which these nodes agree.
    pub(crate) async fn leader_among(&self, slots: &[u8]) -> u8 {
        let what = format!("a leader that {slots:?} agree on");
        eventually(&what, async || {
            let statuses = slots.iter().map(|slot| self.server(*slot).cluster_status());
            let statuses: Vec<_> = statuses.map(Option::unwrap).collect();
            let leader = statuses[0].leader?;
            let agreed = statuses.iter().all(|status| status.leader == Some(leader));
            let leads = statuses
                .iter()
                .any(|status| status.role == NodeRole::Leader);
            (agreed && leads).then_some(leader)
        })
        .await
    }

    /// A connection to a node.
    pub(crate) async fn client(&self, slot: u8) -> Client {
        let identity = *self.file.identity().as_bytes();
        Client::connect(self.server(slot).local_addr(), identity, slot).await
    }

    /// What whoever leads answers to a request for a lock. Asks anew while it is turned away, as every client has to.
    pub(crate) async fn ask(&self, key: &str, lease: u8) -> (Client, Reply) {
        eventually(&format!("an answer for {key}"), async || {
            let mut client = self.client(self.leader().await).await;
            match client.acquire(key, 0, lease).await {
                Reply::Moved { .. } | Reply::Error { .. } | Reply::Indeterminate { .. } => None,
                reply => Some((client, reply)),
            }
        })
        .await
    }

    /// A lock that must be had, of whoever leads.
    pub(crate) async fn lock(&self, key: &str, lease: u8) -> FencingToken {
        match self.ask(key, lease).await.1 {
            Reply::Granted { token, .. } => token,
            other => panic!("{key} was not granted: {other:?}"),
        }
    }

    /// Somebody has this lock, says whoever leads.
    pub(crate) async fn is_taken(&self, key: &str) {
        let (_, taken) = self.ask(key, 100).await;
        assert!(matches!(taken, Reply::TimedOut { .. }), "{key}: {taken:?}");
    }

    /// A release that must succeed, by whoever leads.
    pub(crate) async fn unlock(&self, key: &str, token: FencingToken) {
        let mut may_be_done = false;
        eventually(&format!("{key} is released"), async || {
            let mut client = self.client(self.leader().await).await;
            match client.release(key, token).await {
                Reply::Released { .. } => Some(()),
                Reply::NotHeld { .. } if may_be_done => Some(()),
                Reply::Moved { .. } | Reply::Error { .. } => None,
                Reply::Indeterminate { .. } => {
                    may_be_done = true;
                    None
                }
                other => panic!("{key} was not released: {other:?}"),
            }
        })
        .await;
    }

    /// Holds back everything between this node and the others.
    pub(crate) fn isolate(&self, slot: u8) {
        let others = (0..5).filter(|other| *other != slot);
        self.cuts.send_modify(|there| {
            for other in others {
                there.cuts.extend([(slot, other), (other, slot)]);
            }
        });
    }

    /// Holds back what one node says to another one.
    pub(crate) fn hold(&self, from: u8, to: u8) {
        self.cuts.send_modify(|there| {
            there.cuts.insert((from, to));
        });
    }

    /// Holds back everything between these two.
    pub(crate) fn part(&self, one: u8, other: u8) {
        self.hold(one, other);
        self.hold(other, one);
    }

    /// Holds back what this node says to the others.
    pub(crate) fn mute(&self, slot: u8) {
        let others = (0..5).filter(|other| *other != slot);
        self.cuts
            .send_modify(|there| there.cuts.extend(others.map(|other| (slot, other))));
    }

    /// Holds back what the others say to this node.
    pub(crate) fn deafen(&self, slot: u8) {
        let others = (0..5).filter(|other| *other != slot);
        self.cuts
            .send_modify(|there| there.cuts.extend(others.map(|other| (other, slot))));
    }

    /// Holds back snapshots that this node is sent, and nothing else.
    pub(crate) fn hold_snapshots(&self, slot: u8) {
        self.cuts.send_modify(|there| {
            there.cuts.insert((SNAPSHOTS, slot));
        });
    }

    /// How many parts of snapshots this slot was sent, and has taken.
    pub(crate) fn parts(&self, slot: u8) -> (u32, u32) {
        let Parts { sent, taken } = &*self.proxies[usize::from(slot)].parts;
        (sent.load(Ordering::SeqCst), taken.load(Ordering::SeqCst))
    }

    /// Lets everything through again.
    pub(crate) fn heal(&self) {
        self.cuts.send_replace(Obstacles::default());
    }

    /// Has everything that nodes say to each other take so long.
    pub(crate) fn delay(&self, by: Duration) {
        self.cuts.send_modify(|there| there.delay = by);
    }
}

pub(crate) async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
