//! A process in its slot: a node of the cluster, or not yet.
//!
//! A process with a data directory is a node from its start on. In a volatile cluster, who a process is
//! lives and dies with its memory. It becomes the first node of its slot when `init` marks it, or a
//! later one when the leader has let it in; until then it has no engine, so there is nothing that could
//! vote or store. `docs/adr/0014-volatile-clusters.md` says why that is enough.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use highwater_lock::HashSeed;
use highwater_protocol::handshake::Slot;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clocks::{ClockStatus, Clocks};
use super::desk::Desk;
use super::file::ClusterFile;
use super::log::Log;
use super::marks;
use super::network::Network;
use super::node::{Failure, Node};
use super::peer::Trust;
use super::peer::frame::{FRESH, MARK};
use super::peer::handshake::Caller;
use super::peer::link::Link;
use super::replica::Replica;
use super::retention::Retention;
use super::rules::Pace;
use super::snapshots::Snapshots;
use super::start::ClusterError;
use super::status::{Members, NodeRole, NodeStatus};
use super::survey::{A_LEADER, Gone, Survey};
use super::types::{Address, Member, Raft};
use crate::metrics::Count;
use crate::system::{self, NodeClock};

/// See the module's description.
pub(crate) struct Presence {
    pub(super) slot: Slot,
    pub(super) trust: Arc<Trust>,
    pub(super) file: ClusterFile,
    pub(super) desk: Arc<Desk>,
    /// Of a durable node: where its memory is.
    folder: Option<PathBuf>,
    engine: Engine,
    /// Tells this process from every other.
    process: String,
    node: OnceLock<Arc<Node>>,
    /// Something that happens to a process without a node.
    stage: Mutex<Stage>,
    /// The newest members that others have told of, as agreed on.
    heard_of: Mutex<Option<Members>>,
    /// Open connections whose callers have proved another peer secret than the first of this node.
    pub(super) other_secrets: Count,
    entering: tokio::sync::Mutex<()>,
    entered: Notify,
}

/// What a process is that is no node yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Its slot has never been part of the cluster: `init` makes it the first node.
    Fresh,
    /// Its slot has been, and the memory of the node that it had is gone.
    Joining { waits_for: String },
}

/// What an engine is made with.
pub(super) struct Engine {
    pub(super) config: Arc<openraft::Config>,
    pub(super) retention: Retention,
    pub(super) pace: Pace,
    pub(super) seed: HashSeed,
    /// The clocks that the desk has.
    pub(super) clock: NodeClock,
}

