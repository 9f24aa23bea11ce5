//! What a process learns by asking the others how they are.
//!
//! It asks when it is no node and looks for the leader that lets it in, and when it has not heard from a
//! leader for a while. It may find that its slot belongs to a newer node, or that a majority of the
//! voters has lost its memory. Neither decides anything about locks: those are safe because nobody
//! grants without a majority of the voters. It is for the people who have to do something about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::handshake::Slot;
use tokio::time::{Instant, sleep};

use super::bytes::{Malformed, Reader};
use super::desk::Role;
use super::node::Node;
use super::peer::Trust;
use super::peer::frame::{JOIN, JOIN_BY, STATUS, UNKNOWN};
use super::peer::handshake::{Callee, Caller};
use super::peer::link::{Link, LinkError};
use super::presence::Presence;
use super::status::{Members, NodeRole, NodeStatus, Place};
use crate::system;

/// See the module's description.
pub(super) struct Survey {
    trust: Arc<Trust>,
    own: Slot,
    /// Where the cluster file says that the others are. It may be older than the newest members, or newer.
    told: BTreeSet<Whereabouts>,
    /// Where those who answered last look for each other.
    hints: BTreeSet<Whereabouts>,
    others: BTreeMap<Whereabouts, Link>,
    /// Where one has said that it leads.
    leader: Option<Whereabouts>,
    /// How many slots the cluster file has.
    slots: usize,
    /// How many surveys in a row have found that a majority has lost its memory.
    deaths: u32,
}

/// A slot, and an address where its process may be.
type Whereabouts = (Slot, String);

fn whereabouts(members: &Members) -> impl Iterator<Item = Whereabouts> {
    let known = members.addresses.iter();
    known.filter_map(|(slot, address)| Some((Slot::new(*slot)?, address.clone())))
}

/// What the others say of themselves, by slot; those that do not answer are missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Found(BTreeMap<u8, NodeStatus>);

impl Survey {
    pub(super) fn new(presence: &Presence) -> Self {
        let all = presence.file.all().iter();
        let told = all.map(|node| (node.slot, node.addresses.peers.clone()));
        let told: BTreeSet<Whereabouts> = told.collect();
        let slots = told.len();
        Self {
            trust: Arc::clone(&presence.trust),
            own: presence.slot,
            told,
            hints: BTreeSet::new(),
            others: BTreeMap::new(),
            leader: None,
            slots,
            deaths: 0,
        }
    }

    /// Asks all others at once, wherever they may be.
    pub(super) async fn ask(&mut self, presence: &Presence) -> Found {
        self.look_up(presence.newest_members());
        let asked = self.others.iter().map(|(place, link)| async move {
            let said = link.call(STATUS, Vec::new(), ASK_TIME).await.ok()?;
            Some((place, NodeStatus::decode(&said)?))
        });
        let said = futures_util::future::join_all(asked).await;
        let mut said: Vec<_> = said.into_iter().flatten().collect();
        // Of two processes in one slot, the one that is a node counts.
        said.sort_by_key(|(_, status)| status.generation);
        let leads = |(_, status): &&(_, NodeStatus)| status.role == NodeRole::Leader;
        self.leader = said.iter().find(leads).map(|(place, _)| (*place).clone());
        let said = said.into_iter();
        let found = Found(said.map(|((slot, _), said)| (slot.get(), said)).collect());
        if let Some(members) = found.newest_agreed() {
            presence.hear_of(members);
        }
        let members = found
            .0
            .values()
            .filter_map(|status| status.members.as_ref());
        let hints: BTreeSet<_> = members.flat_map(whereabouts).collect();
        if !hints.is_empty() {
            self.hints = hints;
        }
        found
    }

    /// Has a way to all others that the file, these members or the last answers name, and to nobody else.
    fn look_up(&mut self, members: Option<Members>) {
        let known = members.iter().flat_map(whereabouts);
        let told = self.told.union(&self.hints).cloned();
        let mut places: BTreeSet<Whereabouts> = known.chain(told).collect();
        places.retain(|(slot, _)| *slot != self.own);
        self.others.retain(|place, _| places.contains(place));
        for place in places {
            let (slot, address) = place.clone();
            let (own, generation) = (Caller::Process(self.own), None);
            let to = Callee { slot, generation };
            let link = || Link::new(Arc::clone(&self.trust), own, to, address);
            self.others.entry(place).or_insert_with(link);
        }
    }

