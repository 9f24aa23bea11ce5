//! A cluster of real processes: killed, restarted, and with a disk that takes nothing more.
#![cfg(unix)]

#[path = "cluster/secrets.rs"]
mod secrets;
mod serving;
#[path = "cluster/volatile.rs"]
mod volatile;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use highwater_client::{AcquireError, AcquireOptions, Client, Key, Release, Secret, Ticket};
use highwater_server::cluster::{
    self, ClockHealth, ClockStatus, ClusterFile, ClusterMode, NodeRole,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::serving::{highwater, refuses};

const LIMIT: Duration = Duration::from_secs(60);

/// An address that stays, in front of one that changes with every start of a process.
struct Relay {
    address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
    _task: JoinSet<()>,
}

impl Relay {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let target = Arc::new(Mutex::new(None));
        let mut task = JoinSet::new();
        let shared = Arc::clone(&target);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut from, _) = listener.accept().await.expect("accepts");
                let Some(address) = *shared.lock().expect("whole") else {
                    continue;
                };
                connections.spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(address).await {
                        let _ = (from.set_nodelay(true), to.set_nodelay(true));
                        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                });
            }
        });
        Self {
            address,
            target,
            _task: task,
        }
    }

    fn lead_to(&self, address: Option<SocketAddr>) {
        *self.target.lock().expect("whole") = address;
    }
}

struct Nodes {
    folder: tempfile::TempDir,
    file: ClusterFile,
    clients: Vec<Relay>,
    peers: Vec<Relay>,
    processes: Vec<Option<Child>>,
}

impl Nodes {
    /// Three processes; the cluster has begun and has a leader.
    async fn begun() -> Self {
        Self::begun_with(&[]).await
    }

