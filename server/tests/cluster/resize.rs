//! Three nodes that become five, and three again, while clients go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_client::{AcquireOptions, Client, Key, Release, Secret};
use highwater_server::cluster::{self, ClusterError, OperatorError};
use highwater_server::{Readiness, StartError};
use tokio::time::timeout;

use crate::nodes::{LIMIT, Nodes, TOKEN, eventually};

/// What the nodes that are up agree on: who votes.
async fn vote(nodes: &Nodes, wanted: &[u8]) {
    eventually("all know who votes", async || {
        let mut slots = nodes.slots();
        let knows = |slot: u8| nodes.server(slot).cluster_status().unwrap().voters == wanted;
        slots.all(knows).then_some(())
    })
    .await;
}

/// Starts the fourth and the fifth node, and lets them vote.
async fn grow(nodes: &mut Nodes) {
    let told = eventually("two more are let learn", async || {
        let leader = nodes.leader().await;
        match cluster::grow(&nodes.file, leader, None).await {
            Ok(told) => Some(told),
            // It has lost the lead meanwhile.
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    for place in &told {
        nodes.generations[usize::from(place.slot)] = place.generation;
        nodes.start(place.slot).await;
    }
    eventually("both have caught up and vote", async || {
        let leader = nodes.leader_among(&[0, 1, 2]).await;
        match cluster::admit(&nodes.file, leader, None).await {
            Ok(done) => done.then_some(()),
            // It has lost the lead meanwhile.
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    vote(nodes, &[0, 1, 2, 3, 4]).await;
}

async fn remove(nodes: &Nodes, gone: [u8; 2]) {
    eventually("two nodes are removed", async || {
        let leader = nodes.leader().await;
        match cluster::remove(&nodes.file, leader, &gone, None).await {
            Ok(()) => Some(()),
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
}

async fn ends_as_removed(nodes: &mut Nodes, slot: u8) {
    timeout(LIMIT, nodes.server(slot).failed())
        .await
        .expect("it ends");
    assert_eq!(nodes.server(slot).readiness(), Readiness::Removed);
    nodes.kill(slot);
    let again = eventually("its directory is free", async || {
        match nodes.builder(slot).start().await {
            Err(StartError::Cluster(ClusterError::InUse { .. })) => None,
            other => Some(other),
        }
    })
    .await;
    let refused = matches!(again, Err(StartError::Cluster(ClusterError::Removed)));
    assert!(refused, "{again:?}");
}

async fn client(nodes: &Nodes) -> Client {
    let builder = Client::cluster(&nodes.addresses, nodes.file.identity());
    let builder = builder.token(Secret::new(TOKEN).unwrap());
    builder.connect_time(LIMIT).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_come_and_two_go_and_no_client_notices() {
    let mut nodes = Nodes::calm(3).await;
    nodes.know_five().await;
    let client = client(&nodes).await;
    let options = || {
        AcquireOptions::new()
            .wait(Duration::from_secs(20))
            .lease(Duration::from_secs(120))
    };
    let key = Key::new("kept").unwrap();
    let kept = client.acquire(&key, options()).await.unwrap();
    // Somebody takes turns all the time, and every turn has to come about.
    let stop = Arc::new(AtomicBool::new(false));
    let turns = {
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let key = Key::new("turns").unwrap();
            let mut highest = None;
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                let ticket = client.acquire(&key, options()).await.unwrap();
                assert!(Some(ticket.token()) > highest);
                highest = Some(ticket.token());
                assert_eq!(ticket.release().await, Ok(Release::Released));
                turns += 1;
            }
            turns
        })
    };
    grow(&mut nodes).await;
    // An old one and a new one: the two that were there before could also have done without each other.
    remove(&nodes, [0, 3]).await;
    vote_after_removal(&nodes).await;
    stop.store(true, Ordering::Relaxed);
    assert!(turns.await.unwrap() > 0);
    for slot in [0, 3] {
        ends_as_removed(&mut nodes, slot).await;
    }
    vote(&nodes, &[1, 2, 4]).await;

    // Three are three: one may go, and its place is not taken by those that were removed.
    nodes.kill(1);
    nodes.is_taken("kept").await;
    assert!(nodes.lock("free", 100).await > kept.token());
    assert_eq!(kept.release().await, Ok(Release::Released));
}

async fn vote_after_removal(nodes: &Nodes) {
    eventually("those that stay know who votes", async || {
        let knows = |slot: u8| nodes.server(slot).cluster_status().unwrap().voters == [1, 2, 4];
        [1, 2, 4].into_iter().all(knows).then_some(())
    })
    .await;
}

/// The two that came do count: without two others a majority is still there.
#[tokio::test]
async fn five_are_five_and_a_slot_that_was_left_can_be_taken_again() {
    let mut nodes = Nodes::begun(3).await;
    nodes.know_five().await;
    grow(&mut nodes).await;
    let first = nodes.generations.clone();
    for slot in [0, 1] {
        nodes.kill(slot);
    }
    let token = nodes.lock("k", 200).await;
    for slot in [0, 1] {
        nodes.start(slot).await;
    }
    nodes.leader().await;

    // One of them is away when it is removed, and hears of it when it comes back.
    nodes.kill(4);
    remove(&nodes, [3, 4]).await;
    ends_as_removed(&mut nodes, 3).await;
    nodes.start(4).await;
    ends_as_removed(&mut nodes, 4).await;
    vote(&nodes, &[0, 1, 2]).await;

    grow(&mut nodes).await;
    for slot in [3, 4] {
        assert!(nodes.generations[slot] > first[slot], "{slot}");
    }
    nodes.unlock("k", token).await;
    assert!(nodes.lock("k", 200).await > token);
}

#[tokio::test]
async fn what_would_leave_another_number_of_voters_is_refused() {
    let mut nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let refused = |result: Result<(), OperatorError>, why: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let three = cluster::grow(&nodes.file, leader, None).await;
    refused(three.map(drop), "five nodes");
    let three_nodes = nodes.file.clone();
    nodes.know_five().await;
    for slots in [&[0][..], &[0, 1], &[3, 4], &[]] {
        let fewer = cluster::remove(&nodes.file, leader, slots, None).await;
        refused(fewer, "three voters at least");
    }
    let nobody = cluster::admit(&nodes.file, leader, None).await;
    refused(nobody.map(drop), "wait to join");
    let other = nodes.slots().find(|slot| *slot != leader).unwrap();
    let follower = cluster::grow(&nodes.file, other, None).await;
    refused(follower.map(drop), "does not lead");

    // Asked again it is the same; those that never came can be removed.
    let told = cluster::grow(&nodes.file, leader, None).await.unwrap();
    assert_eq!(
        cluster::grow(&nodes.file, leader, None).await.unwrap(),
        told
    );
    assert!(!cluster::admit(&nodes.file, leader, None).await.unwrap());
    let promoted = cluster::promote(&nodes.file, leader, 3, None).await;
    refused(promoted.map(drop), "nobody waits");
    let old = cluster::remove(&nodes.file, leader, &[0, 3], None).await;
    refused(old, "learning");
    let [one, two] = [told[0].slot, told[1].slot];
    cluster::remove(&nodes.file, leader, &[one, two], None)
        .await
        .unwrap();

    grow(&mut nodes).await;
    let leader = nodes.leader().await;
    // Asked once more there is nothing to do, and with a file of others it is refused.
    let again = cluster::grow(&nodes.file, leader, None).await.unwrap();
    assert_eq!(again, []);
    let of_three = cluster::grow(&three_nodes, leader, None).await;
    refused(of_three.map(drop), "5 voters already");
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != leader).collect();
    for slots in [&others[..1], &others[..3]] {
        let odd = cluster::remove(&nodes.file, leader, slots, None).await;
        refused(odd, "two of the five");
    }
    // The one that leads hands over to one that stays, and not to the other one that is to go.
    let last = *others.last().unwrap();
    let itself = cluster::remove(&nodes.file, leader, &[leader, last], None).await;
    refused(itself, "handed the lead over");
    let leader = nodes.leader().await;
    assert!(others.contains(&leader) && leader != last, "{leader}");
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != leader).collect();
    // Two of those that would stay are away, if only since just now.
    nodes.kill(others[2]);
    nodes.kill(others[3]);
    let few = cluster::remove(&nodes.file, leader, &others[..2], None).await;
    refused(few, "too few");
    let status = nodes.server(leader).cluster_status().unwrap();
    assert_eq!(status.voters, [0, 1, 2, 3, 4]);
}
