//! What is kept when the leader goes.

use highwater_protocol::Reply;

use crate::nodes::Nodes;

/// The next leader of those that are up, whoever it was before.
async fn next_leader(nodes: &Nodes) -> u8 {
    nodes.leader().await
}

#[tokio::test]
async fn locks_and_tokens_outlive_their_leader() {
    let mut nodes = Nodes::begun(3).await;
    let first = nodes.leader().await;
    let mut client = nodes.client(first).await;
    let held = client.lock("held", 0, 100).await;
    let mut highest = client.lock("free", 0, 100).await;
    client.unlock("free", highest).await;

    nodes.kill(first);
    let second = next_leader(&nodes).await;
    assert_ne!(second, first);
    let mut client = nodes.client(second).await;
    let taken = client.acquire("held", 0, 100).await;
    assert!(matches!(taken, Reply::TimedOut { .. }), "{taken:?}");
    let token = client.lock("free", 0, 100).await;
    assert!(token > highest, "{token} after {highest}");
    highest = token;
    client.unlock("held", held).await;

    nodes.start(first).await;
    nodes.leader().await;
    nodes.kill(second);
    let third = next_leader(&nodes).await;
    let mut client = nodes.client(third).await;
    let taken = client.acquire("free", 0, 100).await;
    assert!(matches!(taken, Reply::TimedOut { .. }), "{taken:?}");
    assert!(client.lock("held", 0, 100).await > highest);
}

/// Whoever waits at a leader that retires is sent to the next one, not left in the dark.
#[tokio::test]
async fn a_leader_that_retires_hands_over_and_says_so() {
    let mut nodes = Nodes::begun(3).await;
    let first = nodes.leader().await;
    let mut holder = nodes.client(first).await;
    let token = holder.lock("k", 0, 100).await;
    let mut waiter = nodes.client(first).await;
    let id = waiter.ask("k", 60, 100).await;
    crate::nodes::eventually("it queues", async || {
        let status = nodes.server(first).cluster_status().unwrap();
        (status.waiters == 1).then_some(())
    })
    .await;
    nodes.stop(first).await;
    let moved = waiter.answer(id).await;
    let Reply::Moved {
        leader: Some(leader),
        ..
    } = moved
    else {
        panic!("{moved:?}");
    };
    let second = next_leader(&nodes).await;
    assert_eq!(leader.get(), second);
    let mut client = nodes.client(second).await;
    client.unlock("k", token).await;
    assert!(client.lock("k", 0, 100).await > token);
}

#[tokio::test]
async fn a_leader_steps_down_when_it_is_asked_to() {
    let nodes = Nodes::begun(3).await;
    let first = nodes.leader().await;
    let mut client = nodes.client(first).await;
    highwater_server::cluster::step_down(&nodes.file, first, None)
        .await
        .unwrap();
    let second = nodes.leader().await;
    assert_ne!(first, second);
    client.hint(|hint| hint == Some(second)).await;
    let refused = highwater_server::cluster::step_down(&nodes.file, first, None).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn five_nodes_go_on_without_two_and_not_without_three() {
    let mut nodes = Nodes::begun(5).await;
    let mut highest = None;
    for _ in 0..2 {
        let leader = nodes.leader().await;
        let mut client = nodes.client(leader).await;
        let token = client.lock("k", 0, 100).await;
        assert!(Some(token) > highest);
        highest = Some(token);
        client.unlock("k", token).await;
        nodes.kill(leader);
    }
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    let token = client.lock("k", 0, 100).await;
    assert!(Some(token) > highest);
    let third = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(third);
    client.hint(|hint| hint.is_none()).await;
    let refused = client.acquire("other", 1, 100).await;
    assert!(matches!(refused, Reply::Error { .. }), "{refused:?}");
    nodes.start(third).await;
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    assert!(client.lock("other", 0, 100).await > token);
}
