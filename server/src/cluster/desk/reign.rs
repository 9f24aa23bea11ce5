//! What a node has asked for and proposed while it leads, and what it may tell of it.
//!
//! A request is *asked* until the proposer takes it, then *proposed* until its entry is applied. Of
//! what was only asked it is certain that it has no effect. Of what was proposed, nothing is
//! certain but what the log says: if the log does not speak within [`PATIENCE`], the client is told
//! that nobody knows, and whatever the entry brings it later is taken back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use highwater_lock::{ConnectionId, Epoch, FencingToken, Key, Operation, Timestamp, WaiterId};
use highwater_protocol::{Reply, RequestNumber};

use super::company::{Company, FEW};
use super::{Away, Role, State, continued};
use crate::cluster::batch::{Batch, weight};
use crate::desk::waiter;
use crate::translate::Asked;

/// What to do with the outcome of a command.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Nothing,
    /// It was the one tick on its way.
    Ticked,
    /// Its client was told that nobody knows: whatever it brings is taken back.
    Forgotten {
        waiter: WaiterId,
    },
    /// Its client is to ask another node.
    SentAway {
        waiter: WaiterId,
    },
    /// An operator waits for it.
    Forced {
        order: u64,
    },
    Answer {
        connection: ConnectionId,
        asked: Asked,
    },
    Cancelled {
        connection: ConnectionId,
        asked: Asked,
        acquire: WaiterId,
    },
    Tell {
        connection: ConnectionId,
        asked: Asked,
        key: Key,
        from_slot: u32,
    },
}

impl Then {
    /// Whose request it is.
    pub(super) fn client(&self) -> Option<(ConnectionId, RequestNumber)> {
        match self {
            Self::Nothing
            | Self::Ticked
            | Self::Forgotten { .. }
            | Self::SentAway { .. }
            | Self::Forced { .. } => None,
            Self::Answer { connection, asked }
            | Self::Cancelled {
                connection, asked, ..
            }
            | Self::Tell {
                connection, asked, ..
            } => Some((*connection, asked.id)),
        }
    }

    /// Whether nobody has asked for it, so that it has to be done whoever has gone.
    fn is_own(&self) -> bool {
        self.client().is_none() && !matches!(self, Self::Forced { .. })
    }
}

#[derive(Debug)]
pub(super) struct Wish {
    /// This node's clock when it was asked for.
    at: Timestamp,
    operation: Operation,
    then: Then,
}

impl Wish {
    pub(super) fn is_acquire(&self) -> bool {
        matches!(
            self.operation,
            Operation::Acquire { .. } | Operation::AcquireSlot { .. }
        )
    }
}

#[derive(Debug)]
struct Proposed {
    /// This node's clock when it was proposed.
    at: Timestamp,
    thens: Vec<Then>,
    /// Those that no client has asked for, and that have to be asked for again if they are refused.
    own: Vec<(Operation, Then)>,
}

/// What became of a batch that was proposed and not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Fate {
    /// It never came into any log.
    Refused,
    /// It was in this node's log, and may still come about.
    Unknown,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Reign {
    term: u64,
    /// Lease time and this node's clock when it began, or when lease time went on.
    began: (Timestamp, Timestamp),
    /// The latest lease time under which anything was proposed.
    stamp: Timestamp,
    /// Whether lease time stands still.
    is_stopped: bool,
    /// No token below this one was granted in it.
    first_token: Option<FencingToken>,
    wishes: VecDeque<Wish>,
    proposed: BTreeMap<u64, Proposed>,
    pub(super) company: Company,
    batches: u64,
    ticking: bool,
    /// Queued acquires whose clients were told that nobody knows.
    forgotten: BTreeSet<WaiterId>,
    /// This node's clock when it was found to lead no more.
    ended: Option<Timestamp>,
}

impl Reign {
    pub(super) fn term(&self) -> u64 {
        self.term
    }

    pub(super) fn lease_time(&self, now: Timestamp) -> Timestamp {
        match self.is_stopped {
            true => self.stamp,
            false => continued(self.began, now),
        }
    }

    /// Stamps nothing with a later time than it has until now.
    pub(super) fn stop_time(&mut self) {
        self.is_stopped = true;
    }

