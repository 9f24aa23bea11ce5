//! Cycles of acquire and acknowledged release on three Highwater nodes and on three etcd nodes,
//! which take turns on this machine, its processors and its disk.
//!
//! etcd is used by the recipe it has itself, whose every cycle is a key put under the lease of the
//! session, a wait for the keys before it, and the deletion of the key. `--recipe service` lets etcd's lock
//! service (`v3lock`) do that, `--recipe client` the client, as etcd's library for Go does
//! (`client/v3/concurrency/mutex.go`), but with a stream of its own for each key that is watched.
//! Every lock has a lease of its own, because the recipe takes two locks of one lease for one. The
//! requests go to etcd's leader, over eight connections.
//!
//! It wants `etcd` in the search path: Debian has it as `etcd-server`.

#![forbid(unsafe_code)]

use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, LockOptions, PutOptions, ResponseHeader,
    SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use highwater_bench::process::{self, Storage};
use highwater_bench::{
    Answer, Kept, Kind, Locks, Nodes, OtherHeld, Pattern, Settings, Target, measure,
};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Compare a cluster of three nodes with etcd, and with a single lock server.
#[derive(Parser)]
struct Options {
    /// The `highwater` command, of a release build.
    #[arg(long, default_value = "target/release/highwater")]
    program: PathBuf,
    /// Where etcd's nodes have their data, besides directories that are made there. The nodes of the
    /// cluster use the directory for temporary files.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Who does what etcd's lock recipe says.
    #[arg(long, value_enum, default_value_t = Recipe::Service)]
    recipe: Recipe,
    /// How many cycles run at once.
    #[arg(long, default_value_t = 64)]
    tasks: usize,
    /// How many keys the tasks share when they contend.
    #[arg(long, default_value_t = 32)]
    keys: usize,
    /// Leave the shared keys out.
    #[arg(long)]
    uncontended: bool,
    /// How often every target has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a turn is, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    time: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Recipe {
    /// etcd's lock service.
    Service,
    /// The client.
    Client,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let folder = options.folder.unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("highwater-bench-etcd-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let settings = Settings {
        tasks: options.tasks,
        keys: options.keys,
        patterns: match options.uncontended {
            true => vec![Pattern::Uncontended],
            false => vec![Pattern::Contended, Pattern::Uncontended],
        },
        rounds: options.rounds,
        time: Duration::from_millis(options.time),
        progress: true,
    };
    let compared = compare(&options.program, &folder, &settings, options.recipe).await;
    std::fs::remove_dir_all(&folder)?;
    print!("{}", compared?);
    Ok(())
}

async fn compare(
    program: &Path,
    folder: &Path,
    settings: &Settings,
    recipe: Recipe,
) -> Result<highwater_bench::Report, Box<dyn Error>> {
    let (_etcd, locks) = Etcd::start(folder, settings.tasks, recipe).await?;
    let nodes = Nodes::start(program, Kept::Durable).await?;
    let volatile = Nodes::start(program, Kept::Volatile).await?;
    let (_server, address) = process::server(program, Storage::Disk).await?;
    let targets = vec![
        Target::other(Kind::Etcd, Box::new(locks)),
        Target::connect(Kind::Cluster, nodes.client()).await?,
        Target::connect(Kind::ClusterVolatile, volatile.client()).await?,
        Target::highwater(Kind::Highwater, &address, None).await?,
    ];
    Ok(measure(targets, settings).await?)
}

/// Three nodes; ended when this is dropped.
struct Etcd {
    _nodes: Vec<Child>,
}

impl Etcd {
    async fn start(
        folder: &Path,
        tasks: usize,
        recipe: Recipe,
    ) -> Result<(Self, EtcdLocks), Box<dyn Error>> {
        let mut ports = HashSet::new();
        while ports.len() < 6 {
            // Others may take it before it is used: then this run fails, and says so.
            ports.insert(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
        }
        let urls: Vec<String> = ports
            .iter()
            .map(|port| format!("http://127.0.0.1:{port}"))
            .collect();
        let (clients, peers) = urls.split_at(3);
        let all: Vec<String> = (peers.iter().enumerate())
            .map(|(number, url)| format!("n{number}={url}"))
            .collect();
        let mut nodes = Vec::new();
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let node = Command::new("etcd")
                .args(["--name", &format!("n{number}"), "--data-dir"])
                .arg(folder.join(format!("etcd-{number}")))
                .args(["--listen-client-urls", client])
                .args(["--advertise-client-urls", client])
                .args(["--listen-peer-urls", peer])
                .args(["--initial-advertise-peer-urls", peer])
                .args(["--initial-cluster", &all.join(",")])
                .args(["--initial-cluster-token", "bench", "--logger", "zap"])
                .args(["--log-level", "error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn()?;
            nodes.push(node);
        }
        let leader = leader(clients).await?;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Client::connect([&leader], None).await?);
        }
        let mut leases = VecDeque::new();
        for _ in 0..tasks {
            leases.push_back(connections[0].lease_grant(LEASE, None).await?.id());
        }
        let locks = EtcdLocks {
            recipe,
            connections,
            next: AtomicUsize::new(0),
            leases: Mutex::new(leases),
        };
        Ok((Self { _nodes: nodes }, locks))
    }
}

