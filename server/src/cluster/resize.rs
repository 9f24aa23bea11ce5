//! How a cluster of three nodes becomes one of five, and one of five becomes one of three, without a
//! stop.
//!
//! There are never four voters: two nodes come or go in one change, which the log decides like any other. Those that
//! come learn first. Their generation is by two higher than the number of the last entry that changed the
//! members. It took an entry to let in any node that their slot ever had, and another one to remove it, so no
//! generation was that high: a node that was removed while it was away, and comes back after its slot
//! has a new one, is taken for nobody else.

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
    /// have. They vote when [`Node::admit`] finds that both have caught up. Asked again, it gives the same.
    pub(super) async fn grow(&self, newcomers: Newcomers) -> Result<Vec<Member>, Failure> {
        let _one = self.changing.lock().await;
        let seen = self.resizable()?;
        let voters = slots(seen.voters());
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
        let learning = seen.learners();
        if learning.iter().map(|member| &member.slot).eq(wanted.keys()) {
            return Ok(learning.into_iter().collect());
        }
        if !learning.is_empty() {
            return Err("another node is learning: wait for it, or remove it".into());
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

    /// Lets the nodes vote that have learned, if both have caught up. Says whether they have, and the change is
    /// through.
    pub(super) async fn admit(&self) -> Result<bool, Failure> {
        let _one = self.changing.lock().await;
        let seen = self.resizable()?;
        let mut voting = slots(seen.voters());
        let learning = seen.learners();
        if voting.len() == MOST && learning.is_empty() {
            return Ok(true);
        }
        voting.extend(slots(learning.iter().copied()));
        if voting.len() != MOST || learning.len() != MOST - FEWEST {
            return Err("there are not two nodes that wait to join".into());
        }
        if !learning
            .iter()
            .all(|member| self.is_up_to_date(&seen, *member))
        {
            return Ok(false);
        }
        let voters = seen.voters().chain(learning).map(Member::id);
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
        let learning = seen.learners();
        let gone = |slot: Slot| leaving.contains(&slot);
        if !learning.is_empty() {
            if !learning.iter().all(|member| gone(member.slot)) || leaving.len() != learning.len() {
                return Err("nodes are learning: let them vote or remove those first".into());
            }
            // Its number must not come again: whoever replaces it again gets the next one.
            let voters = slots(seen.voters());
            if learning.iter().any(|member| voters.contains(&member.slot)) {
                return Err("it is to replace a node: replace that again instead".into());
            }
            let ids = learning.iter().map(|member| member.id()).collect();
            return self.change(&seen, ChangeMembers::RemoveNodes(ids)).await;
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
        if well <= FEWEST / 2 {
            return Err("too few of those that would stay are there and have caught up".into());
        }
        tracing::warn!(?leaving, "two nodes are to be removed");
        let stay: BTreeSet<u64> = stay.iter().map(|member| member.id()).collect();
        self.change(&seen, ChangeMembers::ReplaceAllVoters(stay))
            .await?;
        tracing::warn!("three nodes vote");
        Ok(())
    }

    /// The members, if they may be changed to more or fewer.
    fn resizable(&self) -> Result<Seen, Failure> {
        if self.file.mode() == ClusterMode::Volatile {
            return Err("the nodes of a volatile cluster are always the same".into());
        }
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
    use super::*;

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
