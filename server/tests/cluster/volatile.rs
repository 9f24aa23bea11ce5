//! Clusters that keep nothing on disk: a process that starts again is a new node.

use highwater_protocol::Reply;
use highwater_server::cluster::NodeRole;

use crate::nodes::{Nodes, eventually};

/// Waits until any one node may go.
async fn whole(nodes: &Nodes) -> u8 {
    eventually("all voters have caught up", async || {
        let leader = nodes.leader().await;
        let status = nodes.server(leader).cluster_status().unwrap();
        status.whole.then_some(leader)
    })
    .await
}

#[tokio::test]
async fn all_nodes_restart_one_after_the_other_and_locks_stay() {
    let mut nodes = Nodes::volatile(3).await;
    let mut client = nodes.client(whole(&nodes).await).await;
    let kept = client.lock("kept", 0, 200).await;
    let mut highest = kept;
    for round in 0..2 {
        for slot in 0..3 {
            whole(&nodes).await;
            match round {
                0 => nodes.stop(slot).await,
                _ => nodes.kill(slot),
            }
            nodes.start(slot).await;
            eventually("it votes", async || {
                let status = nodes.server(slot).cluster_status()?;
                let generation = status.generation;
                (generation == round + 2 && status.role != NodeRole::Joining).then_some(())
            })
            .await;
            let mut client = nodes.client(whole(&nodes).await).await;
            let taken = client.acquire("kept", 0, 200).await;
            assert!(matches!(taken, Reply::TimedOut { .. }), "{taken:?}");
            let token = client.lock("free", 0, 200).await;
            assert!(token > highest, "{token} after {highest}");
            highest = token;
            client.unlock("free", token).await;
        }
    }
    let leader = whole(&nodes).await;
    let status = nodes.server(leader).cluster_status().unwrap();
    let voters = &status.members.unwrap().voters;
    assert_eq!(voters.len(), 1);
    assert!(voters[0].iter().all(|place| place.generation == 3));
    let mut client = nodes.client(leader).await;
    client.unlock("kept", kept).await;
    assert!(client.lock("kept", 0, 200).await > highest);
}