    /// Asks the leader to be let in; gives the generation that this process has from now on and the entry that
    /// says so, if the leader tells it, or what it has to wait for.
    pub(super) async fn join(&self, process: &str) -> Result<(u64, Option<u64>), String> {
        let leader = self.leader.as_ref();
        let leader = leader.and_then(|place| self.others.get(place));
        let leader = leader.ok_or(A_LEADER.to_owned())?;
        let slot = leader.slot().get();
        let body = process.as_bytes();
        let answer = ask_to_join(|kind| leader.call(kind, body.to_vec(), JOIN_TIME)).await;
        let answer = answer.map_err(|error| format!("the leader in slot {slot}: {error}"))?;
        told(&answer).map_err(|_| format!("slot {slot}, which speaks another version"))
    }

    /// Whether a majority of the voters has lost its memory, and the survey before said so too: the
    /// others are not asked all at the same moment.
    pub(super) fn is_dead(&mut self, presence: &Presence, found: &Found) -> bool {
        let mut all = found.0.clone();
        all.insert(presence.slot.get(), presence.status());
        self.deaths = match is_dead(&all, self.slots) {
            true => self.deaths.saturating_add(1),
            false => 0,
        };
        self.deaths >= ENOUGH_DEATHS
    }
}

/// Asks in the older way too if the leader does not know the newer one.
async fn ask_to_join<F>(mut ask: impl FnMut(u8) -> F) -> Result<Vec<u8>, LinkError>
where
    F: Future<Output = Result<Vec<u8>, LinkError>>,
{
    match ask(JOIN_BY).await {
        Err(LinkError::Failed(why)) if why == UNKNOWN => ask(JOIN).await,
        answer => answer,
    }
}

/// The generation of a process that is let in, and the entry that says so. Older leaders do not tell that.
fn told(answer: &[u8]) -> Result<(u64, Option<u64>), Malformed> {
    let mut reader = Reader::new(answer, "answer to a process");
    let generation = reader.u64()?;
    let entry = match answer.len() {
        8 => None,
        _ => Some(reader.u64()?),
    };
    reader.end()?;
    Ok((generation, entry))
}

/// Why a node has no part in the cluster any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// A node of this generation has its slot.
    Displaced(u64),
    /// An operator has removed it.
    Removed,
}

/// An entry by which a node was a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Belonging {
    /// Of an entry that is known to be agreed on, none is needed.
    term: Option<u64>,
    entry: u64,
}

impl Belonging {
    /// What a majority has agreed on.
    fn agreed(entry: u64) -> Self {
        Self { term: None, entry }
    }

    /// Whether these members, which a majority has agreed on, come later. An entry of a leader that was cut off
    /// may have a higher number than those that the others agreed on meanwhile, but not a higher term.
    fn is_before(self, members: &Members) -> bool {
        members.entry > self.entry || self.term.is_some_and(|term| members.term > term)
    }
}

/// The last entry by which this node was a member, as its own log says. A node that starts again does not know which
/// of its entries are agreed on.
fn belongs(own: Place, status: &NodeStatus) -> Option<Belonging> {
    let members = status.members.as_ref().filter(|known| known.has(own))?;
    let term = (!members.committed).then_some(members.term);
    let entry = members.entry;
    Some(Belonging { term, entry })
}

impl Members {
    /// The later of two has the greater one.
    pub(super) fn age(&self) -> (u64, u64) {
        (self.term, self.entry)
    }

    fn has(&self, place: Place) -> bool {
        let voters = self.voters.iter().flatten();
        voters.chain(&self.learners).any(|known| *known == place)
    }
}

impl Found {
    /// Whether a majority has agreed, after the entry by which this node was a member, that it is none. A newer
    /// node may not have heard yet that it is one, so without such an entry nothing is known.
    fn says_removed(&self, own: Place, belonged: Option<Belonging>) -> bool {
        let Some(belonged) = belonged else {
            return false;
        };
        let newest = self.newest_agreed();
        newest.is_some_and(|newest| belonged.is_before(newest) && !newest.has(own))
    }

    /// How many answer, if all of them have lost their memory and have heard of nobody who has not.
    pub(super) fn all_lost(&self) -> Option<usize> {
        let knows_nothing = |said: &NodeStatus| has_forgotten(said) && said.members.is_none();
        let all_do = !self.0.is_empty() && self.0.values().all(knows_nothing);
        all_do.then_some(self.0.len())
    }

