//! Asks the other voters for their time, again and again, and judges this node's clock by that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::exchange::{Exchange, Window};
use super::{ClockHealth, ClockStatus, Judgement, PeerClock};
use crate::cluster::bytes::{Malformed, Put as _, Reader};
use crate::cluster::node::Node;
use crate::cluster::peer::frame::CLOCK;
use crate::cluster::peer::link::Link;
use crate::cluster::types::{Address, Member};
use crate::system::{self, NodeClock};

/// What this node knows of the clocks of the other voters.
pub(in crate::cluster) struct Clocks {
    clock: NodeClock,
    /// Which process this is: the clock of another one has nothing to do with that of the last.
    process: u64,
    known: Mutex<BTreeMap<Member, Known>>,
    health: watch::Sender<ClockHealth>,
}

#[derive(Debug, Default)]
struct Known {
    process: Option<u64>,
    window: Window,
    /// Questions in a row that had no answer.
    misses: u32,
    /// By how much its wall clock is ahead, and how far that may be from the truth.
    wall: Option<(i64, u64)>,
    /// What it makes of its own clock.
    distrusts_itself: bool,
    /// Whether it could lead without this node's agreement.
    is_fit: bool,
}

/// What a peer says of its time.
struct Said {
    heard: u64,
    said: u64,
    process: u64,
    wall: u64,
    trusted: bool,
    fit: bool,
}

impl Clocks {
    pub(in crate::cluster) fn new(clock: NodeClock, process: u64) -> Self {
        Self {
            clock,
            process,
            known: Mutex::default(),
            health: watch::Sender::new(ClockHealth::Good),
        }
    }

    pub(in crate::cluster) fn health(&self) -> ClockHealth {
        *self.health.borrow()
    }

    /// Whether a node may take the lead, as far as is known: not if it says that its clock is wrong.
    pub(in crate::cluster) fn may_lead(&self, peer: Member) -> bool {
        let known = self.known();
        known.get(&peer).is_none_or(|known| !known.distrusts_itself)
    }

    /// Whether a node could lead although this one's clock is wrong: the others agree with it, and have
    /// just told it so.
    fn is_fit(&self, peer: Member) -> bool {
        let known = self.known();
        known.get(&peer).is_some_and(|known| known.is_fit)
    }

    /// The same of this node, if that one's clock is wrong.
    fn is_fit_without(&self, asker: Member) -> bool {
        let now = self.clock.timestamp().as_micros();
        let known = self.known();
        let others = known.iter().filter(|(peer, _)| **peer != asker);
        let agree = others.filter(|(_, known)| known.misses == 0 && !known.window.differs(now));
        let voters = known.len() + 1;
        self.health() == ClockHealth::Good && 1 + agree.count() > voters / 2
    }