    /// Lease time goes on from where it was stopped: leases got longer by that.
    pub(super) fn let_time_go_on(&mut self, now: Timestamp) {
        self.began = (self.stamp, now);
        self.is_stopped = false;
    }

    /// Whether what was asked for is worth a batch of its own while others are under way.
    pub(super) fn has_another_batch(&self) -> bool {
        let under_way = self.proposed.values().map(|batch| batch.thens.len());
        let all = under_way.sum::<usize>() + self.wishes.len();
        self.has_work() && (all <= FEW || self.wishes.len() >= FULL)
    }

    pub(super) fn expects_more(&mut self) -> bool {
        self.has_work() && self.company.is_worth_waiting(self.wishes.len())
    }

    pub(super) fn expected_in_vain(&mut self) {
        self.company.missed();
    }

    pub(super) fn has_work(&self) -> bool {
        !self.wishes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.wishes.len() >= MOST_WISHES
    }

    /// What waits for the proposer, and the batches without an outcome.
    pub(super) fn under_way(&self) -> (usize, usize) {
        (self.wishes.len(), self.proposed.len())
    }

    pub(super) fn is_ticking(&self) -> bool {
        self.ticking
    }

    pub(super) fn ticked(&mut self) {
        self.ticking = false;
    }

    pub(super) fn may_have_granted(&self, token: FencingToken) -> bool {
        self.first_token.is_some_and(|first| token >= first)
    }

    pub(super) fn ask(&mut self, at: Timestamp, operation: Operation, then: Then) {
        self.wishes.push_back(Wish {
            at,
            operation,
            then,
        });
    }

    /// That the client of a queued acquire was told that nobody knows.
    pub(super) fn forget(&mut self, waiter: WaiterId) {
        self.forgotten.insert(waiter);
    }

    pub(super) fn has_forgotten(&self, waiter: WaiterId) -> bool {
        self.forgotten.contains(&waiter)
    }

    /// A waiter has left the queue; says whether it was a forgotten one.
    pub(super) fn left(&mut self, waiter: WaiterId) -> bool {
        self.forgotten.remove(&waiter)
    }

    /// Whose outcomes are known now.
    pub(super) fn applied(&mut self, number: u64) -> Vec<Then> {
        self.company.begin();
        let proposed = self.proposed.remove(&number);
        proposed.map(|proposed| proposed.thens).unwrap_or_default()
    }
}

impl State {
    /// Begins, ends or goes on with a reign, and tells the clients if the leader has changed.
    pub(super) fn take_role(&mut self, now: Timestamp, role: Role) {
        if role == self.role {
            return;
        }
        tracing::info!(?role, "who leads has changed");
        self.role = role;
        self.numbers.led_by(role);
        match (role, &mut self.reign) {
            (Role::Leading { term }, Some(reign)) if reign.term == term => {
                reign.ended = None;
                if self.distrusts_clock {
                    // It was found out meanwhile.
                    self.send_acquires_away(now);
                }
            }
            (Role::Leading { term }, _) => self.begin_reign(now, term),
            _ => self.turn_away_wishes(),
        }
        let leader = match role {
            Role::Leading { .. } => Some(self.slot),
            _ => self.leader(),
        };
        for link in self.connections.values() {
            link.outbox.deliver(&Reply::Leader { leader }, None);
        }
    }

    /// Everything of earlier terms that is in the log has been applied by now, and what is not will
    /// never be.
    fn begin_reign(&mut self, now: Timestamp, term: u64) {
        self.end_reign(Some(Away::NoLeader));
        self.reign = Some(Reign {
            term,
            began: (continued(self.stamped, now), now),
            stamp: self.stamped.0,
            is_stopped: self.distrusts_clock,
            first_token: self.machine.next_token(),
            wishes: VecDeque::new(),
            proposed: BTreeMap::new(),
            company: Company::default(),
            batches: 0,
            ticking: true,
            forgotten: BTreeSet::new(),
            ended: None,
        });
        // The first command of an epoch removes all who waited in an older one.
        self.ask(now, Operation::Tick, Then::Ticked);
    }

    /// Nothing was proposed for them: they may ask the other leader. What nobody has asked for stays.
    fn turn_away_wishes(&mut self) {
        let away = self.elsewhere();
        self.give_up(away, |_| true);
    }

