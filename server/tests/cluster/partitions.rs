//! What clients are told when nodes cannot reach each other.

use std::time::Duration;

use highwater_protocol::{ErrorCode, Reply};
use highwater_server::cluster::NodeRole;
use tokio::time::Instant;

use crate::nodes::Nodes;

/// There and back it is longer than an answer to a heartbeat may take.
const SLOW: Duration = Duration::from_millis(90);
/// Several times as long as a leader goes on without an answer.
const LONG: Duration = Duration::from_secs(4);
/// A client gives a release up after two seconds.
const IN_TIME: Duration = Duration::from_millis(1_900);

#[tokio::test]
async fn a_leader_without_a_majority_knows_nothing_and_says_so() {
    let nodes = Nodes::begun(3).await;
    let old = nodes.leader().await;
    let mut client = nodes.client(old).await;
    let held = client.lock("held", 0, 100).await;

    nodes.isolate(old);
    let begun = Instant::now();
    let acquire = client.ask("free", 0, 100).await;
    let release = client.ask_release("held", held).await;
    for id in [acquire, release] {
        let reply = client.answer(id).await;
        // What was not proposed in time may say so; what was never says that it moved.
        let honest = matches!(
            reply,
            Reply::Indeterminate { .. }
                | Reply::Error {
                    code: ErrorCode::NoLeader,
                    ..
                }
        );
        assert!(honest, "{reply:?}");
    }
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    client.hint(|hint| hint.is_none()).await;
    let refused = client.acquire("free", 5, 100).await;
    let refused = matches!(
        refused,
        Reply::Error {
            code: ErrorCode::NoLeader,
            ..
        }
    );
    assert!(refused);

    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != old).collect();
    let new = nodes.leader_among(&others).await;
    let mut other = nodes.client(new).await;
    let token = other.lock("free", 0, 100).await;
    assert!(token > held);
    nodes.heal();
    assert_eq!(nodes.leader().await, new);
    client.hint(|hint| hint == Some(new)).await;
    let moved = client.acquire("free", 0, 100).await;
    assert!(matches!(moved, Reply::Moved { .. }), "{moved:?}");
    // The old leader's release came about or did not; its acquire must not have the lock.
    other.unlock("free", token).await;
    assert!(other.lock("free", 0, 100).await > token);
}

/// Those who queue at a leader that is cut off are not left waiting, and not granted twice.
#[tokio::test]
async fn who_queues_at_a_leader_that_is_cut_off_is_told() {
    let nodes = Nodes::begun(3).await;
    let old = nodes.leader().await;
    let mut holder = nodes.client(old).await;
    let token = holder.lock("k", 0, 100).await;
    let mut waiter = nodes.client(old).await;
    let id = waiter.ask("k", 60, 100).await;
    crate::nodes::eventually("it queues", async || {
        let status = nodes.server(old).cluster_status().unwrap();
        (status.waiters == 1).then_some(())
    })
    .await;
    nodes.isolate(old);
    let reply = waiter.answer(id).await;
    assert!(matches!(reply, Reply::Indeterminate { .. }), "{reply:?}");
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != old).collect();
    let new = nodes.leader_among(&others).await;
    let mut other = nodes.client(new).await;
    other.unlock("k", token).await;
    let mut last = other.lock("k", 0, 100).await;
    nodes.heal();
    nodes.leader().await;
    other.unlock("k", last).await;
    let next = other.lock("k", 0, 100).await;
    assert!(next > last);
    last = next;
    let _ = last;
}

/// Every answer to a heartbeat comes too late to count; those to entries do not.
#[tokio::test]
async fn nodes_that_answer_slowly_keep_their_leader_also_when_there_is_nothing_to_do() {
    let nodes = Nodes::begun(3).await;
    let leader = nodes.leader().await;
    let term = |slot| nodes.server(slot).cluster_status().unwrap().term;
    let first = term(leader);
    nodes.delay(SLOW);
    let mut client = nodes.client(leader).await;
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let status = nodes.server(leader).cluster_status().unwrap();
        assert_eq!(status.role, NodeRole::Leader, "after {:?}", begun.elapsed());
    }
    client.lock("k", 0, 100).await;
    assert_eq!(term(leader), first);
}

/// A node that hears and is not heard cannot hold up the others, nor grant anything.
#[tokio::test]
async fn a_leader_that_is_not_heard_is_replaced() {
    let nodes = Nodes::begun(3).await;
    let old = nodes.leader().await;
    nodes.mute(old);
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != old).collect();
    let new = nodes.leader_among(&others).await;
    assert_ne!(new, old);
    let mut client = nodes.client(new).await;
    client.lock("k", 0, 100).await;
    nodes.heal();
    nodes.leader().await;
}

/// A node that is heard and hears nobody does not keep the others from electing one of them.
#[tokio::test]
async fn a_leader_that_hears_nobody_is_replaced() {
    let nodes = Nodes::begun(3).await;
    let old = nodes.leader().await;
    nodes.deafen(old);
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != old).collect();
    let new = nodes.leader_among(&others).await;
    let mut client = nodes.client(new).await;
    client.lock("k", 0, 100).await;
    nodes.heal();
    nodes.leader().await;
}
