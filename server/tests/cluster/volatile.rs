//! Clusters that keep nothing on disk: a process that starts again is a new node.

use highwater_server::Readiness;
use highwater_server::cluster::{self, NodeRole, NodeStatus};

use crate::nodes::{Nodes, eventually};
use crate::peer::{PRE_VOTE, Peer, VOTE, irresistible};

pub(crate) fn status(nodes: &Nodes, slot: u8) -> NodeStatus {
    nodes.server(slot).cluster_status().unwrap()
}

/// Waits until any one node may go.
pub(crate) async fn whole(nodes: &Nodes) -> u8 {
    eventually("all voters have caught up", async || {
        let leader = nodes.leader().await;
        status(nodes, leader).whole.then_some(leader)
    })
    .await
}

/// The generations of the voters, by slot, as the leader has them.
pub(crate) async fn generations(nodes: &Nodes) -> Vec<u64> {
    let members = status(nodes, whole(nodes).await).members.unwrap();
    assert_eq!((members.voters.len(), members.learners.len()), (1, 0));
    let mut voters = members.voters[0].clone();
    voters.sort_unstable();
    voters.iter().map(|place| place.generation).collect()
}

async fn rolls(count: u8) {
    let mut nodes = Nodes::volatile(count).await;
    whole(&nodes).await;
    let kept = nodes.lock("kept", 200).await;
    let mut highest = kept;
    for round in 0..2 {
        for slot in 0..count {
            whole(&nodes).await;
            match round {
                0 => nodes.stop(slot).await,
                _ => nodes.kill(slot),
            }
            nodes.start(slot).await;
            eventually("it is the next node", async || {
                (status(&nodes, slot).generation == round + 2).then_some(())
            })
            .await;
            nodes.is_taken("kept").await;
            let token = nodes.lock("free", 200).await;
            assert!(token > highest, "{token} after {highest}");
            highest = token;
            nodes.unlock("free", token).await;
        }
    }
    assert_eq!(generations(&nodes).await, vec![3; count.into()]);
    nodes.unlock("kept", kept).await;
    assert!(nodes.lock("kept", 200).await > highest);
}

#[tokio::test]
async fn three_nodes_restart_one_after_the_other_and_locks_stay() {
    rolls(3).await;
}

#[tokio::test]
async fn five_nodes_restart_one_after_the_other_and_locks_stay() {
    rolls(5).await;
}

#[tokio::test]
async fn two_of_five_may_lose_their_memory_at_once() {
    let mut nodes = Nodes::volatile(5).await;
    let leader = whole(&nodes).await;
    let kept = nodes.lock("kept", 200).await;
    let other = nodes.slots().find(|slot| *slot != leader).unwrap();
    for slot in [leader, other] {
        nodes.kill(slot);
    }
    for slot in [leader, other] {
        nodes.start(slot).await;
    }
    let mut expected = vec![1; 5];
    for slot in [leader, other] {
        eventually("it is let in", async || {
            (status(&nodes, slot).generation > 1).then_some(())
        })
        .await;
        expected[usize::from(slot)] = 2;
    }
    assert_eq!(generations(&nodes).await, expected);
    nodes.unlock("kept", kept).await;
}

/// What is not in the log any more comes in a snapshot, which may say less of the members than the log.
#[tokio::test]
async fn a_new_node_learns_from_a_snapshot_too() {
    let mut nodes = Nodes::volatile(3).await;
    nodes.snapshot_every(40);
    let mut held = Vec::new();
    for slot in 0..3 {
        whole(&nodes).await;
        nodes.kill(slot);
        nodes.start(slot).await;
        whole(&nodes).await;
        for number in 0..60 {
            let key = format!("{slot}/{number}");
            held.push((nodes.lock(&key, 200).await, key));
        }
    }
    // All of them take snapshots by now.
    for slot in 0..3 {
        whole(&nodes).await;
        nodes.kill(slot);
        nodes.start(slot).await;
        let leader = whole(&nodes).await;
        eventually("it has everything", async || {
            (status(&nodes, slot).held_keys == held.len()).then_some(())
        })
        .await;
        assert!(status(&nodes, leader).snapshot.is_some());
    }
    for (token, key) in held {
        nodes.unlock(&key, token).await;
    }
}

/// A process that dies before it votes leaves nothing that keeps the next one out, and none gets the
/// generation of another.
#[tokio::test]
async fn a_process_that_keeps_dying_is_let_in_in_the_end() {
    let mut nodes = Nodes::volatile(3).await;
    let away = nodes.slots().find(|slot| *slot != 0).unwrap();
    let mut highest = 1;
    for _ in 0..4 {
        nodes.kill(away);
        nodes.start(away).await;
        let generation = eventually("it is let in", async || {
            let generation = status(&nodes, away).generation;
            (generation > 0).then_some(generation)
        })
        .await;
        assert!(generation > highest, "{generation} after {highest}");
        highest = generation;
    }
    assert_eq!(generations(&nodes).await[usize::from(away)], highest);
}

