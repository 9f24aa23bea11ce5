//! What is no longer in the log is in a snapshot, and goes to who needs it.

use highwater_protocol::Reply;

use crate::nodes::{Nodes, eventually};

const EVERY: u32 = 40;

#[tokio::test]
async fn a_node_that_was_away_for_long_comes_back_by_a_snapshot() {
    let mut nodes = Nodes::fresh(3).await;
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