    /// Whether anybody says that the cluster has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.0.values().any(|status| status.begun)
    }

    /// The newest members that anybody knows of and a majority has agreed on.
    fn newest_agreed(&self) -> Option<&Members> {
        let members = self.0.values().filter_map(|status| status.members.as_ref());
        let agreed = members.filter(|members| members.committed);
        agreed.max_by_key(|members| members.entry)
    }

    /// The generation that has taken the slot of this node over, if a majority has agreed on that.
    fn successor(&self, own: Place) -> Option<u64> {
        let members = self.0.values().filter_map(|status| status.members.as_ref());
        let agreed = members.filter(|members| members.committed);
        let places = agreed.flat_map(|members| {
            let voters = members.voters.iter().flatten();
            voters.chain(&members.learners)
        });
        let of_slot = places.filter(|place| place.slot == own.slot);
        let newest = of_slot.map(|place| place.generation).max();
        newest.filter(|newest| *newest > own.generation)
    }
}

/// Whether so many voters have lost their memory that those which may still have one are no majority.
///
/// Who does not answer may remember, and know more than those who do.
fn is_dead(all: &BTreeMap<u8, NodeStatus>, slots: usize) -> bool {
    if all.values().any(|said| said.role == NodeRole::Leader) {
        return false;
    }
    let newest = all.values().filter_map(|said| said.members.as_ref());
    let newest = newest.max_by_key(|members| members.age());
    let Some(Members { voters, .. }) = newest else {
        // Nobody knows who votes. With five in the file, that may be any three of them.
        let lost = all.values().filter(|said| has_forgotten(said));
        return lost.count() >= slots - 1;
    };
    let complete = voters
        .iter()
        .flatten()
        .all(|voter| all.contains_key(&voter.slot));
    let is_gone = |voter: &&Place| match all.get(&voter.slot) {
        None => false,
        Some(said) if has_forgotten(said) => true,
        // There is a newer node in its slot. Only if nobody knows of newer voters, that is too late.
        Some(said) => complete && said.generation != voter.generation,
    };
    voters.iter().any(|voters| {
        let gone = voters.iter().filter(is_gone).count();
        gone > (voters.len() - 1) / 2
    })
}

fn has_forgotten(said: &NodeStatus) -> bool {
    said.role == NodeRole::Joining
}

impl Presence {
    /// Asks the others whenever no leader has been heard from for a while. Returns when they say that
    /// this one has no part in the cluster any more.
    ///
    /// `let_in_by` is the entry by which this node is known to have become a member.
    pub(super) async fn look_around(&self, node: &Node, let_in_by: Option<u64>) -> Gone {
        let mut belonged = let_in_by.map(Belonging::agreed);
        let mut survey = Survey::new(self);
        let own = Place::from(node.member());
        let mut alone: Option<Instant> = None;
        loop {
            sleep(SURVEY_PAUSE).await;
            belonged = belongs(own, &node.status()).or(belonged);
            if self.desk.role() != Role::Leaderless {
                alone = None;
                survey.deaths = 0;
                self.desk.set_dead(false);
                continue;
            }
            let since = *alone.get_or_insert_with(system::now);
            let is_new = own.generation == 1 && !self.status().begun;
            if since.elapsed() < ALONE_TIME || is_new {
                continue;
            }
            let found = survey.ask(self).await;
            if let Some(newer) = found.successor(own) {
                return Gone::Displaced(newer);
            }
            if found.says_removed(own, belonged) {
                return Gone::Removed;
            }
            let dead = survey.is_dead(self, &found);
            self.desk.set_dead(dead);
        }
    }
}