    /// Turns away those whose wishes satisfy this.
    pub(super) fn give_up(&mut self, away: Away, is_given_up: impl Fn(&Wish) -> bool) {
        let mut given_up = Vec::new();
        if let Some(reign) = &mut self.reign {
            reign.wishes.retain(|wish| {
                let stays = wish.then.is_own() || !is_given_up(wish);
                if !stays {
                    given_up.push(wish.then.clone());
                }
                stays
            });
        }
        for then in given_up {
            self.turn_asker_away(&then, away);
        }
    }

    /// Tells whoever asked for something that it will certainly not come about.
    fn turn_asker_away(&mut self, then: &Then, away: Away) {
        match then {
            Then::Forced { order } => self.turn_operator_away(*order, away),
            then => {
                if let Some((connection, id)) = then.client() {
                    self.turn_away(connection, id, away);
                }
            }
        }
    }

    fn elsewhere(&self) -> Away {
        self.elsewhere_unless_leading().unwrap_or(Away::NoLeader)
    }

    /// What whoever asks for something is told if this node does not lead.
    pub(super) fn elsewhere_unless_leading(&self) -> Option<Away> {
        match self.role {
            Role::Following(slot) => Some(Away::Moved(slot)),
            Role::Leaderless => Some(Away::NoLeader),
            Role::Leading { .. } => None,
        }
    }

    /// Answers everything that is open. Of what was proposed nobody knows; those who queue will
    /// never be granted if that is `certain`.
    pub(super) fn end_reign(&mut self, certain: Option<Away>) {
        self.turn_away_wishes();
        // Their orders were proposed.
        self.operators.clear();
        let reign = self.reign.take();
        let proposed = reign.iter().flat_map(|reign| reign.proposed.values());
        let proposed = proposed.flat_map(|proposed| proposed.thens.iter());
        let proposed: BTreeSet<_> = proposed.filter_map(Then::client).collect();
        for (connection, link) in &mut self.connections {
            for id in std::mem::take(&mut link.open).into_keys() {
                let reply = match certain {
                    Some(away) if !proposed.contains(&(*connection, id)) => away.reply(id),
                    _ => Reply::Indeterminate { id },
                };
                link.outbox.deliver(&reply, None);
            }
        }
    }

    pub(super) fn next_batch(&mut self, now: Timestamp) -> Option<Batch> {
        let Role::Leading { term } = self.role else {
            return None;
        };
        let reign = self.reign.as_mut().filter(|reign| reign.term == term)?;
        let mut operations = Vec::new();
        let (mut thens, mut own) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        while operations.len() < MOST_COMMANDS && bytes < MOST_BYTES {
            let Some(Wish {
                operation, then, ..
            }) = reign.wishes.pop_front()
            else {
                break;
            };
            bytes += weight(&operation);
            if then.is_own() {
                own.push((operation.clone(), then.clone()));
            }
            operations.push(operation);
            thens.push(then);
        }
        if operations.is_empty() {
            return None;
        }
        reign.company.proposed();
        reign.batches += 1;
        self.numbers.commands.record(operations.len() as u64);
        let number = reign.batches;
        let at = now;
        reign.proposed.insert(number, Proposed { at, thens, own });
        reign.stamp = reign.lease_time(now).max(reign.stamp);
        Some(Batch {
            epoch: Epoch::new(term),
            leader: self.slot,
            stamp: reign.stamp,
            number,
            operations,
        })
    }

    pub(super) fn settle(&mut self, now: Timestamp, term: u64, number: u64, fate: Fate) {
        let away = self.elsewhere();
        let Some(reign) = self.reign.as_mut().filter(|reign| reign.term == term) else {
            return;
        };
        let Some(Proposed { thens, own, .. }) = reign.proposed.remove(&number) else {
            return;
        };
        match fate {
            Fate::Refused => {
                // Ours to do, whoever has gone: as soon as it is possible again.
                for (operation, then) in own.into_iter().rev() {
                    let at = now;
                    reign.wishes.push_front(Wish {
                        at,
                        operation,
                        then,
                    });
                }
                for then in &thens {
                    self.turn_asker_away(then, away);
                }
            }
            Fate::Unknown => {
                if thens.iter().any(|then| matches!(then, Then::Ticked)) {
                    reign.ticking = false;
                }
                for then in &thens {
                    if let Then::Forced { order } = then {
                        self.operators.remove(order);
                    }
                    if let Some((connection, id)) = then.client() {
                        self.nobody_knows(connection, id);
                    }
                }
            }
        }
    }

