//! How a cluster of three nodes becomes one of five, and one of five becomes one of three, without a
//! stop.
//!
//! There are never four voters: two nodes come or go in one change, which the log decides like any other. Those that
//! come learn first. Their generation is by two higher than the number of the last entry that changed the
//! members. It took an entry to let in any node that their slot ever had, and another one to remove it, so no
//! generation was that high: a node that was removed while it was away, and comes back after its slot
//! has a new one, is taken for nobody else.
//!
//! In a volatile cluster nobody is started with a generation. There this number is one that no process ever
//! has: it opens the slot, and the process that knocks gets the next one (see `succession`). The leader lets
//! both vote by itself.

use std::collections::{BTreeMap, BTreeSet};

use highwater_protocol::handshake::Slot;
use openraft::ChangeMembers;

use super::bytes::{Malformed, Put as _, Reader};
use super::file::ClusterMode;
use super::node::{Failure, Node};
use super::succession::Seen;
use super::types::{Address, Member};

/// The slots that are to get a node, and where its peers reach it.
pub(super) type Newcomers = BTreeMap<Slot, Address>;

impl Node {
    /// Lets the nodes learn that make five of three voters: gives the generation that each of them has to
    /// have, or a lower one in a volatile cluster. They vote when [`Node::admit`] finds that both have caught up.
    /// Asked again, it gives the newest ones, and none if these five vote.
    pub(super) async fn grow(&self, newcomers: Newcomers) -> Result<Vec<Member>, Failure> {
        let _one = self.changing.lock().await;
        let seen = self.resizable()?;
        let voters = slots(seen.voters());
        if voters.len() == MOST && newcomers.keys().eq(&voters) {
            return Ok(Vec::new());
        }
        if voters.len() != FEWEST {
            return Err(format!("there are {} voters already", voters.len()).into());
        }
        let wanted: Newcomers = newcomers
            .into_iter()
            .filter(|(slot, _)| !voters.contains(slot))
            .collect();
        if wanted.len() != MOST - FEWEST {
            return Err("the cluster file of the operator has to have five nodes".into());
        }
        let joining = seen.joining();
        if joining.iter().map(|member| &member.slot).eq(wanted.keys()) {
            return Ok(joining.into_iter().collect());
        }
        // One that learns in the place of a voter is in nobody's way, also if it is gone and does not come back.
        if !joining.is_empty() {
            return Err("other nodes are to join: let them vote, or remove them".into());
        }
        let generation = seen.entry() + 2;
        let members = wanted.keys().map(|slot| Member {
            slot: *slot,
            generation,
        });
        let members: Vec<Member> = members.collect();
        let nodes = members.iter().map(|member| member.id());
        let nodes = nodes.zip(wanted.into_values()).collect();
        tracing::warn!(?members, "nodes are to join");
        self.change(&seen, ChangeMembers::AddNodes(nodes)).await?;
        Ok(members)
    }

    /// Whether two nodes wait to vote beside three, and have caught up.
    pub(super) fn may_admit(&self, seen: &Seen) -> bool {
        let joining = seen.joining();
        joining.len() == MOST - FEWEST
            && seen.voters().count() == FEWEST
            && joining.iter().all(|one| self.is_up_to_date(seen, *one))
    }

    /// Lets the nodes vote that have learned, if both have caught up. Says whether they have, and the change is
    /// through. One that learns to replace another node goes on learning.
    pub(super) async fn admit(&self) -> Result<bool, Failure> {
        let _one = self.changing.lock().await;
        let seen = self.resizable()?;
        let voting = seen.voters().count();
        let joining = seen.joining();
        if voting == MOST {
            return Ok(true);
        }
        if voting != FEWEST || joining.len() != MOST - FEWEST {
            return Err("there are not two nodes that wait to join".into());
        }
        if !self.may_admit(&seen) {
            return Ok(false);
        }
        let voters = seen.voters().chain(joining).map(Member::id);
        let change = ChangeMembers::ReplaceAllVoters(voters.collect());
        self.change(&seen, change).await?;
        tracing::warn!("five nodes vote");
        Ok(true)
    }

