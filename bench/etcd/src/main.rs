//! Cycles of acquire and acknowledged release on three Highwater nodes and on three etcd nodes,
//! which take turns on this machine, its processors and its disk.
//!
//! etcd is used by the recipe it has itself: its lock service (`v3lock`), whose every cycle is a
//! key put under the lease of the session, a wait for the keys before it, and the deletion of the key.
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

use clap::Parser;
use etcd_client::{Client, LockOptions};
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
    let compared = compare(&options.program, &folder, &settings).await;
    std::fs::remove_dir_all(&folder)?;
    print!("{}", compared?);
    Ok(())
}

async fn compare(
    program: &Path,
    folder: &Path,
    settings: &Settings,
) -> Result<highwater_bench::Report, Box<dyn Error>> {
    let (_etcd, locks) = Etcd::start(folder, settings.tasks).await?;
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
    async fn start(folder: &Path, tasks: usize) -> Result<(Self, EtcdLocks), Box<dyn Error>> {
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
            let options = LockOptions::new().with_lease(lease);
            let mut connection = self.connection();
            let locked = timeout(PATIENCE, connection.lock(key, Some(options))).await;
            let locked = locked.map_err(|_| format!("no lock on {key} within {PATIENCE:?}"))?;
            let locked = locked.map_err(|error| error.to_string())?;
            let header = locked.header().ok_or("no revision")?;
            let token = u64::try_from(header.revision()).map_err(|error| error.to_string())?;
            // The lease is the last part of the name, in hexadecimal digits.
            let name = locked.key().to_vec();
            Ok(OtherHeld { token, name })
        })
    }

    fn release(&self, held: OtherHeld) -> Answer<'_, ()> {
        Box::pin(async move {
            let lease = std::str::from_utf8(&held.name).ok();
            let lease = lease.and_then(|name| name.rsplit('/').next());
            let lease = lease.and_then(|digits| i64::from_str_radix(digits, 16).ok());
            let lease = lease.ok_or("a lock without a lease")?;
            let unlocked = self.connection().unlock(held.name).await;
            unlocked.map_err(|error| error.to_string())?;
            let mut leases = self.leases.lock().map_err(|error| error.to_string())?;
            leases.push_back(lease);
            Ok(())
        })
    }
}

/// In seconds.
const LEASE: i64 = 3_600;
const LOOKS: u32 = 100;
/// A lock whose turn has not come by then is one that etcd has lost sight of.
const PATIENCE: Duration = Duration::from_secs(10);
/// With two of them etcd 3.4 stands still under 32 waiters.
const CONNECTIONS: usize = 8;
