//! Volatile clusters that lose a process while they grow from three nodes to five, or that only one process knows
//! the way in.

use std::time::Duration;

use highwater_protocol::FencingToken;
use highwater_server::cluster::{Members, NodeRole, Place};
use tokio::time::{Instant, timeout};

use crate::nodes::{LIMIT, Nodes, eventually};
use crate::peer::{PRE_VOTE, Peer, VOTE, irresistible};
use crate::volatile::{status, whole};
use crate::volatile_resize::{
    generation_of, grown, leader, new_one_leads, open_slots, three_that_are_to_be_five, vote,
};

/// Three nodes that have a lock kept and their slots for two more open, and the generations before those that come.
async fn with_open_slots() -> (Nodes, FencingToken, Vec<u64>) {
    let nodes = three_that_are_to_be_five().await;
    let kept = nodes.lock("kept", 200).await;
    let opened = open_slots(&nodes).await;
    (nodes, kept, opened)
}

async fn start_two(nodes: &mut Nodes) {
    for slot in [3, 4] {
        nodes.start(slot).await;
    }
}

/// The kept lock was kept until now, and the next one is a later one.
async fn give_back(nodes: &Nodes, kept: FencingToken) {
    nodes.unlock("kept", kept).await;
    assert!(nodes.lock("kept", 200).await > kept);
}

/// Who votes, as the leader has it and a majority has agreed on.
async fn voters_are(nodes: &Nodes, wanted: &[(u8, u64)]) {
    eventually("these vote", async || {
        let members = status(nodes, leader(nodes).await).members?;
        let mut voters = voters(&members)?;
        voters.sort_unstable();
        let wanted = wanted.iter().map(|(slot, generation)| (*slot, *generation));
        voters.into_iter().eq(wanted).then_some(())
    })
    .await;
}

/// Those on whom a majority has agreed, unless they are changing.
fn voters(members: &Members) -> Option<Vec<(u8, u64)>> {
    let of = |place: &Place| (place.slot, place.generation);
    match &members.voters[..] {
        [voters] if members.committed => Some(voters.iter().map(of).collect()),
        _ => None,
    }
}

/// Nobody gives a vote to a process under a name that is dead.
async fn is_heard_by_nobody(nodes: &Nodes, dead: (u8, u64)) {
    for slot in nodes.slots() {
        let address = nodes.server(slot).peer_addr().unwrap();
        let to = (slot, generation_of(nodes, slot));
        let mut peer = Peer::open(nodes, address, dead, to).await.unwrap();
        for kind in [VOTE, PRE_VOTE] {
            let refused = peer.call(kind, &irresistible(dead)).await.unwrap_err();
            assert!(refused.contains("taken this slot over"), "{refused}");
        }
    }
}

/// The slots are open, and the first leader dies before anybody knocks, the second one when one of two has been
/// let in.
#[tokio::test]
async fn a_leader_that_dies_between_the_steps_of_growing_leaves_them_to_the_next_one() {
    let (mut nodes, kept, opened) = with_open_slots().await;
    let mut generations = [1, 1, 1, opened[0] + 1, opened[1] + 1];

    let first = leader(&nodes).await;
    nodes.kill(first);
    nodes.leader().await;
    assert_eq!(open_slots(&nodes).await, opened);
    nodes.is_taken("kept").await;
    nodes.start(first).await;
    generations[usize::from(first)] += 1;
    voters_are(&nodes, &places(&generations[..3])).await;
    is_heard_by_nobody(&nodes, (first, 1)).await;

    nodes.start(3).await;
    eventually("it is let in", async || {
        (generation_of(&nodes, 3) == generations[3]).then_some(())
    })
    .await;
    let second = leader(&nodes).await;
    let dead = (second, generations[usize::from(second)]);
    nodes.kill(second);
    nodes.leader().await;
    assert_eq!(open_slots(&nodes).await, [generations[3], opened[1]]);
    nodes.is_taken("kept").await;
    nodes.start(second).await;
    generations[usize::from(second)] += 1;
    nodes.start(4).await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    voters_are(&nodes, &places(&generations)).await;
    is_heard_by_nobody(&nodes, dead).await;
    assert!(open_slots(&nodes).await.is_empty());
    nodes.is_taken("kept").await;
    give_back(&nodes, kept).await;
}

/// These generations, by slot.
fn places(generations: &[u64]) -> Vec<(u8, u64)> {
    (0..).zip(generations.iter().copied()).collect()
}

