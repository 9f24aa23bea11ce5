//! What is kept when all nodes go.

use crate::nodes::Nodes;

#[tokio::test]
async fn a_restart_of_all_nodes_keeps_locks_and_tokens() {
    let mut nodes = Nodes::begun(3).await;
    let mut highest = None;
    let mut held = Vec::new();
    for round in 0..3 {
        for (key, _) in &held {
            let key: &String = key;
            nodes.is_taken(key).await;
        }
        for number in 0..20 {
            let key = format!("{round}/{number}");
            let token = nodes.lock(&key, 100).await;
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
    for (key, token) in held {
        nodes.unlock(&key, token).await;
        assert!(Some(nodes.lock(&key, 100).await) > highest);
    }
}
