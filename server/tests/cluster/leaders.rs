//! What is kept when the leader goes.

use highwater_protocol::Reply;

use crate::nodes::Nodes;

#[tokio::test]
async fn locks_and_tokens_outlive_their_leader() {
    let mut nodes = Nodes::begun(3).await;
    let held = nodes.lock("held", 100).await;
    let mut highest = nodes.lock("free", 100).await;
    nodes.unlock("free", highest).await;

    let first = nodes.leader().await;
    nodes.kill(first);
    assert_ne!(nodes.leader().await, first);
    nodes.is_taken("held").await;
    let token = nodes.lock("free", 100).await;
    assert!(token > highest, "{token} after {highest}");
    highest = token;
    nodes.unlock("held", held).await;

    nodes.start(first).await;
    let second = nodes.leader().await;
    nodes.kill(second);
    nodes.is_taken("free").await;
    assert!(nodes.lock("held", 100).await > highest);
}

/// Whoever waits at a leader that retires is sent to the next one, not left in the dark.
#[tokio::test]
async fn a_leader_that_retires_hands_over_and_says_so() {
    let mut nodes = Nodes::calm(3).await;
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
    let second = nodes.leader().await;
    assert_eq!(leader.get(), second);
    let mut client = nodes.client(second).await;
    client.unlock("k", token).await;
    assert!(client.lock("k", 0, 100).await > token);
}

#[tokio::test]
async fn a_leader_steps_down_when_it_is_asked_to() {
    let nodes = Nodes::calm(3).await;
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
        let token = nodes.lock("k", 100).await;
        assert!(Some(token) > highest);
        highest = Some(token);
        nodes.unlock("k", token).await;
        let leader = nodes.leader().await;
        nodes.kill(leader);
    }
    let token = nodes.lock("k", 100).await;
    assert!(Some(token) > highest);
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    let third = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(third);
    client.hint(|hint| hint.is_none()).await;
    let refused = client.acquire("other", 1, 100).await;
    assert!(matches!(refused, Reply::Error { .. }), "{refused:?}");
    nodes.start(third).await;
    assert!(nodes.lock("other", 100).await > token);
}