/// Waits for something that must not be seen late: one thread does everything, so nothing happens between what is
/// seen and what is done about it.
async fn at_once<T>(mut seen: impl FnMut() -> Option<T>) -> T {
    let seen = async {
        loop {
            if let Some(seen) = seen() {
                return seen;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, seen).await.unwrap()
}

/// The leader, if it says that five are to vote, and the others have agreed on that where it is asked for.
fn lets_five_vote(nodes: &Nodes, is_agreed: bool) -> Option<u8> {
    let mut all = nodes.slots().map(|slot| status(nodes, slot));
    let leader = all.find(|status| status.role == NodeRole::Leader)?;
    let members = leader.members?;
    let many = members.voters.iter().any(|voters| voters.len() == 5);
    (many && (voters(&members).is_some() || !is_agreed)).then_some(leader.slot)
}

/// These are gone, and come back: the others have gone on and lost nothing.
async fn five_go_on_without(nodes: &mut Nodes, gone: &[u8], opened: &[u64]) {
    nodes.leader().await;
    nodes.is_taken("kept").await;
    nodes.heal();
    let mut generations = [1, 1, 1, opened[0] + 1, opened[1] + 1];
    for slot in gone {
        generations[usize::from(*slot)] += 1;
        nodes.start(*slot).await;
    }
    vote(nodes, &[0, 1, 2, 3, 4]).await;
    voters_are(nodes, &places(&generations)).await;
    for slot in gone {
        is_heard_by_nobody(nodes, (*slot, 1)).await;
    }
    assert!(open_slots(nodes).await.is_empty());
}

/// Nobody has agreed yet that five are to vote, or not all have heard of it.
#[tokio::test]
async fn a_leader_that_dies_while_it_lets_two_vote_leaves_the_change_to_the_next_one() {
    let (mut nodes, kept, opened) = with_open_slots().await;
    start_two(&mut nodes).await;
    let leads = at_once(|| lets_five_vote(&nodes, false)).await;
    nodes.kill(leads);
    five_go_on_without(&mut nodes, &[leads], &opened).await;
    give_back(&nodes, kept).await;
}

/// The leader dies, and one more, before those that came hear that they vote. They give their votes to the one that is
/// left all the same.
#[tokio::test]
async fn two_that_do_not_know_yet_that_they_vote_are_a_majority_with_one_more() {
    let (mut nodes, kept, opened) = with_open_slots().await;
    start_two(&mut nodes).await;
    // They know each other, so they have caught up; from now on they do not hear the leader, who hears them.
    let new = |slot: u8| {
        let generation = opened[usize::from(slot - 3)] + 1;
        move |place: &Place| (place.slot, place.generation) == (slot, generation)
    };
    at_once(|| {
        let knows = |slot| {
            let members = status(&nodes, slot).members?;
            let mut all = members
                .learners
                .iter()
                .chain(members.voters.iter().flatten());
            Some(all.clone().any(new(3)) && all.any(new(4)))
        };
        (knows(3)? && knows(4)?).then_some(())
    })
    .await;
    let leads = leader(&nodes).await;
    for slot in [3, 4] {
        nodes.hold(leads, slot);
    }
    let since = Instant::now();
    let leads = at_once(|| {
        if since.elapsed() > HEARD_FOR {
            // This machine stood still, and the leader waits to hear from them again.
            nodes.heal();
        }
        lets_five_vote(&nodes, true)
    })
    .await;
    let other = (0..3).find(|slot| *slot != leads).unwrap();
    for slot in [leads, other] {
        nodes.kill(slot);
    }
    five_go_on_without(&mut nodes, &[leads, other], &opened).await;
    give_back(&nodes, kept).await;
}

/// For how long a leader lets nodes vote that it does not hear from any more; nodes of tests are slower than others.
const HEARD_FOR: Duration = Duration::from_millis(1_200);

/// A process has a file of three and reaches only one other process, which is itself at the door: that one tells it
/// of the two that came later, and one of them leads.
#[tokio::test]
async fn a_process_at_the_door_tells_another_one_where_the_members_are() {
    let mut nodes = grown().await;
    let leads = new_one_leads(&nodes).await;
    nodes.kill(0);
    // It hears of the members from the others, and nobody can let it in.
    nodes.part(0, leads);
    nodes.start(0).await;
    eventually("it has heard of the five", async || {
        let members = status(&nodes, 0).members?;
        (members.addresses.len() == 5).then_some(())
    })
    .await;
    nodes.kill(1);
    for other in [2, 7 - leads] {
        nodes.part(1, other);
    }
    nodes.start(1).await;
    eventually("it is let in", async || {
        (generation_of(&nodes, 1) == 2).then_some(())
    })
    .await;
    assert_eq!(generation_of(&nodes, 0), 0);
    nodes.heal();
    let leads = whole(&nodes).await;
    let members = status(&nodes, leads).members.unwrap();
    let mut voters = voters(&members).unwrap();
    voters.sort_unstable();
    assert_eq!(voters[..3], [(0, 2), (1, 2), (2, 1)]);
}