    /// Removes two of five voters, or two nodes that learn. If this node is one of them it hands the lead over to
    /// one that stays, and removes nobody.
    pub(super) async fn shrink(&self, leaving: &BTreeSet<Slot>) -> Result<(), Failure> {
        let _one = self.changing.lock().await;
        let seen = self.resizable()?;
        let (learning, joining) = (seen.learners(), seen.joining());
        let gone = |slot: Slot| leaving.contains(&slot);
        if !joining.is_empty() {
            if slots(joining.iter().copied()) != *leaving {
                return Err("nodes are learning: let them vote or remove those first".into());
            }
            let ids = joining.iter().map(|member| member.id()).collect();
            let change = ChangeMembers::RemoveNodes(ids);
            return self.change(&seen, change).await.map(drop);
        }
        let voters = slots(seen.voters());
        if voters.len() == FEWEST && leaving.is_disjoint(&voters) {
            // Perhaps it was asked before, and the answer was lost.
            return Err("a cluster has three voters at least, and these nodes are none of them, or not any more".into());
        }
        if voters.len() != MOST {
            return Err("a cluster has three voters at least: replace a node instead".into());
        }
        if leaving.len() != MOST - FEWEST || !leaving.iter().all(|slot| voters.contains(slot)) {
            return Err("two of the five that vote have to go at once".into());
        }
        if !learning.iter().all(|member| gone(member.slot)) {
            return Err("a node is being replaced: wait until it votes, or remove that one".into());
        }
        if gone(self.member.slot) {
            // Not to the other one that is to go, or they would hand it to each other for ever.
            let stays = |heir: Member| !gone(heir.slot) && self.clocks.may_lead(heir);
            self.step_down_for(stays).await?;
            return Err(
                "this node was to go and has handed the lead over: ask the new leader".into(),
            );
        }
        let stay = seen.voters();
        let stay: Vec<Member> = stay.filter(|member| !gone(member.slot)).collect();
        // Once it has begun, they have to agree on it: it must not be begun if they cannot.
        let mut well = 0;
        for member in &stay {
            let is_there = self.is_up_to_date(&seen, *member) && self.answers(*member).await;
            well += usize::from(*member == self.member || is_there);
        }
        // What one of the three does not remember, too few others do.
        let least = match self.file.mode() {
            ClusterMode::Volatile => FEWEST,
            ClusterMode::Durable => FEWEST / 2 + 1,
        };
        if well < least {
            return Err("too few of those that would stay are there and have caught up".into());
        }
        tracing::warn!(?leaving, "two nodes are to be removed");
        let stay: BTreeSet<u64> = stay.iter().map(|member| member.id()).collect();
        let learners = learning.iter().map(|member| member.id()).collect();
        let change = ChangeMembers::Batch(vec![
            ChangeMembers::RemoveNodes(learners),
            ChangeMembers::ReplaceAllVoters(stay),
        ]);
        self.change(&seen, change).await?;
        tracing::warn!("three nodes vote");
        Ok(())
    }

    /// The members, if they may be changed to more or fewer.
    fn resizable(&self) -> Result<Seen, Failure> {
        let seen = self.seen()?;
        match seen.is_changing() {
            true => Err("the members are changing: try again".into()),
            false => Ok(seen),
        }
    }
}

fn slots(members: impl Iterator<Item = Member>) -> BTreeSet<Slot> {
    members.map(|member| member.slot).collect()
}

pub(super) fn put_newcomers(newcomers: &Newcomers) -> Vec<u8> {
    let mut body = Vec::new();
    body.u8(u8::try_from(newcomers.len()).unwrap_or(u8::MAX));
    for (slot, address) in newcomers {
        body.u8(slot.get());
        body.count(address.0.len());
        body.put(address.0.as_bytes());
    }
    body
}

pub(super) fn newcomers(reader: &mut Reader<'_>) -> Result<Newcomers, Malformed> {
    let count = reader.u8()?;
    let mut newcomers = Newcomers::new();
    for _ in 0..count {
        let slot = Slot::new(reader.u8()?).ok_or(reader.wrong())?;
        let length = reader.u32()?;
        let address = std::str::from_utf8(reader.take(length as usize)?);
        let address = address.map_err(|_| reader.wrong())?;
        newcomers.insert(slot, Address(address.to_owned()));
    }
    Ok(newcomers)
}

