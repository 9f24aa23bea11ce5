//! What can be done to a cluster.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use highwater_server::cluster;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::Failure;
use crate::network::{PLACES, Rules, address, clients};
use crate::nodes::Nodes;
use crate::random::Random;
use crate::workload::LONGEST_LEASE;

/// One way to break a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fault {
    KillLeader,
    KillFollower,
    KillAll,
    FreezeLeader,
    FreezeLeaderLong,
    FreezeFollower,
    IsolateLeader,
    IsolateLeaderFromNodes,
    IsolateFollower,
    MuteLeader,
    DeafLeader,
    MuteFollower,
    DeafFollower,
    CutOneLink,
    Loss,
    Delay,
    FastClock,
    SlowClock,
    WallClock,
    FullDisk,
    StepDown,
    RollingRestart,
    ReplaceLeader,
    ReplaceAll,
    GrowAndShrink,
}

impl Fault {
    /// All of them, each a scenario of its own. A node whose clock ran wrong is distrusted for a while, so
    /// these come last in the tour.
    pub(crate) const ALL: [Self; 25] = [
        Self::KillLeader,
        Self::KillFollower,
        Self::KillAll,
        Self::FreezeLeader,
        Self::FreezeLeaderLong,
        Self::FreezeFollower,
        Self::IsolateLeader,
        Self::IsolateLeaderFromNodes,
        Self::IsolateFollower,
        Self::MuteLeader,
        Self::DeafLeader,
        Self::MuteFollower,
        Self::DeafFollower,
        Self::CutOneLink,
        Self::Loss,
        Self::Delay,
        Self::FullDisk,
        Self::StepDown,
        Self::RollingRestart,
        Self::ReplaceLeader,
        Self::ReplaceAll,
        Self::GrowAndShrink,
        Self::WallClock,
        Self::SlowClock,
        Self::FastClock,
    ];

    fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::KillLeader => ("kill-leader", "kill -9 of the leader"),
            Self::KillFollower => ("kill-follower", "kill -9 of a follower"),
            Self::KillAll => ("kill-all", "kill -9 of all nodes at once"),
            Self::FreezeLeader => (
                "freeze-leader",
                "SIGSTOP of the leader, for longer than an election",
            ),
            Self::FreezeLeaderLong => (
                "freeze-leader-long",
                "SIGSTOP of the leader, for longer than the longest lease",
            ),
            Self::FreezeFollower => ("freeze-follower", "SIGSTOP of a follower"),
            Self::IsolateLeader => (
                "isolate-leader",
                "the leader cut off from nodes and clients, in both directions",
            ),
            Self::IsolateLeaderFromNodes => (
                "isolate-leader-from-nodes",
                "the leader cut off from the other nodes, while clients reach it",
            ),
            Self::IsolateFollower => (
                "isolate-follower",
                "a follower cut off from the other nodes, while clients reach it",
            ),
            Self::MuteLeader => (
                "mute-leader",
                "nothing that the leader sends reaches the other nodes",
            ),
            Self::DeafLeader => (
                "deaf-leader",
                "nothing that the other nodes send reaches the leader",
            ),
            Self::MuteFollower => (
                "mute-follower",
                "nothing that a follower sends reaches the other nodes",
            ),
            Self::DeafFollower => (
                "deaf-follower",
                "nothing that the other nodes send reaches a follower",
            ),
            Self::CutOneLink => (
                "cut-one-link",
                "the leader and one follower cut off from each other alone",
            ),
            Self::Loss => ("loss", "30 of 100 packets lost at every node, at random"),
            Self::Delay => (
                "delay",
                "everything between nodes comes later, through a proxy",
            ),
            Self::FastClock => ("fast-clock", "the leader's clock runs too fast by a tenth"),
            Self::SlowClock => (
                "slow-clock",
                "the leader's clock runs too slowly by a tenth",
            ),
            Self::WallClock => (
                "wall-clock",
                "the leader's wall clock jumps by an hour, there and back",
            ),
            Self::FullDisk => ("full-disk", "the leader's disk takes nothing more"),
            Self::StepDown => ("step-down", "`highwater cluster step-down`"),
            Self::RollingRestart => (
                "rolling-restart",
                "SIGTERM and a start, one node after the other",
            ),
            Self::ReplaceLeader => (
                "replace-leader",
                "the leader killed, its disk lost, and a new node in its place",
            ),
            Self::ReplaceAll => (
                "replace-all",
                "every node killed, its disk lost, and replaced, one after the other",
            ),
            Self::GrowAndShrink => (
                "grow-and-shrink",
                "two nodes come and any two of the five go, and the leader is killed, frozen or cut off meanwhile",
            ),
        }
    }

    /// What it is called on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.told().0
    }

    /// What happens.
    pub(crate) fn what(self) -> &'static str {
        self.told().1
    }

    /// Whether one process ends by it, and comes back only when all is mended.
    pub(crate) fn ends_one(self) -> bool {
        matches!(self, Self::KillLeader | Self::KillFollower)
    }

    /// Whether it may happen together with others. Those that may not need a majority to come to
    /// their end.
    pub(crate) fn combines(self) -> bool {
        !matches!(
            self,
            Self::RollingRestart | Self::ReplaceLeader | Self::ReplaceAll | Self::GrowAndShrink
        )
    }
}

/// What each node drops at the moment.
#[derive(Debug)]
pub(crate) struct Drops(Vec<Rules>);

impl Drops {
    pub(crate) fn none() -> Self {
        Self((0..PLACES).map(|_| Rules::default()).collect())
    }

    fn at(&mut self, slot: u8) -> &mut Rules {
        &mut self.0[usize::from(slot)]
    }