impl Presence {
    pub(super) fn new(
        slot: Slot,
        trust: Arc<Trust>,
        file: ClusterFile,
        desk: Arc<Desk>,
        folder: Option<PathBuf>,
        engine: Engine,
        process: [u8; 16],
    ) -> Self {
        Self {
            slot,
            trust,
            file,
            desk,
            folder,
            engine,
            process: process.iter().map(|byte| format!("{byte:02x}")).collect(),
            node: OnceLock::new(),
            stage: Mutex::new(Stage::Fresh),
            heard_of: Mutex::new(None),
            other_secrets: Count::default(),
            entering: tokio::sync::Mutex::new(()),
            entered: Notify::new(),
        }
    }

    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.node.get()
    }

    /// As whom this process answers its peers. One that waits to be let in is nobody yet: generation 0.
    pub(super) fn known_as(&self) -> Member {
        if let Some(node) = self.node() {
            return node.member();
        }
        let slot = self.slot;
        match self.stage() {
            Stage::Fresh => Member::first(slot),
            Stage::Joining { .. } => Member {
                slot,
                generation: 0,
            },
        }
    }

    fn stage(&self) -> Stage {
        let stage = self.stage.lock();
        stage.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_stage(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Becomes this node, with what it has stored so far.
    pub(super) async fn become_node(
        &self,
        member: Member,
        log: Log,
        snapshots: Snapshots,
    ) -> Result<(), ClusterError> {
        let replica = Replica::new(Arc::clone(&self.desk), self.engine.seed, snapshots);
        let network = Network::new(Arc::clone(&self.trust), member);
        let config = Arc::clone(&self.engine.config);
        let raft = Raft::new(member.id(), config, network, log, replica).await;
        let raft = raft.map_err(|error| ClusterError::Engine(error.to_string()))?;
        let (trust, desk) = (Arc::clone(&self.trust), Arc::clone(&self.desk));
        let process =
            system::random().map_err(|error| ClusterError::Io(io::Error::other(error)))?;
        let clocks = Clocks::new(self.engine.clock.clone(), u64::from_be_bytes(process));
        let (file, pace) = (self.file.clone(), self.engine.pace);
        let node = Node::new(member, trust, file, desk, raft, clocks, pace);
        let taken = self.node.set(Arc::new(node));
        taken.map_err(|_| ClusterError::Engine("the process is a node already".to_owned()))?;
        self.entered.notify_one();
        tracing::info!(%member, "this process is a node of the cluster");
        Ok(())
    }

    /// The same, with an empty memory.
    async fn become_new(&self, member: Member) -> Result<(), ClusterError> {
        let snapshots = Snapshots::in_memory(self.file.identity());
        self.become_node(member, Log::in_memory(), snapshots).await
    }

    /// Keeps the node going, and waits first until the process is one. Returns when it cannot go on.
    pub(super) async fn live(self: Arc<Self>) {
        let (node, let_in_by) = match self.find_place().await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "this process cannot have a part in the cluster");
                self.desk.fail();
                return;
            }
        };
        let mut tasks = JoinSet::new();
        let (proposer, keeper) = (Arc::clone(&node), Arc::clone(&node));
        let (comparer, leaver) = (Arc::clone(&node), Arc::clone(&node));
        tasks.spawn(async move { proposer.propose().await });
        tasks.spawn(async move { keeper.tend().await });
        tasks.spawn(async move { comparer.compare_clocks().await });
        tasks.spawn(async move { leaver.give_way().await });
        let (tidier, retention) = (Arc::clone(&node), self.engine.retention);
        tasks.spawn(async move { tidier.tidy_log(retention).await });
        tokio::select! {
            () = node.watch() => {}
            gone = self.look_around(&node, let_in_by) => match gone {
                Gone::Displaced(newer) => {
                    tracing::error!(
                        member = %node.member(), newer,
                        "another process has taken this slot over: this one ends, and does not come back"
                    );
                    self.desk.displace();
                }
                Gone::Removed => self.go(&node).await,
            }
        }
    }

    /// Ends this node's part for good: an operator has removed it.
    async fn go(&self, node: &Node) {
        let marks: Vec<PathBuf> = self
            .folder
            .iter()
            .map(|at| at.join(marks::REMOVED))
            .collect();
        let member = node.member();
        let left = tokio::task::spawn_blocking(move || marks::leave(&marks, member)).await;
        if !matches!(left, Ok(Ok(()))) {
            tracing::error!(?left, "no mark can be left that this node was removed");
        }
        let and_then = match self.folder {
            Some(_) => "does not start again with this data directory",
            None => "has no part in it when it starts again",
        };
        tracing::error!(%member, "this node was removed from the cluster: it ends, and {and_then}");
        self.desk.remove();
    }

    /// Waits until this process is a node, and does what it takes. Gives the entry too by which a leader has let it
    /// in.
    async fn find_place(&self) -> Result<(Arc<Node>, Option<u64>), ClusterError> {
        let mut survey = Survey::new(self);
        let mut pause = SHORTEST_PAUSE;
        let mut let_in_by = None;
        loop {
            if let Some(node) = self.node() {
                return Ok((Arc::clone(node), let_in_by));
            }
            let found = survey.ask(self).await;
            match self.stage() {
                Stage::Fresh if found.has_begun() => self.give_up_being_first().await?,
                Stage::Fresh => {}
                Stage::Joining { .. } => match survey.join(&self.process).await {
                    Ok((generation, entry)) => {
                        let_in_by = entry;
                        let slot = self.slot;
                        self.become_new(Member { slot, generation }).await?;
                        continue;
                    }
                    Err(waits_for) => {
                        self.desk.set_dead(survey.is_dead(self, &found));
                        self.waits_for(match found.all_lost() {
                            Some(others) if self.heard_of().is_none() => format!(
                                "{A_LEADER}: all {} that answer have lost their memory, and nobody knows who votes",
                                others + 1
                            ),
                            _ => waits_for,
                        });
                    }
                },
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.entered.notified() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn waits_for(&self, waits_for: String) {
        let stage = Stage::Joining { waits_for };
        if self.stage() != stage {
            if let Stage::Joining { waits_for } = &stage {
                tracing::warn!(waits_for, "this process waits for a part in the cluster");
            }
            self.set_stage(stage);
        }
    }

    /// From now on this process is one whose slot has been part of the cluster, and knows of nothing.
    pub(super) fn has_forgotten(&self) {
        self.waits_for(A_LEADER.to_owned());
    }

    /// The newest members that this process knows of, from its own log or from others.
    pub(super) fn newest_members(&self) -> Option<Members> {
        let own = self.node().and_then(|node| node.status().members);
        own.into_iter()
            .chain(self.heard_of())
            .max_by_key(Members::age)
    }

    fn heard_of(&self) -> Option<Members> {
        let heard = self.heard_of.lock();
        heard.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Others say that these members are agreed on.
    pub(super) fn hear_of(&self, members: &Members) {
        let heard = self.heard_of.lock();
        let mut heard = heard.unwrap_or_else(PoisonError::into_inner);
        if heard
            .as_ref()
            .is_none_or(|heard| heard.age() <= members.age())
        {
            *heard = Some(members.clone());
        }
    }

    /// The cluster has begun and this process was not there: its slot is a new one, or its mark is lost.
    async fn give_up_being_first(&self) -> Result<(), ClusterError> {
        let _one = self.entering.lock().await;
        if self.node().is_some() {
            return Ok(());
        }
        let marker = self.file.marker(self.slot);
        tracing::warn!(marker = %marker.display(), "the cluster has begun, and the mark of this slot is not there");
        self.leave_mark(Member::first(self.slot)).await?;
        self.has_forgotten();
        Ok(())
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let mut status = match (self.node(), self.stage()) {
            (Some(node), _) => node.status(),
            (None, stage) => self.status_of(stage),
        };
        status.process.clone_from(&self.process);
        status.dead = self.desk.is_dead();
        status.other_secrets = self.other_secrets.read();
        status
    }

    fn status_of(&self, stage: Stage) -> NodeStatus {
        let counts = self.desk.counts();
        let waits_for = match stage {
            Stage::Fresh => None,
            Stage::Joining { waits_for } => Some(waits_for),
        };
        NodeStatus {
            slot: self.slot.get(),
            generation: 0,
            role: match waits_for {
                None => NodeRole::Leaderless,
                Some(_) => NodeRole::Joining,
            },
            term: 0,
            leader: None,
            last_entry: None,
            applied: None,
            snapshot: None,
            voters: Vec::new(),
            held_keys: counts.held_keys,
            waiters: counts.waiters,
            clock: ClockStatus::default(),
            begun: waits_for.is_some(),
            process: String::new(),
            members: self.heard_of(),
            whole: false,
            dead: false,
            other_secrets: 0,
            waits_for,
        }
    }

    /// Ends its part in an orderly way.
    pub(crate) async fn retire(&self) {
        match self.node() {
            Some(node) => node.retire().await,
            None => self.desk.drain(),
        }
    }

    /// Ends the engine. What was written stays.
    pub(crate) async fn end(&self) {
        if let Some(node) = self.node() {
            node.end().await;
        }
    }

    /// That this slot has never been part of this cluster.
    pub(super) async fn is_fresh(&self) -> Result<(), Failure> {
        let used = "this identity was used here before: a cluster begins only once";
        let begun = match self.node() {
            Some(node) => node.raft().is_initialized().await?,
            None => self.stage() != Stage::Fresh,
        };
        match begun || self.file.marker(self.slot).exists() {
            true => Err(used.into()),
            false => Ok(()),
        }
    }

    /// Notes that the identity is used, beside the cluster file and in the data directory, and becomes
    /// the first node of the slot, if it is none.
    pub(super) async fn mark(&self) -> Result<(), Failure> {
        let _one = self.entering.lock().await;
        self.is_fresh().await?;
        self.leave_mark(self.known_as()).await?;
        match self.node() {
            Some(node) => node.set_begun(true),
            None => self.become_new(Member::first(self.slot)).await?,
        }
        Ok(())
    }

    async fn leave_mark(&self, member: Member) -> Result<(), ClusterError> {
        let folder = self.folder.iter().map(|folder| folder.join(marks::BEGUN));
        let marks: Vec<PathBuf> = folder.chain([self.file.marker(self.slot)]).collect();
        let left = tokio::task::spawn_blocking(move || marks::leave(&marks, member)).await;
        let left = left.map_err(|panic| ClusterError::Io(panic.into()))?;
        left.map_err(|source| ClusterError::Marker {
            marker: self.file.marker(self.slot),
            source,
        })
    }

    /// Begins the cluster, once.
    pub(super) async fn init(&self) -> Result<(), Failure> {
        self.is_fresh().await?;
        let own = Caller::Node(self.known_as());
        let all = self.file.all().iter();
        let others = all.filter(|node| node.slot != self.slot);
        let links: Vec<Link> = others
            .map(|node| {
                let to = Member::first(node.slot).into();
                let address = node.addresses.peers.clone();
                Link::new(Arc::clone(&self.trust), own, to, address)
            })
            .collect();
        for kind in [FRESH, MARK] {
            for link in &links {
                let asked = link.call(kind, Vec::new(), ASK_TIME).await;
                asked.map_err(|error| format!("slot {}: {error}", link.slot().get()))?;
            }
            match kind {
                FRESH => self.is_fresh().await?,
                _ => self.mark().await?,
            }
        }
        let members = self.file.all().iter().map(|node| {
            let address = Address(node.addresses.peers.clone());
            (Member::first(node.slot).id(), address)
        });
        let members: std::collections::BTreeMap<_, _> = members.collect();
        let node = self.node().ok_or(NO_PART)?;
        node.raft().initialize(members).await?;
        tracing::info!("the cluster begins");
        Ok(())
    }
}

/// What a process says that is no node.
pub(super) const NO_PART: &str = "this process has no part in the cluster yet";
const ASK_TIME: Duration = Duration::from_secs(3);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId as _;
    use openraft::vote::leader_id_std::LeaderId;

    use super::*;
    use crate::cluster::codec::{self, Ballot};
    use crate::cluster::peer::frame::{PRE_VOTE, VOTE};
    use crate::cluster::peer::link::LinkError;
    use crate::cluster::testing::three;
    use crate::cluster::types::{LogId, Vote};

    /// Asks this node for its vote, in both ways, as the first node of slot 0.
    async fn ask(presence: &Presence) -> [Result<Vec<u8>, LinkError>; 2] {
        let candidate = Member::first(Slot::new(0).unwrap());
        let vote = Vote {
            leader_id: LeaderId::new(9, candidate.id()),
            committed: false,
        };
        let last = LogId::new_term_index(8, 1_000);
        let mut body = Vec::new();
        codec::put_ballot(&mut body, &Ballot::new(vote, Some(last)));
        let trust = Arc::clone(&presence.trust);
        let to = presence.known_as().into();
        let own = presence.file.node(presence.slot.get()).unwrap();
        let address = own.addresses.peers.clone();
        let link = Link::new(trust, Caller::Node(candidate), to, address);
        [
            link.call(PRE_VOTE, body.clone(), ASK_TIME).await,
            link.call(VOTE, body, ASK_TIME).await,
        ]
    }

    /// It was let in, and nobody has told it yet that it belongs to the cluster.
    #[tokio::test]
    async fn a_node_that_took_a_slot_over_gives_no_vote_before_its_log_has_it() {
        for (generation, votes) in [(1, true), (2, false)] {
            let (_folder, presences) = three().await;
            let presence = &presences[1];
            let slot = presence.slot;
            let member = Member { slot, generation };
            presence.become_new(member).await.unwrap();
            for answer in ask(presence).await {
                match answer {
                    Ok(_) => assert!(votes, "generation {generation} votes"),
                    Err(LinkError::Failed(why)) => assert!(!votes && why.contains("not yet heard")),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}
