//! A node that is gone for good, and the one that takes its slot over.

use std::time::Duration;

use highwater_server::StartError;
use highwater_server::cluster::{self, ClusterError, OperatorError};
use tokio::time::Instant;

use crate::nodes::{Nodes, eventually};
use crate::peer::{PRE_VOTE, Peer, VOTE, irresistible};

/// Longer than it takes to see that a node is gone.
const A_WHILE: Duration = Duration::from_secs(10);

/// Asks until the old node does not answer any more.
async fn replace(nodes: &Nodes, slot: u8) -> u64 {
    let generation = eventually("the slot can be taken over", async || {
        let leader = nodes.leader().await;
        match cluster::replace(&nodes.file, leader, slot, None).await {
            Ok(generation) => Some(generation),
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    });
    generation.await
}

async fn promote(nodes: &Nodes, slot: u8) {
    eventually("the new node votes", async || {
        let leader = nodes.leader().await;
        match cluster::promote(&nodes.file, leader, slot, None).await {
            Ok(done) => done.then_some(()),
            // It has lost the lead meanwhile, or an earlier answer was lost.
            Err(OperatorError::Refused { .. }) => votes(nodes, leader, slot).then_some(()),
            Err(error) => panic!("{error}"),
        }
    })
    .await;
}

/// Whether the new node of a slot votes, and nobody else of that slot, by what this node knows.
fn votes(nodes: &Nodes, knower: u8, slot: u8) -> bool {
    let status = nodes.server(knower).cluster_status().unwrap();
    let members = status.members.unwrap();
    let [voters] = &members.voters[..] else {
        return false;
    };
    let of_slot = voters.iter().filter(|place| place.slot == slot);
    let generations: Vec<u64> = of_slot.map(|place| place.generation).collect();
    generations == [nodes.generations[usize::from(slot)]]
}

#[tokio::test]
async fn every_node_can_be_replaced_in_turn_and_nothing_is_lost() {
    let mut nodes = Nodes::begun(3).await;
    let kept = nodes.lock("kept", 200).await;
    let mut highest = kept;
    for slot in 0..3 {
        nodes.kill(slot);
        let generation = replace(&nodes, slot).await;
        assert_eq!(generation, 2);
        // Asked again, it is the same one.
        assert_eq!(replace(&nodes, slot).await, 2);
        nodes.generations[usize::from(slot)] = generation;
        nodes.start(slot).await;
        promote(&nodes, slot).await;
        nodes.is_taken("kept").await;
        let token = nodes.lock("free", 200).await;
        assert!(token > highest);
        highest = token;
        nodes.unlock("free", token).await;
    }
    // Only new ones are left; they restart like any others, and know who they are.
    let mut generations = vec![1; 3];
    std::mem::swap(&mut generations, &mut nodes.generations);
    for slot in 0..3 {
        nodes.kill(slot);
    }
    for slot in 0..3 {
        let old = nodes.builder(slot).start().await.unwrap_err();
        let replaced = matches!(
            old,
            StartError::Cluster(ClusterError::Replaced { .. } | ClusterError::InUse { .. })
        );
        assert!(replaced, "{old:?}");
    }
    nodes.generations = generations;
    for slot in 0..3 {
        nodes.start(slot).await;
    }
    let leader = nodes.leader().await;
    let status = nodes.server(leader).cluster_status().unwrap();
    assert_eq!((status.generation, status.voters), (2, vec![0, 1, 2]));
    nodes.unlock("kept", kept).await;
    assert!(nodes.lock("kept", 200).await > highest);
}

#[tokio::test]
async fn a_node_that_answers_is_not_replaced() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    for slot in 0..3 {
        let refused = cluster::replace(&nodes.file, leader, slot, None).await;
        assert!(
            matches!(refused, Err(OperatorError::Refused { .. })),
            "{refused:?}"
        );
        let refused = cluster::promote(&nodes.file, leader, slot, None).await;
        assert!(
            matches!(refused, Err(OperatorError::Refused { .. })),
            "{refused:?}"
        );
    }
}

/// Neither the directory nor the mark is left: it looks like a new node, and must not vote as one.
#[tokio::test]
async fn a_node_that_lost_its_mark_too_takes_no_part_until_it_is_replaced() {
    let mut nodes = Nodes::begun(3).await;
    let slot = 1;
    nodes.stop(slot).await;
    std::fs::remove_dir_all(nodes.data_dir(slot)).unwrap();
    std::fs::remove_file(nodes.marker(slot)).unwrap();
    nodes.start(slot).await;
    let address = nodes.server(slot).peer_addr().unwrap();
    let mut peer = Peer::open(&nodes, address, (0, 1), (slot, 1))
        .await
        .unwrap();
    for kind in [VOTE, PRE_VOTE] {
        let refused = peer.call(kind, &irresistible((0, 1))).await.unwrap_err();
        assert!(refused.contains("no part in the cluster"), "{refused}");
    }
    let status = cluster::status(&nodes.file, slot, None).await.unwrap();
    assert_eq!((status.begun, status.last_entry), (false, None));
    nodes.kill(slot);
    let generation = replace(&nodes, slot).await;
    nodes.generations[usize::from(slot)] = generation;
    nodes.start(slot).await;
    promote(&nodes, slot).await;
}

/// The new node has learned, and is lost before it votes: what comes after it is another one again.
#[tokio::test]
async fn a_new_node_that_is_lost_before_it_votes_is_replaced_in_its_turn() {
    let mut nodes = Nodes::begun(3).await;
    let slot = 1;
    nodes.kill(slot);
    let second = replace(&nodes, slot).await;
    nodes.generations[usize::from(slot)] = second;
    let third = loop {
        nodes.start(slot).await;
        eventually("it learns", async || {
            let status = nodes.server(slot).cluster_status().unwrap();
            status.applied.filter(|applied| *applied > 0)
        })
        .await;
        let leader = nodes.leader().await;
        nodes.kill(slot);
        let since = Instant::now();
        let told = eventually("it is given up", async || {
            let generation = replace(&nodes, slot).await;
            // Another leader does not know that it was there, nor does one whom its answer has not reached.
            let unknown = since.elapsed() > A_WHILE || nodes.leader().await != leader;
            (generation > second || unknown).then_some(generation)
        });
        match told.await {
            generation if generation > second => break generation,
            _ => {}
        }
    };
    assert_eq!(third, second + 1);
    nodes.generations[usize::from(slot)] = third;
    nodes.start(slot).await;
    promote(&nodes, slot).await;
    let leader = nodes.leader().await;
    let status = nodes.server(leader).cluster_status().unwrap();
    let mut voters = status.voters;
    voters.sort_unstable();
    assert_eq!(voters, [0, 1, 2]);
}