    fn are_none(&self) -> bool {
        self.0.iter().all(|rules| *rules == Rules::default())
    }

    async fn apply(&self, nodes: &Nodes) -> Result<(), Failure> {
        for (slot, rules) in (0..PLACES).zip(&self.0) {
            nodes.network().drop_at(slot, rules).await?;
        }
        Ok(())
    }

    /// Nothing is dropped any more.
    pub(crate) async fn clear(&mut self, nodes: &Nodes) -> Result<(), Failure> {
        *self = Self::none();
        self.apply(nodes).await
    }
}

/// Breaks the cluster in this way. What does not mend itself stays broken.
pub(crate) async fn inject(
    fault: Fault,
    nodes: &mut Nodes,
    drops: &mut Drops,
    random: &mut Random,
) -> Result<(), Failure> {
    let slots: Vec<u8> = nodes.all().collect();
    // With nobody in the lead anybody will do.
    let leader = nodes.leader().await;
    let leader = leader.unwrap_or_else(|| *random.choose(&slots));
    let others: Vec<u8> = slots
        .iter()
        .copied()
        .filter(|slot| *slot != leader)
        .collect();
    let follower = *random.choose(&others);
    let rest = |of: u8| -> Vec<Ipv4Addr> {
        let rest = slots.iter().filter(|slot| **slot != of);
        rest.map(|slot| address(*slot)).collect()
    };
    match fault {
        Fault::KillLeader => nodes.kill(leader)?,
        Fault::KillFollower => nodes.kill(follower)?,
        Fault::KillAll => {
            for slot in &slots {
                nodes.kill(*slot)?;
            }
        }
        Fault::FreezeLeader => {
            nodes.signal(leader, Signal::SIGSTOP)?;
            sleep(random.millis(1_500..2_500)).await;
            nodes.signal(leader, Signal::SIGCONT)?;
        }
        Fault::FreezeLeaderLong => {
            nodes.signal(leader, Signal::SIGSTOP)?;
            sleep(LONGEST_LEASE + Duration::from_millis(500)).await;
            nodes.signal(leader, Signal::SIGCONT)?;
        }
        Fault::FreezeFollower => nodes.signal(follower, Signal::SIGSTOP)?,
        Fault::IsolateLeader => {
            let everybody = rest(leader).into_iter().chain([clients()]);
            *drops.at(leader) = Rules::cut_off(everybody);
        }
        Fault::IsolateLeaderFromNodes => *drops.at(leader) = Rules::cut_off(rest(leader)),
        Fault::IsolateFollower => *drops.at(follower) = Rules::cut_off(rest(follower)),
        Fault::MuteLeader => drops.at(leader).to.extend(rest(leader)),
        Fault::DeafLeader => drops.at(leader).from.extend(rest(leader)),
        Fault::MuteFollower => drops.at(follower).to.extend(rest(follower)),
        Fault::DeafFollower => drops.at(follower).from.extend(rest(follower)),
        Fault::CutOneLink => *drops.at(leader) = Rules::cut_off([address(follower)]),
        Fault::Loss => slots.iter().for_each(|slot| drops.at(*slot).loss = LOSS),
        Fault::Delay => nodes.delay(random.millis(20..130))?,
        Fault::FastClock => {
            nodes.skew(leader, TENTH, 0)?;
            // Until the other nodes have noticed it, leases may end early by a tenth of that time. That
            // counts as jumps of the clock; from then on none is allowed for.
            let begun = Instant::now();
            while begun.elapsed() < NOTICED {
                nodes.clock_jumped(STEP / 10);
                sleep(STEP).await;
            }
            sleep(NOTICED).await;
        }
        Fault::SlowClock => {
            nodes.skew(leader, -TENTH, 0)?;
            sleep(NOTICED).await;
        }
        Fault::WallClock => {
            for hours in [1, -1, 0] {
                nodes.skew(leader, 0, hours * 3_600_000)?;
                sleep(random.millis(300..1_000)).await;
            }
        }
        Fault::FullDisk => {
            nodes.fill(leader, true)?;
            let begun = Instant::now();
            while nodes.is_up(leader) && begun.elapsed() < STEPPING_OUT {
                sleep(Duration::from_millis(10)).await;
                nodes.look()?;
            }
            if nodes.is_up(leader) && drops.are_none() {
                return Err(format!("node {leader} goes on with a disk that is full").into());
            }
        }
        Fault::StepDown => {
            // It may be refused: the leader may have changed meanwhile, or nobody may take over.
            let _ = cluster::step_down(&nodes.file, leader, None).await;
        }
        Fault::RollingRestart => {
            for slot in slots {
                nodes.terminate(slot).await?;
                nodes.whole().await?;
            }
        }
        Fault::ReplaceLeader => nodes.replace(leader).await?,
        Fault::ReplaceAll => {
            for slot in slots {
                nodes.replace(slot).await?;
                // The next one only when all voters have caught up.
                nodes.whole().await?;
            }
        }
        Fault::GrowAndShrink => nodes.grow_and_shrink(random).await?,
    }
    drops.apply(nodes).await
}

/// How long a leader with a full disk may go on: clients have it write all the time.
const STEPPING_OUT: Duration = Duration::from_secs(5);
/// How much too fast a clock runs, in millionths.
const TENTH: i32 = 100_000;
/// How soon the other nodes have to have noticed a clock like that: with short round trips within half
/// a second, and the rest is for a busy machine.
const NOTICED: Duration = Duration::from_millis(2_500);
const STEP: Duration = Duration::from_millis(50);
/// Of a hundred packets.
const LOSS: u8 = 30;