/// Where the node is that leads.
async fn leader(clients: &[String]) -> Result<String, Box<dyn Error>> {
    for _ in 0..LOOKS {
        for url in clients {
            let Ok(mut client) = Client::connect([url], None).await else {
                continue;
            };
            let Ok(status) = client.status().await else {
                continue;
            };
            let own = status.header().map(|header| header.member_id());
            if status.leader() != 0 && own == Some(status.leader()) {
                return Ok(url.clone());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err("etcd has no leader".into())
}

struct EtcdLocks {
    recipe: Recipe,
    connections: Vec<Client>,
    next: AtomicUsize,
    /// Those that no lock has.
    leases: Mutex<VecDeque<i64>>,
}

impl EtcdLocks {
    fn connection(&self) -> Client {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.connections[next % self.connections.len()].clone()
    }
}

impl Locks for EtcdLocks {
    fn acquire<'a>(&'a self, key: &'a str) -> Answer<'a, OtherHeld> {
        Box::pin(async move {
            let lease = self
                .leases
                .lock()
                .map_err(|error| error.to_string())?
                .pop_front();
            let lease = lease.ok_or("more locks at once than tasks")?;
            let connection = self.connection();
            let locked = match self.recipe {
                Recipe::Service => timeout(PATIENCE, by_service(connection, key, lease)).await,
                Recipe::Client => timeout(PATIENCE, by_client(connection, key, lease)).await,
            };
            let locked = locked.map_err(|_| format!("no lock on {key} within {PATIENCE:?}"))?;
            let (revision, name) = locked.map_err(|error| error.to_string())?;
            let token = u64::try_from(revision).map_err(|error| error.to_string())?;
            Ok(OtherHeld { token, name })
        })
    }

    fn release(&self, held: OtherHeld) -> Answer<'_, ()> {
        Box::pin(async move {
            // The lease is the last part of the name, in hexadecimal digits.
            let lease = std::str::from_utf8(&held.name).ok();
            let lease = lease.and_then(|name| name.rsplit('/').next());
            let lease = lease.and_then(|digits| i64::from_str_radix(digits, 16).ok());
            let lease = lease.ok_or("a lock without a lease")?;
            let mut connection = self.connection();
            let unlocked = match self.recipe {
                Recipe::Service => connection.unlock(held.name).await.map(drop),
                Recipe::Client => connection.delete(held.name, None).await.map(drop),
            };
            unlocked.map_err(|error| error.to_string())?;
            let mut leases = self.leases.lock().map_err(|error| error.to_string())?;
            leases.push_back(lease);
            Ok(())
        })
    }
}

/// Acquires through the lock service: the revision of the grant, and the name of the key.
async fn by_service(
    mut connection: Client,
    key: &str,
    lease: i64,
) -> Result<(i64, Vec<u8>), etcd_client::Error> {
    let options = LockOptions::new().with_lease(lease);
    let locked = connection.lock(key, Some(options)).await?;
    Ok((revision(locked.header())?, locked.key().to_vec()))
}

/// The same by the plain interface: puts a key of its own, and waits until all older ones are gone.
async fn by_client(
    mut connection: Client,
    key: &str,
    lease: i64,
) -> Result<(i64, Vec<u8>), etcd_client::Error> {
    let others = format!("{key}/");
    let own = format!("{others}{lease:x}");
    let oldest = GetOptions::new().with_prefix().with_limit(1);
    let oldest = oldest.with_sort(SortTarget::Create, SortOrder::Ascend);
    let is_new = Compare::create_revision(own.as_str(), CompareOp::Equal, 0);
    let put = TxnOp::put(own.as_str(), "", Some(PutOptions::new().with_lease(lease)));
    let owner = TxnOp::get(others.as_str(), Some(oldest));
    let put = connection
        .txn(Txn::new().when([is_new]).and_then([put, owner]))
        .await?;
    if !put.succeeded() {
        return Err(etcd_client::Error::InvalidArgs(format!(
            "{own} is there already"
        )));
    }
    let revision = revision(put.header())?;
    let is_own = put.op_responses().iter().any(|response| match response {
        TxnOpResponse::Get(found) => found.kvs().iter().all(|kv| kv.key() == own.as_bytes()),
        _ => false,
    });
    if is_own {
        return Ok((revision, own.into_bytes()));
    }
    loop {
        let before = GetOptions::new().with_prefix().with_limit(1);
        let before = before.with_sort(SortTarget::Create, SortOrder::Descend);
        let before = before.with_max_create_revision(revision - 1);
        let found = connection.get(others.as_str(), Some(before)).await?;
        let Some(last) = found.kvs().first() else {
            return Ok((revision, own.into_bytes()));
        };
        let seen = self::revision(found.header())?;
        let options = WatchOptions::new().with_start_revision(seen + 1);
        let mut news = connection.watch(last.key(), Some(options)).await?;
        let mut is_there = true;
        while is_there && let Some(news) = news.message().await? {
            let mut events = news.events().iter();
            is_there = !events.any(|event| event.event_type() == EventType::Delete);
        }
    }
}

fn revision(header: Option<&ResponseHeader>) -> Result<i64, etcd_client::Error> {
    let missing = || etcd_client::Error::InvalidArgs("no revision".to_owned());
    Ok(header.ok_or_else(missing)?.revision())
}

/// In seconds.
const LEASE: i64 = 3_600;
const LOOKS: u32 = 100;
/// A lock whose turn has not come by then is one that etcd has lost sight of.
const PATIENCE: Duration = Duration::from_secs(10);
/// With two of them etcd 3.4 stands still under 32 waiters.
const CONNECTIONS: usize = 8;
