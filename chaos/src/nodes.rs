//! The processes of a cluster.

mod resize;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use highwater_history::Event;
use highwater_server::cluster::{
    self, ClusterFile, ClusterMode, NodeAddresses, NodeRole, NodeStatus,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;
use crate::network::{Network, PLACES, address};
use crate::options::Options;
use crate::process;
use crate::proxy::{PEERS, local};
use crate::random::Random;
use crate::record::{Recorder, micros};
use crate::trace::Trace;

/// All nodes, and what is needed to start one.
pub(crate) struct Nodes {
    pub(crate) file: ClusterFile,
    pub(crate) token: PathBuf,
    network: Network,
    program: PathBuf,
    work: PathBuf,
    recorder: Arc<Recorder>,
    trace: Arc<Trace>,
    random: Random,
    has_proxies: bool,
    proxies: Vec<Child>,
    /// The slots that are part of the cluster.
    members: BTreeSet<u8>,
    /// All places, also those that have no node.
    slots: Vec<Node>,
    readers: Vec<JoinHandle<()>>,
}

/// One slot and who is in it.
#[derive(Debug, Default)]
struct Node {
    process: Option<Child>,
    starts: u32,
    generation: u64,
    /// It was made to end: with a full disk, say.
    may_end: bool,
    /// It is to be removed: it has to end by itself, and does not start again.
    leaves: bool,
    stopped: bool,
}

impl Nodes {
    /// Makes the files of a cluster and a disk for each node. Nothing runs yet.
    pub(crate) async fn create(
        network: Network,
        options: &Options,
        program: &Path,
        work: &Path,
        random: Random,
        recorder: Arc<Recorder>,
        trace: Arc<Trace>,
    ) -> Result<Self, Failure> {
        let addresses: Vec<NodeAddresses> = (0..options.nodes).map(addresses).collect();
        let mode = match options.volatile {
            true => ClusterMode::Volatile,
            false => ClusterMode::Durable,
        };
        let made = ClusterFile::create_as(mode, work.join("files"), &addresses)?;
        for slot in 0..PLACES {
            // Only seen by what runs in here, and gone with it.
            let disk = work.join(format!("disk-{slot}"));
            std::fs::create_dir_all(&disk)?;
            let disk = disk.to_string_lossy().into_owned();
            process::run(&["mount", "-t", "tmpfs", "-o", DISK, "none", &disk]).await?;
            // Each node has a copy of the files of its own: it leaves marks beside them.
            let files = work.join(format!("files-{slot}"));
            std::fs::create_dir_all(&files)?;
            for path in [&made.file, &made.peer_secret, &made.client_token] {
                let name = path.file_name().ok_or("a file has a name")?;
                std::fs::copy(path, files.join(name))?;
            }
            if options.has_proxies() {
                lead_through_proxies(&files.join("cluster.toml"))?;
            }
        }
        let slots = (0..PLACES).map(|_| Node {
            generation: 1,
            ..Node::default()
        });
        Ok(Self {
            file: ClusterFile::read(&made.file)?,
            token: made.client_token,
            network,
            program: program.to_owned(),
            work: work.to_owned(),
            recorder,
            trace,
            random,
            has_proxies: options.has_proxies(),
            proxies: Vec::new(),
            members: (0..options.nodes).collect(),
            slots: slots.collect(),
            readers: Vec::new(),
        })
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// All slots that are part of the cluster.
    pub(crate) fn all(&self) -> impl Iterator<Item = u8> + use<> {
        self.members.clone().into_iter()
    }

    fn is_durable(&self) -> bool {
        self.file.mode() == ClusterMode::Durable
    }

    fn node(&mut self, slot: u8) -> &mut Node {
        &mut self.slots[usize::from(slot)]
    }

    fn disk(&self, slot: u8) -> PathBuf {
        self.work.join(format!("disk-{slot}"))
    }

    /// Starts the node of a slot, if it does not run.
    pub(crate) fn start(&mut self, slot: u8) -> Result<(), Failure> {
        let name = self.network.node(slot);
        let log = self.work.join(format!("node-{slot}.log"));
        let (data, files) = (
            self.disk(slot).join("data"),
            self.work.join(format!("files-{slot}")),
        );
        let program = self.program.clone();
        let (is_durable, has_proxies) = (self.is_durable(), self.has_proxies);
        let (clocks, peers) = (self.clock(slot), format!("{}:{PEERS}", address(slot)));
        let clock = self.random.number(0..1_000_000).to_string();
        let node = self.node(slot);
        if node.process.is_some() {
            return Ok(());
        }
        node.starts += 1;
        node.may_end = false;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name]);
        // Its monotonic clock shows something else after each start, and than those of the others.
        command
            .args(["unshare", "--time", "--monotonic", &clock])
            .arg(program);
        command.args(["serve", "--cluster-slot", &slot.to_string()]);
        command.arg("--cluster").arg(files.join("cluster.toml"));
        command
            .arg("--client-token-file")
            .arg(files.join("client.token"));
        if is_durable {
            command.args(["--cluster-generation", &node.generation.to_string()]);
            command.arg("--data-dir").arg(data);
        }
        command.env("HIGHWATER_TEST_CLOCK", clocks);
        command.args(["--log-level", LOG]);
        if has_proxies {
            command.args(["--peer-listen", &peers]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.stderr(Stdio::piped()).spawn()?;
        let said = process.stderr.take().ok_or("a pipe was asked for")?;
        node.process = Some(process);
        let start = node.starts;
        let (recorder, trace) = (Arc::clone(&self.recorder), Arc::clone(&self.trace));
        let mut log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)?;
        writeln!(log, "--- start {start}")?;
        self.readers.push(std::thread::spawn(move || {
            for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                let at = recorder.now();
                if !trace.take(at, slot, &line) {
                    let (seconds, micros) = (at / 1_000_000, at % 1_000_000);
                    // What cannot be kept is missed only by who reads it.
                    let _ = writeln!(log, "{seconds:>4}.{micros:06} {line}");
                }
            }
        }));
        Ok(())
    }

    /// Sends a signal to the process of a slot, if it runs.
    pub(crate) fn signal(&mut self, slot: u8, signal: Signal) -> Result<(), Failure> {
        let node = self.node(slot);
        if let Some(process) = &node.process {
            match signal {
                Signal::SIGSTOP => node.stopped = true,
                Signal::SIGCONT => node.stopped = false,
                _ => {}
            }
            kill(Pid::from_raw(process.id().try_into()?), signal)?;
        }
        Ok(())
    }

    /// kill -9, and the process is gone.
    pub(crate) fn kill(&mut self, slot: u8) -> Result<(), Failure> {
        let node = self.node(slot);
        node.stopped = false;
        if let Some(mut process) = node.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// SIGTERM, and waits until the process has ended by itself.
    pub(crate) async fn terminate(&mut self, slot: u8) -> Result<(), Failure> {
        self.signal(slot, Signal::SIGTERM)?;
        let begun = Instant::now();
        while let Some(process) = &mut self.node(slot).process {
            if let Some(status) = process.try_wait()? {
                self.node(slot).process = None;
                if !status.success() {
                    return Err(format!("node {slot} ended with {status} on SIGTERM").into());
                }
            } else if begun.elapsed() > ORDERLY {
                return Err(format!("node {slot} does not end on SIGTERM").into());
            }
            tokio::time::sleep(SHORT).await;
        }
        Ok(())
    }

    /// Takes all room of a node's disk, or gives it back.
    pub(crate) fn fill(&mut self, slot: u8, full: bool) -> Result<(), Failure> {
        let file = self.disk(slot).join("fill");
        if !full {
            return match std::fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        self.node(slot).may_end = true;
        let mut file = std::fs::File::create(file)?;
        let chunk = vec![0; 64 * 1024];
        while file.write_all(&chunk).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        Ok(())
    }

    /// Has a node's monotonic clock run too fast by so many millionths, and its wall clock show so many
    /// milliseconds too much.
    pub(crate) fn skew(&self, slot: u8, rate: i32, wall: i64) -> Result<(), Failure> {
        Ok(std::fs::write(
            self.clock(slot),
            format!("{rate} {wall}\n"),
        )?)
    }

    fn clock(&self, slot: u8) -> PathBuf {
        self.work.join(format!("clock-{slot}"))
    }

    /// Notes that a lease may end so much earlier than by a good clock.
    pub(crate) fn clock_jumped(&self, by: Duration) {
        let micros = micros(by);
        self.recorder.push(Event::ClockJumped { micros });
    }

    /// Has the proxies keep everything between nodes for so long.
    pub(crate) fn delay(&self, by: Duration) -> Result<(), Failure> {
        let millis = by.as_millis().to_string();
        Ok(std::fs::write(self.work.join("delay"), millis)?)
    }

    /// Notes which processes have ended.
    ///
    /// # Errors
    /// One that was not made to.
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        for (slot, node) in self.slots.iter_mut().enumerate() {
            let Some(process) = &mut node.process else {
                continue;
            };
            let ended: Option<ExitStatus> = process.try_wait()?;
            let Some(status) = ended else { continue };
            node.process = None;
            let as_expected = match status.success() {
                true => node.leaves,
                false => node.may_end,
            };
            if !as_expected {
                return Err(format!("node {slot} has ended by itself with {status}").into());
            }
        }
        Ok(())
    }

    /// Whether the node of this slot runs and is not stopped.
    pub(crate) fn is_up(&self, slot: u8) -> bool {
        let node = &self.slots[usize::from(slot)];
        node.process.is_some() && !node.stopped
    }

    /// Lets a new node take the place of one that has lost its memory.
    pub(crate) async fn replace(&mut self, slot: u8) -> Result<(), Failure> {
        self.kill(slot)?;
        if !self.is_durable() {
            // It does the rest by itself.
            return self.whole().await;
        }
        std::fs::remove_dir_all(self.disk(slot).join("data"))?;
        let begun = Instant::now();
        let generation = loop {
            if let Some(leader) = self.leader().await
                && let Ok(generation) = cluster::replace(&self.file, leader, slot, None).await
            {
                break generation;
            }
            if begun.elapsed() > HEALING {
                return Err(format!("node {slot} is not replaced").into());
            }
            tokio::time::sleep(SHORT).await;
        };
        self.node(slot).generation = generation;
        self.start(slot)?;
        loop {
            if let Some(leader) = self.leader().await
                && let Ok(true) = cluster::promote(&self.file, leader, slot, None).await
            {
                return Ok(());
            }
            self.look()?;
            if begun.elapsed() > HEALING {
                return Err(format!("the new node {slot} does not catch up").into());
            }
            tokio::time::sleep(SHORT).await;
        }
    }

    /// What the nodes say that answer.
    pub(crate) async fn statuses(&self) -> Vec<NodeStatus> {
        let mut asked = tokio::task::JoinSet::new();
        for slot in self.all().filter(|slot| self.is_up(*slot)) {
            let file = self.file.clone();
            asked.spawn(async move {
                let status = cluster::status(&file, slot, None);
                let status = tokio::time::timeout(ANSWER, status).await;
                status.ok()?.ok()
            });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    /// Who leads, if somebody does.
    pub(crate) async fn leader(&self) -> Option<u8> {
        Some(self.leading().await?.slot)
    }

    /// What the one says that leads.
    async fn leading(&self) -> Option<NodeStatus> {
        let statuses = self.statuses().await.into_iter();
        let leaders = statuses.filter(|node| node.role == NodeRole::Leader);
        leaders.max_by_key(|node| node.term)
    }

    /// Starts and continues everything, and waits until all nodes follow one leader, which finds that
    /// each of them may go.
    pub(crate) async fn whole(&mut self) -> Result<(), Failure> {
        self.delay(Duration::ZERO)?;
        for slot in self.all() {
            self.skew(slot, 0, 0)?;
            self.fill(slot, false)?;
            self.signal(slot, Signal::SIGCONT)?;
        }
        let begun = Instant::now();
        loop {
            self.look()?;
            for slot in self.all() {
                self.start(slot)?;
            }
            let statuses = self.statuses().await;
            let leader = statuses.iter().find(|node| node.role == NodeRole::Leader);
            if let Some(leader) = leader
                && leader.whole
                && leader.voters.iter().copied().collect::<BTreeSet<u8>>() == self.members
                && statuses.len() == self.members.len()
                && statuses.iter().all(|node| node.leader == Some(leader.slot))
            {
                return Ok(());
            }
            if begun.elapsed() > HEALING {
                return Err(format!("the cluster does not become whole: {statuses:?}").into());
            }
            tokio::time::sleep(SHORT).await;
        }
    }

    /// Starts the proxies of all nodes, if they have some.
    fn start_proxies(&mut self) -> Result<(), Failure> {
        if !self.has_proxies {
            return Ok(());
        }
        // And those of the operator, who tells where new nodes are, and is in no namespace of a node.
        let nodes = (0..PLACES).map(|slot| self.network.node(slot));
        for name in nodes.chain([self.network.clients()]) {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &name]);
            command.arg(std::env::current_exe()?);
            command.arg("--proxy").arg(self.work.join("delay"));
            self.proxies.push(command.stdin(Stdio::null()).spawn()?);
        }
        Ok(())
    }

    /// Begins the cluster.
    pub(crate) async fn begin(&mut self) -> Result<(), Failure> {
        self.start_proxies()?;
        for slot in self.all() {
            self.start(slot)?;
        }
        let begun = Instant::now();
        // The first ones may not listen yet.
        while self.statuses().await.len() < self.members.len() {
            self.look()?;
            if begun.elapsed() > HEALING {
                return Err("the nodes do not start".into());
            }
            tokio::time::sleep(SHORT).await;
        }
        cluster::init(&self.file, 0, None).await?;
        self.whole().await
    }

    /// Ends all nodes in an orderly way, and reads what they said to the end.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        for slot in 0..PLACES {
            self.signal(slot, Signal::SIGCONT)?;
            self.signal(slot, Signal::SIGTERM)?;
        }
        for slot in 0..PLACES {
            self.terminate(slot).await?;
        }
        for reader in self.readers.drain(..) {
            reader.join().map_err(|_| "a reader has panicked")?;
        }
        Ok(())
    }
}