pub(super) fn put_members(members: &[Member]) -> Vec<u8> {
    let mut body = Vec::new();
    for member in members {
        body.u8(member.slot.get());
        body.u64(member.generation);
    }
    body
}

pub(super) fn members(body: &[u8]) -> Result<Vec<Member>, Malformed> {
    let mut reader = Reader::new(body, "members");
    let mut members = Vec::new();
    for _ in 0..body.len() / 9 {
        members.push(Member {
            slot: Slot::new(reader.u8()?).ok_or(reader.wrong())?,
            generation: reader.u64()?,
        });
    }
    reader.end()?;
    Ok(members)
}

const FEWEST: usize = 3;
const MOST: usize = 5;

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::*;
    use crate::cluster::testing::{begun, eventually};
    use crate::cluster::types::Membership;

    /// A node that was let in and has gone again keeps nobody from removing its slot.
    #[tokio::test]
    async fn a_slot_goes_with_everybody_who_wanted_to_be_its_node() {
        let (_folder, presences) = begun().await;
        let node = presences[0].node().unwrap();
        let seen = node.seen().unwrap();
        let member = |slot, generation| Member {
            slot: Slot::new(slot).unwrap(),
            generation,
        };
        let gone = [member(3, 2), member(4, 2), member(4, 3)];
        let voters = seen.voters().chain([gone[0], gone[1]]);
        let voters: BTreeSet<u64> = voters.map(Member::id).collect();
        let others = seen.voters().map(|voter| {
            let of_slot = presences.iter().find(|other| other.slot == voter.slot);
            let file = node.file.node(of_slot.unwrap().slot.get()).unwrap();
            (voter.id(), Address(file.addresses.peers.clone()))
        });
        let nowhere = Address("127.0.0.1:9".to_owned());
        let gone = gone.map(|member| (member.id(), nowhere.clone()));
        let members = others.chain(gone).collect::<BTreeMap<_, _>>();
        let three = seen.voters().map(Member::id).collect();
        for step in [vec![three, voters.clone()], vec![voters]] {
            let step = Membership::new(step, members.clone()).unwrap();
            let made = node.raft.append_membership(step, EntryPayload::Blank, []);
            made.await.unwrap();
        }
        let leaving = [3, 4].map(|slot| Slot::new(slot).unwrap()).into();
        eventually(|| node.seen().is_ok_and(|seen| seen.voters().count() == 5)).await;
        let other = [0, 3].map(|slot| Slot::new(slot).unwrap()).into();
        let refused = node.shrink(&other).await.unwrap_err().to_string();
        assert!(refused.contains("is being replaced"), "{refused}");
        node.shrink(&leaving).await.unwrap();
        eventually(|| presences.iter().any(|presence| presence.status().whole)).await;
        let seen = node.seen().unwrap();
        assert_eq!((seen.voters().count(), seen.learners().len()), (3, 0));
    }

    #[test]
    fn what_an_operator_asks_for_and_is_told_arrives_as_it_was() {
        let slot = |number| Slot::new(number).unwrap();
        let wanted: Newcomers = [
            (slot(3), Address("10.0.0.4:5227".to_owned())),
            (slot(4), Address("[::1]:5227".to_owned())),
        ]
        .into();
        let bytes = put_newcomers(&wanted);
        let mut reader = Reader::new(&bytes, "request");
        assert_eq!(newcomers(&mut reader), Ok(wanted));
        reader.end().unwrap();
        for length in 0..bytes.len() {
            assert!(newcomers(&mut Reader::new(&bytes[..length], "request")).is_err());
        }
        let told = [3, 4].map(|number| Member {
            slot: slot(number),
            generation: u64::from(number) << 40,
        });
        let bytes = put_members(&told);
        assert_eq!(members(&bytes).as_deref(), Ok(&told[..]));
        assert!(members(&bytes[..10]).is_err());
    }
}
