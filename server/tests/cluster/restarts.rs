//! What is kept when all nodes go.

use highwater_protocol::Reply;

use crate::nodes::Nodes;

#[tokio::test]
async fn a_restart_of_all_nodes_keeps_locks_and_tokens() {
    let mut nodes = Nodes::begun(3).await;
    let mut highest = None;
    let mut held = Vec::new();
    for round in 0..3 {
        let leader = nodes.leader().await;
        let mut client = nodes.client(leader).await;
        for (key, token) in &held {
            let key: &String = key;
            let taken = client.acquire(key, 0, 100).await;
            assert!(
                matches!(taken, Reply::TimedOut { .. }),
                "{key} {token}: {taken:?}"
            );
        }
        for number in 0..20 {
            let key = format!("{round}/{number}");
            let token = client.lock(&key, 0, 100).await;
            assert!(Some(token) > highest, "{token} after {highest:?}");
            highest = Some(token);
            held.push((key, token));
        }
        for slot in 0..3 {
            match round {
                0 => nodes.kill(slot),
                _ => nodes.stop(slot).await,
            }
        }
        for slot in 0..3 {
            nodes.start(slot).await;
        }
    }
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    for (key, token) in held {
        client.unlock(&key, token).await;
        assert!(Some(client.lock(&key, 0, 100).await) > highest);
    }
}