/// Where the node of a slot is.
fn addresses(slot: u8) -> NodeAddresses {
    NodeAddresses {
        clients: format!("{}:5225", address(slot)),
        peers: format!("{}:{PEERS}", address(slot)),
    }
}

/// Puts the addresses of a node's own proxies into its copy of the cluster file.
fn lead_through_proxies(file: &Path) -> Result<(), Failure> {
    let mut text = std::fs::read_to_string(file)?;
    for slot in 0..PLACES {
        let direct = format!("{}:{PEERS}", address(slot));
        text = text.replace(&direct, &local(slot).to_string());
    }
    Ok(std::fs::write(file, text)?)
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for proxy in &mut self.proxies {
            let _ = proxy.kill();
            let _ = proxy.wait();
        }
        for node in &mut self.slots {
            if let Some(process) = &mut node.process {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// What each node has for its data, so that it can be filled in no time.
const DISK: &str = "size=64m";
const LOG: &str = "info,openraft=error,highwater_server::decisions=trace";
const SHORT: Duration = Duration::from_millis(20);
/// How long a node may take to say how it is.
const ANSWER: Duration = Duration::from_millis(700);
/// How long a node may take to end after SIGTERM: it hands over, and lets its clients hear of that.
const ORDERLY: Duration = Duration::from_secs(20);
/// How long a cluster may take to become whole when nothing is broken any more.
const HEALING: Duration = Duration::from_secs(20);