/// What a process waits for that knows of no leader.
pub(super) const A_LEADER: &str = "a node that leads";
const ASK_TIME: Duration = Duration::from_secs(1);
/// The leader looks after the old node first, and then needs a majority.
const JOIN_TIME: Duration = Duration::from_secs(12);
/// How long without a leader is more than an election.
const ALONE_TIME: Duration = Duration::from_millis(1_500);
const SURVEY_PAUSE: Duration = Duration::from_millis(500);
const ENOUGH_DEATHS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn place((slot, generation): (u8, u64)) -> Place {
        Place { slot, generation }
    }

    /// Members as of this entry, with one list of voters.
    fn members(entry: u64, voters: &[(u8, u64)]) -> Members {
        Members {
            term: 1,
            entry,
            committed: true,
            voters: vec![voters.iter().copied().map(place).collect()],
            ..Members::default()
        }
    }

    fn status(slot: u8, generation: u64, members: Option<Members>) -> NodeStatus {
        NodeStatus {
            slot,
            generation,
            role: match generation {
                0 => NodeRole::Joining,
                _ => NodeRole::Leaderless,
            },
            term: 1,
            leader: None,
            last_entry: None,
            applied: None,
            snapshot: None,
            voters: Vec::new(),
            held_keys: 0,
            waiters: 0,
            clock: crate::cluster::ClockStatus::default(),
            begun: true,
            process: String::new(),
            members,
            whole: false,
            dead: false,
            other_secrets: 0,
            waits_for: None,
        }
    }

    fn all(said: impl IntoIterator<Item = NodeStatus>) -> BTreeMap<u8, NodeStatus> {
        said.into_iter().map(|said| (said.slot, said)).collect()
    }

    fn lost(slot: u8) -> NodeStatus {
        status(slot, 0, None)
    }

    #[test]
    fn dead_is_a_cluster_of_which_a_majority_has_forgotten() {
        let three = members(1, &[(0, 1), (1, 1), (2, 1)]);
        let knows = |slot| status(slot, 1, Some(three.clone()));
        assert!(is_dead(&all([knows(0), lost(1), lost(2)]), 3));
        assert!(is_dead(&all([lost(1), lost(2)]), 3));
        assert!(is_dead(&all([lost(0), lost(1), lost(2)]), 3));
        assert!(!is_dead(&all([knows(0), knows(1), lost(2)]), 3));
        assert!(!is_dead(&all([knows(0), lost(2)]), 3));
        assert!(!is_dead(&all([knows(0)]), 3));
        assert!(!is_dead(&all([lost(2)]), 3));

        let five: Vec<_> = (0..5).map(|slot| (slot, 1)).collect();
        let five = members(1, &five);
        let knows = |slot| status(slot, 1, Some(five.clone()));
        assert!(!is_dead(&all([knows(0), lost(1), lost(2)]), 5));
        assert!(is_dead(&all([knows(0), lost(1), lost(2), lost(3)]), 5));
        assert!(!is_dead(&all([lost(1), lost(2)]), 5));
        assert!(is_dead(&all((0..4).map(lost)), 5));
        // Perhaps they were the only three that voted. Perhaps two others still remember.
        assert!(!is_dead(&all((0..3).map(lost)), 5));
    }

    #[test]
    fn those_who_know_nothing_are_counted() {
        let lost_ones = |count| (0..count).map(lost);
        assert_eq!(Found(all(lost_ones(2))).all_lost(), Some(2));
        assert_eq!(Found::default().all_lost(), None);
        let three = members(1, &[(0, 1), (1, 1), (2, 1)]);
        let knows = status(3, 1, Some(three.clone()));
        let has_heard = status(3, 0, Some(three));
        for other in [knows, has_heard] {
            let found = Found(all(lost_ones(2).chain([other])));
            assert_eq!(found.all_lost(), None);
        }
    }

    /// Leaders of both versions are there while a cluster is upgraded.
    #[tokio::test]
    async fn a_leader_that_does_not_tell_the_entry_lets_in_too() {
        assert_eq!(told(&[0, 0, 0, 0, 0, 0, 0, 3]), Ok((3, None)));
        let long = [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 2];
        assert_eq!(told(&long), Ok((3, Some(258))));
        for length in (0..8).chain(9..16) {
            assert!(told(&long[..length]).is_err(), "{length}");
        }
        assert!(told(&[0; 17]).is_err());

        let failed = |why: &str| Err(LinkError::Failed(why.to_owned()));
        let of_old = ask_to_join(async |kind| match kind {
            JOIN => Ok(vec![1]),
            _ => failed(UNKNOWN),
        });
        assert_eq!(of_old.await.unwrap(), [1]);
        let mut asked = Vec::new();
        let refused = ask_to_join(|kind| {
            asked.push(kind);
            std::future::ready(failed("it still answers"))
        });
        assert!(refused.await.is_err());
        assert_eq!(asked, [JOIN_BY]);
    }

    /// A learner remembers, and does not vote. Only one who is silent may know that it does by now.
    #[test]
    fn a_voter_with_a_newer_node_in_its_slot_is_lost_only_if_nobody_can_know_better() {
        let old = members(1, &[(0, 1), (1, 1), (2, 1)]);
        let new = members(9, &[(0, 1), (1, 1), (2, 2)]);
        let learner = status(2, 2, Some(old.clone()));
        assert!(!is_dead(&all([learner.clone(), lost(1)]), 3));
        let behind = status(0, 1, Some(old));
        assert!(is_dead(&all([behind, lost(1), learner.clone()]), 3));
        let knows = status(0, 1, Some(new));
        assert!(!is_dead(&all([knows, lost(1), learner]), 3));
    }

    #[test]
    fn while_members_change_both_majorities_are_needed() {
        let mut joint = members(5, &[(0, 1), (1, 1), (2, 1)]);
        joint
            .voters
            .extend(members(5, &[(0, 1), (1, 1), (2, 2)]).voters);
        let knows = |slot, generation| status(slot, generation, Some(joint.clone()));
        assert!(!is_dead(&all([knows(0, 1), knows(1, 1), lost(2)]), 3));
        assert!(!is_dead(&all([knows(0, 1), knows(1, 1), knows(2, 2)]), 3));
        assert!(is_dead(&all([knows(0, 1), lost(1), knows(2, 2)]), 3));
    }

    #[test]
    fn nobody_is_dead_who_has_a_leader() {
        let mut leader = status(0, 1, None);
        leader.role = NodeRole::Leader;
        assert!(!is_dead(&all([leader, lost(1), lost(2)]), 3));
    }

    #[test]
    fn only_what_a_majority_has_agreed_on_displaces_a_node() {
        let own = place((2, 1));
        let found = |members| Found(all([status(0, 1, Some(members))]));
        let agreed = members(9, &[(0, 1), (1, 1), (2, 2)]);
        assert_eq!(found(agreed.clone()).successor(own), Some(2));
        assert_eq!(found(agreed.clone()).successor(place((2, 2))), None);
        let mut learner = members(9, &[(0, 1), (1, 1), (2, 1)]);
        assert_eq!(found(learner.clone()).successor(own), None);
        learner.learners.push(place((2, 3)));
        assert_eq!(found(learner).successor(own), Some(3));
        let uncertain = Members {
            committed: false,
            ..agreed
        };
        assert_eq!(found(uncertain).successor(own), None);
    }

    /// A node that is new may only not have heard yet that it belongs to the cluster.
    #[test]
    fn only_a_node_that_was_a_member_can_have_been_removed() {
        let before = members(4, &[(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]);
        let after = members(9, &[(0, 1), (1, 1), (2, 1)]);
        let own = place((3, 2));
        let belonged = belongs(own, &status(3, 2, Some(before.clone())));
        assert_eq!(belonged, Some(Belonging::agreed(4)));
        assert_eq!(belongs(own, &status(3, 2, Some(after.clone()))), None);
        let says = |belonged, said: &[Members]| {
            let said = said.iter().zip(0..);
            let said = said.map(|(members, slot)| status(slot, 1, Some(members.clone())));
            Found(all(said)).says_removed(own, belonged)
        };
        assert!(says(belonged, std::slice::from_ref(&after)));
        assert!(says(belonged, &[before.clone(), after.clone()]));
        assert!(!says(belonged, std::slice::from_ref(&before)));
        assert!(!says(belonged, &[]));
        // Not yet agreed on, older than what this node knows, or followed by its return.
        let mut open = after.clone();
        open.committed = false;
        assert!(!says(belonged, &[open]));
        let later = Some(Belonging::agreed(11));
        assert!(!says(later, std::slice::from_ref(&after)));
        let again = members(12, &[(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]);
        assert!(!says(belonged, &[after.clone(), again]));
        assert!(!says(None, &[after]));
    }

    /// It has nothing but the word of the leader, and ends if it was removed before it heard from it again.
    #[test]
    fn a_process_that_was_let_in_and_heard_no_more_can_have_been_removed() {
        let own = place((3, 6));
        assert_eq!(belongs(own, &status(3, 6, None)), None);
        let let_in_by = Some(Belonging::agreed(7));
        let says = |entry, term| {
            let mut members = members(entry, &[(0, 1), (1, 1), (2, 1)]);
            members.term = term;
            Found(all([status(0, 1, Some(members))])).says_removed(own, let_in_by)
        };
        assert!(says(8, 1));
        // Before it was let in, its slot was no member either, whoever led.
        for entry in [6, 7] {
            assert!(!says(entry, 1) && !says(entry, 9), "entry {entry}");
        }
    }

    /// What it has tried alone has a higher number than its removal, and was never agreed on.
    #[test]
    fn a_leader_that_was_cut_off_hears_that_it_was_removed() {
        let own = place((0, 1));
        let mut tried = members(9, &[(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]);
        tried.committed = false;
        let belonged = belongs(own, &status(0, 1, Some(tried.clone())));
        let says = |term| {
            let mut removed = members(8, &[(1, 1), (2, 1), (3, 2)]);
            removed.term = term;
            Found(all([status(1, 1, Some(removed))])).says_removed(own, belonged)
        };
        assert!(says(2));
        assert!(!says(1));
        // One that starts again knows of nothing that it is agreed on, and hears of its removal all the same.
        let removed = members(12, &[(1, 1), (2, 1), (3, 2)]);
        let found = Found(all([status(1, 1, Some(removed))]));
        assert!(found.says_removed(own, belonged));
    }
}