    /// Tells a client that nobody knows, and takes back what its request brings it later.
    fn nobody_knows(&mut self, connection: ConnectionId, id: RequestNumber) {
        let link = self.connections.get(&connection);
        let asked = link.and_then(|link| link.open.get(&id).copied());
        self.reply(connection, id, &Reply::Indeterminate { id }, None);
        if let Some(reign) = &mut self.reign
            && asked.is_some_and(|asked| asked.kind.is_acquire())
        {
            reign.forget(waiter(connection, id));
        }
    }

    /// Proposes the passing of time, and gives up what has taken too long.
    pub(super) fn let_time_pass(&mut self, now: Timestamp) {
        let leads = matches!(self.role, Role::Leading { .. });
        let due = self.machine.next_deadline();
        let lease_time = self.lease_time(now);
        if let Some(reign) = &mut self.reign
            && leads
            && !reign.is_stopped
            && !reign.ticking
            && due.is_some_and(|due| due <= lease_time)
        {
            reign.ticking = true;
            reign.ask(now, Operation::Tick, Then::Ticked);
        }
        self.give_up_wishes(now);
        self.give_up_proposed(now);
        if !leads {
            self.give_up_queued(now);
        }
    }

    /// Proposes that time passes, which changes nothing that would not be so anyway, if nothing is under way.
    pub(super) fn reassure(&mut self, now: Timestamp) {
        let leads = matches!(self.role, Role::Leading { .. });
        if let Some(reign) = &mut self.reign
            && leads
            && !reign.ticking
            && reign.under_way() == (0, 0)
        {
            reign.ticking = true;
            reign.ask(now, Operation::Tick, Then::Ticked);
        }
    }

    fn give_up_wishes(&mut self, now: Timestamp) {
        let is_late = |wish: &Wish| now.saturating_since(wish.at) >= PATIENCE;
        self.give_up(Away::NoLeader, is_late);
    }

    fn give_up_proposed(&mut self, now: Timestamp) {
        let mut late = Vec::new();
        for proposed in self
            .reign
            .iter_mut()
            .flat_map(|reign| reign.proposed.values_mut())
        {
            if now.saturating_since(proposed.at) < PATIENCE {
                continue;
            }
            for then in &mut proposed.thens {
                if let Some((connection, id)) = then.client() {
                    let waiter = waiter(connection, id);
                    *then = Then::Forgotten { waiter };
                    late.push((connection, id));
                }
            }
        }
        for (connection, id) in late {
            self.reply(connection, id, &Reply::Indeterminate { id }, None);
        }
    }

    /// Those who queue at a leader that leads no more are removed by the next one. Whoever does not
    /// hear of that in time is told that nobody knows.
    fn give_up_queued(&mut self, now: Timestamp) {
        let Some(reign) = &mut self.reign else {
            return;
        };
        let since = *reign.ended.get_or_insert(now);
        if now.saturating_since(since) < PATIENCE {
            return;
        }
        let open = self.connections.iter().flat_map(|(connection, link)| {
            let ids = link.open.keys();
            ids.map(|id| (*connection, *id))
        });
        let open: Vec<_> = open.collect();
        for (connection, id) in open {
            self.nobody_knows(connection, id);
            // If this node goes on leading, it has to take them out itself.
            let waiter = waiter(connection, id);
            let then = Then::Forgotten { waiter };
            self.ask(now, Operation::Cancel { waiter }, then);
        }
    }
}

/// How long a proposal may stay without an outcome. Clients give a release up after two seconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(1_200);
/// How many requests may wait for the proposer.
const MOST_WISHES: usize = 50_000;
/// So many commands do not wait for the batch that is under way.
const FULL: usize = 256;
/// How many commands one entry carries at most.
const MOST_COMMANDS: usize = 1_024;
/// About how many bytes one entry has at most.
const MOST_BYTES: usize = 32 * 1024;