    pub(in crate::cluster) fn status(&self) -> ClockStatus {
        let now = self.clock.timestamp().as_micros();
        let known = self.known();
        let peers = known.iter().map(|(peer, known)| known.shown(*peer, now));
        ClockStatus {
            health: self.health(),
            peers: peers.collect(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Member, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, peer: Member, answer: Option<(Exchange, Said, u64)>) {
        let mut known = self.known();
        let known = known.entry(peer).or_default();
        let Some((exchange, said, own_wall)) = answer else {
            known.misses = known.misses.saturating_add(1);
            known.is_fit = false;
            return;
        };
        if known.process.replace(said.process) != Some(said.process) {
            known.window = Window::default();
        }
        known.misses = 0;
        known.distrusts_itself = !said.trusted;
        known.is_fit = said.fit;
        known.window.add(exchange);
        let error = exchange.answered.saturating_sub(exchange.asked) / 2;
        let ahead = i128::from(said.wall) + i128::from(error) - i128::from(own_wall);
        known.wall = i64::try_from(ahead).ok().map(|ahead| (ahead, error));
    }

    /// Judges, and says whether the health is another one than before.
    fn judge(&self, others: &[(Member, Address)]) -> Option<ClockHealth> {
        let now = self.clock.timestamp().as_micros();
        let judgements: Vec<Judgement> = {
            let mut known = self.known();
            known.retain(|peer, _| others.iter().any(|(other, _)| other == peer));
            // As soon as anybody differs, it takes somebody who is there to say that it is not this node.
            let doubt = known.values().any(|known| known.window.differs(now));
            let most_misses = if doubt { IN_DOUBT } else { MOST_MISSES };
            let others = others.iter().map(|(other, _)| known.get(other));
            let judged = |known: &Known| known.judgement(now, most_misses);
            others
                .map(|known| known.map_or(Judgement::Agrees, judged))
                .collect()
        };
        let health = ClockHealth::among(others.len() + 1, &judgements);
        let changed = self.health.send_if_modified(|old| {
            let changed = *old != health;
            *old = health;
            changed
        });
        changed.then_some(health)
    }
}

impl Known {
    fn judgement(&self, now: u64, most_misses: u32) -> Judgement {
        if self.window.differs(now) {
            return Judgement::Differs;
        }
        match self.misses < most_misses {
            true => Judgement::Agrees,
            false => Judgement::Silent,
        }
    }

    fn shown(&self, peer: Member, now: u64) -> PeerClock {
        let estimate = self.window.rate().map(super::exchange::Rate::estimate);
        PeerClock {
            slot: peer.slot.get(),
            answers: self.misses < MOST_MISSES && self.process.is_some(),
            differs: self.window.differs(now),
            rate_ppm: estimate.map(|(rate, _)| rate),
            error_ppm: estimate.map(|(_, error)| error),
            wall_ahead_micros: self.wall.map(|(ahead, _)| ahead),
            wall_error_micros: self.wall.map(|(_, error)| error),
        }
    }
}

/// Answers a peer that asks for the time.
pub(in crate::cluster) fn answer(clocks: &Clocks, asker: Member) -> Vec<u8> {
    let now = clocks.clock.timestamp().as_micros();
    let mut body = Vec::new();
    // Heard and said: nothing happens in between.
    body.u64(now);
    body.u64(now);
    body.u64(clocks.process);
    body.u64(clocks.clock.wall_micros());
    body.u8((clocks.health() != ClockHealth::Differs).into());
    body.u8(clocks.is_fit_without(asker).into());
    body
}

fn read(body: &[u8]) -> Result<Said, Malformed> {
    let mut reader = Reader::new(body, "time of a peer");
    Ok(Said {
        heard: reader.u64()?,
        said: reader.u64()?,
        process: reader.u64()?,
        wall: reader.u64()?,
        trusted: reader.u8()? != 0,
        fit: reader.u8()? != 0,
    })
}

async fn ask(clock: NodeClock, link: Arc<Link>) -> Option<(Exchange, Said, u64)> {
    let asked = clock.timestamp().as_micros();
    let answered = link.call(CLOCK, Vec::new(), CALL_TIME).await.ok()?;
    let arrived = clock.timestamp().as_micros();
    let said = read(&answered).ok()?;
    let exchange = Exchange {
        asked,
        heard: said.heard,
        said: said.said,
        answered: arrived,
    };
    Some((exchange, said, clock.wall_micros()))
}

impl Node {
    /// Compares clocks, for as long as it is polled.
    pub(in crate::cluster) async fn compare_clocks(&self) {
        let clocks = &self.clocks;
        let mut links: BTreeMap<Member, (Address, Arc<Link>)> = BTreeMap::new();
        let mut busy = BTreeSet::new();
        let mut under_way = FuturesUnordered::new();
        let mut next = system::now();
        loop {
            tokio::select! {
                () = sleep_until(next) => next = system::now() + INTERVAL,
                Some((peer, answer)) = under_way.next() => {
                    busy.remove(&peer);
                    clocks.note(peer, answer);
                    self.heed_clock();
                    continue;
                }
            }
            let others = self.other_voters();
            links.retain(|peer, link| others.contains(&(*peer, link.0.clone())));
            for (peer, address) in others {
                if !busy.insert(peer) {
                    continue;
                }
                let (_, link) = links.entry(peer).or_insert_with(|| {
                    let link = self.link(peer, address.clone());
                    (address, Arc::new(link))
                });
                let asking = ask(clocks.clock.clone(), Arc::clone(link));
                under_way.push(async move { (peer, asking.await) });
            }
            self.heed_clock();
        }
    }

    fn heed_clock(&self) {
        let Some(health) = self.clocks.judge(&self.other_voters()) else {
            return;
        };
        match health {
            ClockHealth::Good => tracing::info!("the clock of this node can be relied on again"),
            ClockHealth::Differs => tracing::error!(
                clocks = ?self.clocks.status(),
                "the clock of this node runs at another rate than those of the others: it grants nothing \
                 and does not lead until that is over",
            ),
            ClockHealth::Unmeasured => tracing::warn!(
                "no majority answers what the time is: this node grants nothing until that is over"
            ),
        }
        self.raft()
            .runtime_config()
            .elect(health != ClockHealth::Differs);
        self.desk.trust_clock(health == ClockHealth::Good);
    }

    /// Has another node lead whenever this one's clock cannot be relied on, for as long as it is polled.
    pub(in crate::cluster) async fn give_way(&self) {
        let mut health = self.clocks.health.subscribe();
        loop {
            let off = health.wait_for(|health| *health != ClockHealth::Good);
            if off.await.is_err() {
                return;
            }
            if self.leads() {
                match self.step_down_for(|heir| self.clocks.is_fit(heir)).await {
                    Ok(()) => tracing::warn!("the lead was given away because of the clock"),
                    Err(error) => tracing::debug!(error, "the lead is not given away"),
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// How often the others are asked.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long an answer may take. A later one would prove nothing that matters.
const CALL_TIME: Duration = Duration::from_secs(1);
/// After how many questions without an answer a peer counts as one that is not there.
const MOST_MISSES: u32 = 8;
const IN_DOUBT: u32 = 2;
/// How long to wait before the lead is offered again.
const AGAIN: Duration = Duration::from_secs(1);
