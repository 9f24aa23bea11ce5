//! What is no longer in the log is in a snapshot, and goes to who needs it.

use highwater_protocol::Reply;
use highwater_server::cluster::{self, ClusterMode};

use crate::nodes::{Nodes, eventually};
use crate::volatile::{status, whole};

const EVERY: u32 = 40;

#[tokio::test]
async fn a_node_that_was_away_for_long_comes_back_by_a_snapshot() {
    let mut nodes = Nodes::fresh_and_calm(3).await;
    nodes.snapshot_every(EVERY);
    for slot in 0..3 {
        nodes.kill(slot);
        nodes.start(slot).await;
    }
    highwater_server::cluster::init(&nodes.file, 0, None)
        .await
        .unwrap();
    let leader = nodes.leader().await;
    let away = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(away);
    let mut client = nodes.client(leader).await;
    let mut held = Vec::new();
    let mut highest = None;
    for number in 0..EVERY {
        let token = client.lock("again", 0, 200).await;
        client.unlock("again", token).await;
        let key = format!("held/{number}");
        let token = client.lock(&key, 0, 200).await;
        assert!(Some(token) > highest);
        highest = Some(token);
        held.push((key, token));
    }
    nodes.start(away).await;
    let status = |slot| nodes.server(slot).cluster_status().unwrap();
    eventually("it has caught up", async || {
        let (here, there) = (status(away), status(leader));
        (here.applied == there.applied && here.snapshot.is_some()).then_some(())
    })
    .await;
    assert_eq!(status(away).held_keys, held.len());

    // It counts now: the others cannot go on without it.
    nodes.kill(leader);
    let next = nodes.leader().await;
    let mut client = nodes.client(next).await;
    for (key, _) in &held {
        let taken = client.acquire(key, 0, 200).await;
        assert!(matches!(taken, Reply::TimedOut { .. }), "{key}: {taken:?}");
    }
    assert!(Some(client.lock("new", 0, 200).await) > highest);
    nodes.start(leader).await;
    nodes.leader().await;
    for slot in 0..3 {
        nodes.kill(slot);
    }
    for slot in 0..3 {
        nodes.start(slot).await;
    }
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    for (key, token) in held {
        client.unlock(&key, token).await;
    }
}

/// Many entries come while a new node is sent a snapshot: what it needs next is still in the log when it has it.
#[tokio::test]
async fn a_node_that_takes_long_for_a_snapshot_needs_no_second_one() {
    for _ in 0..8 {
        if let Some(taken) = snapshots_for_a_slow_node().await {
            assert_eq!(taken, 1);
            return;
        }
    }
    panic!("nobody leads for long enough");
}

/// How many snapshots it has taken before it votes; nothing if another node has come to lead.
async fn snapshots_for_a_slow_node() -> Option<u32> {
    let mut nodes = Nodes::fresh_as(ClusterMode::Volatile, 3, None).await;
    nodes.snapshot_every(EVERY);
    for slot in 0..3 {
        nodes.kill(slot);
        nodes.start(slot).await;
    }
    cluster::init(&nodes.file, 0, None).await.unwrap();
    let leader = whole(&nodes).await;
    let term = status(&nodes, leader).term;
    let mut client = nodes.client(leader).await;
    let new = nodes.slots().find(|slot| *slot != leader).unwrap();
    let mut held = 0;
    let mut hold = async |count: u32| {
        for _ in 0..count {
            let reply = client.acquire(&format!("held/{held}"), 0, 250).await;
            if !matches!(reply, Reply::Granted { .. }) {
                return None;
            }
            held += 1;
        }
        Some(held)
    };
    // Until a new process finds that the first entries are gone.
    loop {
        hold(EVERY * 2).await?;
        nodes.kill(new);
        nodes.hold_snapshots(new);
        let before = status(&nodes, leader).members;
        nodes.start(new).await;
        let is_sent_one = eventually("it is sent a snapshot, or votes", async || {
            let now = status(&nodes, leader);
            let votes = now.whole && now.members != before;
            let sent = nodes.parts(new).0 > 0;
            (sent || votes || now.term != term).then_some(sent)
        });
        if is_sent_one.await {
            break;
        }
        nodes.heal();
    }
    let held = hold(EVERY * 2).await?;
    assert_eq!(nodes.parts(new).1, 0);
    nodes.heal();
    whole(&nodes).await;
    let taken = nodes.parts(new).1;
    let holds = status(&nodes, new).held_keys;
    (status(&nodes, leader).term == term).then(|| {
        assert_eq!(u32::try_from(holds).unwrap(), held);
        taken
    })
}