    /// The same, of a cluster that was made with these options.
    async fn begun_with(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut clients, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            clients.push(Relay::start().await);
            peers.push(Relay::start().await);
        }
        let mut command = highwater(&["cluster", "new"]);
        command.arg(folder.path().join("files")).args(options);
        for (clients, peers) in clients.iter().zip(&peers) {
            let addresses = format!("{},{}", clients.address, peers.address);
            command.args(["--node", &addresses]);
        }
        assert!(command.output().expect("runs").status.success());
        let file = ClusterFile::read(folder.path().join("files/cluster.toml"));
        let mut nodes = Self {
            folder,
            file: file.expect("a cluster file"),
            clients,
            peers,
            processes: vec![None, None, None],
        };
        for slot in 0..3 {
            nodes.start(slot);
        }
        let mut command = highwater(&["cluster", "init", "--cluster"]);
        let output = command.arg(nodes.path()).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        // It works from then on, unless the lead is lost again: the machine may do much else.
        let begun = Instant::now();
        loop {
            let mut command = highwater(&["cluster", "status", "--cluster"]);
            let output = command.arg(nodes.path()).output().expect("runs");
            if output.status.success() {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "{output:?}");
        }
        nodes.leader().await;
        nodes
    }

    /// Has a file with a fourth and a fifth node from now on.
    async fn know_five(&mut self) {
        let mut text = read(&self.path());
        for slot in 3..5 {
            let (clients, peers) = (Relay::start().await, Relay::start().await);
            text.push_str(&format!(
                "\n[[node]]\nslot = {slot}\nclients = \"{}\"\npeers = \"{}\"\n",
                clients.address, peers.address
            ));
            self.clients.push(clients);
            self.peers.push(peers);
            self.processes.push(None);
        }
        std::fs::write(self.path(), text).expect("a file");
        self.file = ClusterFile::read(self.path()).expect("a cluster file");
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("files/cluster.toml")
    }

    fn command(&self, slot: usize) -> Command {
        let slot = slot.to_string();
        let mut command = highwater(&["serve", "--cluster-slot", &slot]);
        let any = "127.0.0.1:0";
        command.args(["--listen", any, "--peer-listen", any]);
        command.arg("--cluster").arg(self.path());
        let token = self.folder.path().join("files/client.token");
        command.arg("--client-token-file").arg(token);
        if self.file.mode() == ClusterMode::Durable {
            let data = self.folder.path().join(format!("data-{slot}"));
            command.arg("--data-dir").arg(data);
        }
        command
    }

    fn start(&mut self, slot: usize) {
        self.start_with(slot, self.command(slot));
    }

    fn start_with(&mut self, slot: usize, mut command: Command) {
        command.stdout(Stdio::piped());
        let mut process = command.spawn().expect("starts");
        let stdout = process.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let mut address = |place: usize| -> SocketAddr {
            let line = lines.next().expect("a line").expect("text");
            let word = line.split_whitespace().nth(place).expect("an address");
            word.parse().expect("an address")
        };
        self.clients[slot].lead_to(Some(address(3)));
        self.peers[slot].lead_to(Some(address(4)));
        self.processes[slot] = Some(process);
    }

    fn kill(&mut self, slot: usize) {
        let mut process = self.processes[slot].take().expect("it runs");
        process.kill().expect("a process of ours");
        process.wait().expect("a process of ours");
        self.clients[slot].lead_to(None);
        self.peers[slot].lead_to(None);
    }

    /// The leader that all processes which run agree on.
    async fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let mut leaders = Vec::new();
            let mut leads = false;
            for slot in 0..self.processes.len() {
                if self.processes[slot].is_none() {
                    continue;
                }
                let slot = u8::try_from(slot).expect("a slot");
                let status = cluster::status(&self.file, slot, None).await.ok();
                leads |= status.as_ref().is_some_and(|s| s.role == NodeRole::Leader);
                leaders.push(status.and_then(|status| status.leader));
            }
            if let [Some(first), others @ ..] = &leaders[..]
                && leads
                && others.iter().all(|other| *other == Some(*first))
            {
                return usize::from(*first);
            }
            assert!(begun.elapsed() < LIMIT, "no leader: {leaders:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn clock(&self, slot: usize) -> ClockStatus {
        let slot = u8::try_from(slot).expect("a slot");
        let status = cluster::status(&self.file, slot, None).await;
        status.expect("it answers").clock
    }

    async fn client(&self) -> Client {
        let addresses = self.clients.iter().map(|relay| relay.address);
        let token = std::fs::read(self.folder.path().join("files/client.token"));
        let token = Secret::from_file_content(token.expect("a token")).expect("a secret");
        let builder = Client::cluster(addresses, self.file.identity()).token(token);
        builder
            .connect_time(LIMIT)
            .connect()
            .await
            .expect("connects")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn options() -> AcquireOptions {
    AcquireOptions::new()
        .wait(Duration::from_secs(30))
        .lease(Duration::from_secs(600))
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

/// A lock of a key that was never used; one that nobody knows of is left behind.
async fn lock_anew(client: &Client, name: &str) -> Ticket {
    for number in 0.. {
        match client
            .acquire(&key(&format!("{name}/{number}")), options())
            .await
        {
            Ok(ticket) => return ticket,
            Err(AcquireError::Indeterminate) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    unreachable!("there is always another key")
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_and_tokens_survive_every_kill() {
    let mut nodes = Nodes::begun().await;
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    let mut highest = kept.token();
    for round in 0..5 {
        let leader = nodes.leader().await;
        let killed = Instant::now();
        nodes.kill(leader);
        let ticket = lock_anew(&client, &format!("round-{round}")).await;
        println!("kill -9 to the next grant: {:?}", killed.elapsed());
        assert!(ticket.token() > highest);
        highest = ticket.token();
        assert_eq!(ticket.release().await, Ok(Release::Released));
        nodes.start(leader);
    }
    nodes.leader().await;
    for slot in 0..3 {
        nodes.kill(slot);
    }
    for slot in 0..3 {
        nodes.start(slot);
    }
    nodes.leader().await;
    let ticket = lock_anew(&client, "after-all").await;
    assert!(ticket.token() > highest);
    let taken = client
        .acquire(&key("kept"), options().wait(Duration::ZERO))
        .await;
    assert_eq!(taken.err(), Some(AcquireError::TimedOut));
    assert_eq!(kept.release().await, Ok(Release::Released));
    let again = client.acquire(&key("kept"), options()).await.expect("free");
    assert!(again.token() > ticket.token());
}

/// A signal has the leader hand over; nobody's request is lost by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_hands_the_lead_over() {
    let mut nodes = Nodes::begun().await;
    let client = nodes.client().await;
    let mut highest = None;
    for _ in 0..3 {
        let leader = nodes.leader().await;
        let process = nodes.processes[leader].as_mut().expect("it runs");
        let pid = Pid::from_raw(process.id().try_into().expect("a process id"));
        let begun = Instant::now();
        kill(pid, Signal::SIGTERM).expect("a process of ours");
        let ticket = client.acquire(&key("k"), options()).await.expect("free");
        println!("SIGTERM to the next grant: {:?}", begun.elapsed());
        assert!(Some(ticket.token()) > highest);
        highest = Some(ticket.token());
        assert_eq!(ticket.release().await, Ok(Release::Released));
        assert!(process.wait().expect("a process of ours").success());
        nodes.processes[leader] = None;
        nodes.start(leader);
    }
}

/// A leader that does not know for how long it was gone grants nothing, and ends no lease too early.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_decides_nothing_when_it_wakes() {
    let nodes = Nodes::begun().await;
    let client = nodes.client().await;
    let short = || options().wait(Duration::from_secs(2));
    let old = client
        .acquire(&key("k"), short().lease(Duration::from_secs(1)))
        .await
        .expect("free");
    let leader = nodes.leader().await;
    let process = nodes.processes[leader].as_ref().expect("it runs");
    let pid = Pid::from_raw(process.id().try_into().expect("a process id"));
    kill(pid, Signal::SIGSTOP).expect("a process of ours");
    let begun = Instant::now();
    // What goes to the frozen one has no answer; the others name the next leader.
    let new = loop {
        match client.acquire(&key("k"), short()).await {
            Ok(ticket) => break ticket,
            Err(AcquireError::Indeterminate | AcquireError::Rejected(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < LIMIT, "nobody grants it");
    };
    assert!(new.token() > old.token());
    kill(pid, Signal::SIGCONT).expect("a process of ours");
    let next = nodes.leader().await;
    assert_ne!(next, leader);
    // It was asleep for longer than clocks are compared; none of them is accused of that.
    for slot in 0..3 {
        let clock = nodes.clock(slot).await;
        assert_eq!(clock.health, ClockHealth::Good, "{clock:?}");
        assert!(clock.peers.iter().all(|peer| !peer.differs), "{clock:?}");
    }
    assert_eq!(old.release().await, Ok(Release::NotCurrent));
    let taken = client
        .acquire(&key("k"), options().wait(Duration::ZERO))
        .await;
    assert_eq!(taken.err(), Some(AcquireError::TimedOut));
    let highest = new.token();
    assert_eq!(new.release().await, Ok(Release::Released));
    let last = client.acquire(&key("k"), options()).await.expect("free");
    assert!(last.token() > highest);
}

/// The clock of a process runs too fast, as a file says.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clock_runs_too_fast_gives_the_lead_away() {
    let mut nodes = Nodes::begun().await;
    let slot = 1;
    nodes.kill(slot);
    let file = nodes.folder.path().join("clock");
    let mut command = nodes.command(slot);
    command.env("HIGHWATER_TEST_CLOCK", &file);
    nodes.start_with(slot, command);
    let begun = Instant::now();
    while nodes.leader().await != slot {
        let mut step_down = highwater(&["cluster", "step-down", "--cluster"]);
        let _ = step_down.arg(nodes.path()).output().expect("runs");
        assert!(begun.elapsed() < LIMIT, "it does not come to lead");
    }
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    std::fs::write(&file, "100000 3600000").expect("a file");
    while nodes.clock(slot).await.health == ClockHealth::Good {
        assert!(begun.elapsed() < LIMIT, "its clock is found good");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = nodes.leader().await;
    assert_ne!(next, slot);
    let ticket = lock_anew(&client, "after").await;
    assert!(ticket.token() > kept.token());
    assert_eq!(kept.release().await, Ok(Release::Released));
    let mut status = highwater(&["cluster", "status", "--cluster"]);
    let output = status.arg(nodes.path()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |slot: usize| said.lines().nth(slot).expect("a line");
    assert!(line(slot).contains("clock differs"), "{said}");
    assert!(line(next).contains("clock good"), "{said}");
    // Each node asks the others by itself: this one may not have done so since then.
    loop {
        let peers = nodes.clock(next).await.peers.into_iter();
        let mut ahead = peers.filter(|peer| usize::from(peer.slot) == slot);
        let ahead = ahead.next().and_then(|peer| peer.wall_ahead_micros);
        if ahead.is_some_and(|ahead| ahead > 3_000_000_000) {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{ahead:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The command is run under a lock of the cluster, with its identity as the domain, whoever leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_under_a_lock_of_the_cluster() {
    let mut nodes = Nodes::begun().await;
    let addresses: Vec<_> = (nodes.clients.iter())
        .map(|relay| relay.address.to_string())
        .collect();
    let identity = nodes.file.identity().to_string();
    let token = nodes.folder.path().join("files/client.token");
    let mut tokens = Vec::new();
    for turn in 0..2 {
        if turn > 0 {
            let leader = nodes.leader().await;
            nodes.kill(leader);
        }
        let script = "echo $HIGHWATER_FENCING_TOKEN $HIGHWATER_FENCING_DOMAIN";
        let mut command = highwater(&["lock", "jobs/nightly", "--wait", "20s"]);
        command.args(["--server", &addresses.join(","), "--identity", &identity]);
        command.arg("--client-token-file").arg(&token);
        command.args(["--", "sh", "-c", script]);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.expect("no panic").expect("runs");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).expect("text");
        let (token, domain) = said.trim().split_once(' ').expect("two words");
        assert_eq!(domain, identity);
        tokens.push(token.parse::<u64>().expect("a number"));
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// A node whose data directory is lost is refused, and a new one takes its slot over.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_is_replaced() {
    let mut nodes = Nodes::begun().await;
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    let slot = nodes.leader().await;
    nodes.kill(slot);
    let data = nodes.folder.path().join(format!("data-{slot}"));
    std::fs::remove_dir_all(&data).expect("a folder");
    refuses(
        &mut nodes.command(slot),
        "its data directory is not the one it had",
    );
    std::fs::remove_dir_all(&data).expect("a folder");
    nodes.leader().await;
    let mut replace = highwater(&["cluster", "replace", "--slot", &slot.to_string()]);
    replace.arg("--cluster").arg(nodes.path());
    let mut replace = replace.stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(replace.stdout.take().expect("a pipe")).lines();
    let line = lines.next().expect("a line").expect("text");
    assert!(line.contains("--cluster-generation 2"), "{line}");
    let mut command = nodes.command(slot);
    command.args(["--cluster-generation", "2"]);
    nodes.start_with(slot, command);
    let line = lines.next().expect("a line").expect("text");
    assert_eq!(line, format!("slot {slot} votes with generation 2"));
    assert!(replace.wait().expect("a process of ours").success());
    nodes.kill(slot);
    nodes.start(slot);
    nodes.leader().await;
    assert_eq!(kept.release().await, Ok(Release::Released));
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_become_five_and_three_again() {
    let mut nodes = Nodes::begun().await;
    nodes.know_five().await;
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    let mut grow = highwater(&["cluster", "grow", "--cluster"]);
    grow.arg(nodes.path()).stdout(Stdio::piped());
    let mut grow = grow.spawn().expect("starts");
    let mut lines = BufReader::new(grow.stdout.take().expect("a pipe")).lines();
    for slot in [3, 4] {
        let line = lines.next().expect("a line").expect("text");
        let told = line
            .split_whitespace()
            .skip_while(|word| *word != "--cluster-generation");
        let generation = told.skip(1).map(|word| word.trim_end_matches(',')).next();
        let mut command = nodes.command(slot);
        command.args(["--cluster-generation", generation.expect("a number")]);
        nodes.start_with(slot, command);
    }
    let line = lines.next().expect("a line").expect("text");
    assert_eq!(line, "five nodes vote");
    assert!(grow.wait().expect("a process of ours").success());
    let mut highest = kept.token();
    for _ in 0..3 {
        let ticket = lock_anew(&client, "five").await;
        assert!(ticket.token() > highest);
        highest = ticket.token();
    }

    // The one that leads and one that does not.
    let leader = nodes.leader().await;
    let other = (leader + 3) % 5;
    let mut remove = highwater(&["cluster", "remove", "--cluster"]);
    remove.arg(nodes.path());
    for slot in [leader, other] {
        remove.args(["--slot", &slot.to_string()]);
    }
    let output = remove.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    for slot in [leader, other] {
        let mut process = nodes.processes[slot].take().expect("it runs");
        assert!(process.wait().expect("a process of ours").success());
        refuses(
            &mut nodes.command(slot),
            "this node was removed from the cluster",
        );
    }
    nodes.leader().await;
    let ticket = lock_anew(&client, "three").await;
    assert!(ticket.token() > highest);
    assert_eq!(kept.release().await, Ok(Release::Released));
}

/// The largest file is as good as a full disk, and needs no disk of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_write_its_log_ends_loudly_and_the_others_go_on() {
    let mut nodes = Nodes::begun().await;
    let client = nodes.client().await;
    let leader = nodes.leader().await;
    nodes.kill(leader);
    nodes.leader().await;
    let serve = nodes.command(leader);
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$0\" \"$@\""]);
    command.arg(serve.get_program()).args(serve.get_args());
    command.stderr(Stdio::piped());
    nodes.start_with(leader, command);
    nodes.leader().await;
    let begun = Instant::now();
    let mut highest = None;
    loop {
        let ticket = lock_anew(&client, "many").await;
        assert!(Some(ticket.token()) > highest);
        highest = Some(ticket.token());
        let _ = ticket.release().await;
        let process = nodes.processes[leader].as_mut().expect("it runs");
        if let Some(status) = process.try_wait().expect("a process of ours") {
            assert!(!status.success());
            break;
        }
        assert!(
            begun.elapsed() < LIMIT,
            "it goes on with a disk that takes nothing"
        );
    }
    let process = nodes.processes[leader].take().expect("it ran");
    let output = process.wait_with_output().expect("a process of ours");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("this node steps out"), "{log}");
    nodes.leader().await;
    let ticket = lock_anew(&client, "after").await;
    assert!(Some(ticket.token()) > highest);
    nodes.start(leader);
    nodes.leader().await;
}

#[test]
fn what_cannot_be_a_cluster_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    let new = |nodes: &[&str]| {
        let mut command = highwater(&["cluster", "new"]);
        command.arg(&files);
        nodes.iter().for_each(|node| {
            command.args(["--node", node]);
        });
        command
    };
    let (a, b, c) = (
        "127.0.0.1:1,127.0.0.1:2",
        "127.0.0.1:3,127.0.0.1:4",
        "127.0.0.1:5,127.0.0.1:6",
    );
    refuses(&mut new(&[a, b]), "a cluster has 3 or 5 nodes");
    refuses(
        &mut new(&[a, b, c, "127.0.0.1:7,127.0.0.1:8"]),
        "a cluster has 3 or 5 nodes",
    );
    refuses(
        &mut new(&[a, b, "127.0.0.1:5,127.0.0.1:4"]),
        "127.0.0.1:4 is there twice",
    );
    assert!(new(&[a, b, c]).output().expect("runs").status.success());
    refuses(&mut new(&[a, b, c]), "cannot be read or written");

    let serve = |more: &[&str]| {
        let mut command = highwater(&["serve", "--no-auth"]);
        command.arg("--cluster").arg(files.join("cluster.toml"));
        command.arg("--data-dir").arg(folder.path().join("data"));
        command.args(more);
        command
    };
    refuses(&mut serve(&[]), "it needs cluster-slot");
    refuses(&mut serve(&["--cluster-slot", "3"]), "slot 3 is not in");
    refuses(&mut serve(&["--cluster-slot", "7"]), "cluster-slot");
    refuses(
        &mut serve(&["--cluster-slot", "0", "--max-keys", "7"]),
        "the same on all nodes",
    );
    let peer_secret = read(&files.join("peer.secret"));
    let mut same = highwater(&["serve", "--cluster-slot", "0"]);
    same.arg("--cluster").arg(files.join("cluster.toml"));
    same.arg("--data-dir").arg(folder.path().join("data"));
    same.args(["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
    same.env("HIGHWATER_CLIENT_TOKEN", peer_secret.trim());
    refuses(&mut same, "a client token is the same as a peer secret");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("reads")
}