/// With five nodes, two may be gone at once: also the leader that has let a process in.
#[tokio::test]
async fn a_leader_that_dies_while_a_node_takes_its_slot_over_is_replaced_too() {
    let mut nodes = Nodes::volatile(5).await;
    let leader = whole(&nodes).await;
    let kept = nodes.lock("kept", 200).await;
    let away = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(away);
    nodes.start(away).await;
    eventually("it is let in", async || {
        (status(&nodes, away).generation == 2).then_some(())
    })
    .await;
    nodes.kill(leader);
    nodes.start(leader).await;
    whole(&nodes).await;
    let mut expected = vec![1; 5];
    expected[usize::from(away)] = 2;
    expected[usize::from(leader)] = 2;
    assert_eq!(generations(&nodes).await, expected);
    nodes.is_taken("kept").await;
    nodes.unlock("kept", kept).await;
}

#[tokio::test]
async fn the_address_decides_which_of_two_processes_has_the_slot() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    let leader = whole(&nodes).await;
    let slot = nodes.slots().find(|slot| *slot != leader).unwrap();

    // A second one while the first is there, and one more: none of them gets anything.
    let second = nodes.builder(slot).start().await.unwrap();
    let third = nodes.builder(slot).start().await.unwrap();
    for other in [&second, &third] {
        eventually("it is told why it waits", async || {
            let reason = other.cluster_status()?.waits_for?;
            reason.contains("another process is there").then_some(())
        })
        .await;
    }
    assert_eq!(generations(&nodes).await, [1; 3]);

    // The first one goes: the one that has its address takes the slot over, the other one waits on.
    nodes.kill(slot);
    drop(nodes.put(slot, second));
    eventually("it votes", async || {
        (generations(&nodes).await[usize::from(slot)] == 2).then_some(())
    })
    .await;
    let status = third.cluster_status().unwrap();
    assert_eq!((status.role, status.generation), (NodeRole::Joining, 0));
    let refused = cluster::replace(&nodes.file, leader, slot, None).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("by itself"), "{refused}");
}

/// The address may lead to another process while the node of the slot is still there and heard from.
#[tokio::test]
async fn a_node_that_still_answers_keeps_its_slot() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    let leader = whole(&nodes).await;
    let slot = nodes.slots().find(|slot| *slot != leader).unwrap();
    let new = nodes.builder(slot).start().await.unwrap();
    let old = nodes.put(slot, new).unwrap();
    eventually("the new process is told why it waits", async || {
        let reason = status(&nodes, slot).waits_for?;
        reason.contains("still answers").then_some(())
    })
    .await;
    let members = status(&nodes, leader).members.unwrap();
    assert!(members.learners.is_empty());
    assert_eq!(old.cluster_status().unwrap().role, NodeRole::Follower);
    drop(old);
    eventually("the new process votes", async || {
        (generations(&nodes).await[usize::from(slot)] == 2).then_some(())
    })
    .await;
}

/// A node that was cut off for so long that another process has its slot ends when it hears of it.
#[tokio::test]
async fn a_displaced_node_ends_and_a_newer_one_has_its_place() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    let leader = whole(&nodes).await;
    let slot = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.isolate(slot);
    let new = nodes.builder(slot).start().await.unwrap();
    let old = nodes.put(slot, new).unwrap();
    eventually("it is alone", async || {
        (old.readiness() == Readiness::NoLeader).then_some(())
    })
    .await;
    nodes.heal();
    eventually("the new process votes", async || {
        (generations(&nodes).await[usize::from(slot)] == 2).then_some(())
    })
    .await;
    let ended = tokio::time::timeout(crate::nodes::LIMIT, old.failed()).await;
    assert!(ended.is_ok(), "a displaced node goes on");
    assert_eq!(old.readiness(), Readiness::Displaced);
    whole(&nodes).await;
}

/// Whoever speaks as a node whose slot has gone to a newer one is not heard, whatever it says.
#[tokio::test]
async fn a_dead_generation_is_neither_heard_nor_spoken_to() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    let leader = whole(&nodes).await;
    let slot = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(slot);
    nodes.start(slot).await;
    eventually("the new process votes", async || {
        (generations(&nodes).await[usize::from(slot)] == 2).then_some(())
    })
    .await;
    let leader = whole(&nodes).await;
    let term = status(&nodes, leader).term;
    for other in 0..3 {
        let generation = status(&nodes, other).generation;
        let address = nodes.server(other).peer_addr().unwrap();
        let dead = Peer::open(&nodes, address, (slot, 1), (other, generation)).await;
        let mut dead = dead.unwrap();
        for kind in [VOTE, PRE_VOTE] {
            let answer = dead.call(kind, &irresistible((slot, 1))).await;
            let refused = answer.unwrap_err();
            assert!(refused.contains("taken this slot over"), "{refused}");
        }
        let wrong = Peer::open(&nodes, address, (leader, 1), (other, generation + 1)).await;
        assert_eq!(wrong.err(), Some(3));
    }
    assert_eq!(whole(&nodes).await, leader);
    assert_eq!(status(&nodes, leader).term, term);
}
