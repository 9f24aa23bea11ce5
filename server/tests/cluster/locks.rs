//! What clients of a cluster without trouble see.

use std::time::Duration;

use highwater_protocol::handshake::Slot;
use highwater_protocol::{Reply, Shape};

use crate::nodes::{Nodes, eventually};

#[tokio::test]
async fn the_leader_grants_and_the_others_name_it() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    let first = client.lock("stock/apple", 0, 30).await;
    let mut other = nodes.client(leader).await;
    let taken = other.acquire("stock/apple", 0, 30).await;
    assert!(matches!(taken, Reply::TimedOut { .. }), "{taken:?}");
    for slot in nodes.slots().filter(|slot| *slot != leader) {
        let mut follower = nodes.client(slot).await;
        let moved = follower.acquire("stock/apple", 0, 30).await;
        let named = Slot::new(leader);
        let right = matches!(moved, Reply::Moved { leader, .. } if leader == named);
        assert!(right, "{moved:?}");
        let moved = follower.release("stock/apple", first).await;
        assert!(matches!(moved, Reply::Moved { .. }), "{moved:?}");
    }
    client.unlock("stock/apple", first).await;
    assert!(other.lock("stock/apple", 0, 30).await > first);
    let gone = client.release("stock/apple", first).await;
    assert!(matches!(gone, Reply::NotHeld { .. }), "{gone:?}");
}

#[tokio::test]
async fn who_queues_is_served_in_order_and_a_lease_ends_by_itself() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut holder = nodes.client(leader).await;
    let first = holder.lock("k", 0, 1).await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let mut client = nodes.client(leader).await;
        let id = client.ask("k", 20, 1).await;
        waiters.push((client, id));
        eventually("the next one queues", async || {
            let status = nodes.server(leader).cluster_status().unwrap();
            (status.waiters == waiters.len()).then_some(())
        })
        .await;
    }
    // Nobody releases: each lease ends, and the next one has its turn.
    let mut last = first;
    for (client, id) in &mut waiters {
        let granted = client.answer(*id).await;
        let Reply::Granted { token, shape, .. } = granted else {
            panic!("{granted:?}");
        };
        assert_eq!(shape, Shape::One);
        assert!(token > last);
        last = token;
    }
    let mut client = nodes.client(leader).await;
    let waited = client.acquire("k", 1, 1).await;
    assert!(matches!(
        waited,
        Reply::TimedOut { .. } | Reply::Granted { .. }
    ));
}

/// A cycle is one entry for the acquire and one for the release, whoever waits.
#[tokio::test]
async fn a_contended_cycle_takes_two_entries_at_most() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(nodes.client(leader).await);
    }
    let entries = || {
        nodes
            .server(leader)
            .cluster_status()
            .unwrap()
            .last_entry
            .unwrap()
    };
    let before = entries();
    const ROUNDS: u64 = 25;
    let mut tasks = tokio::task::JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let token = client.lock("contended", 60, 60).await;
                client.unlock("contended", token).await;
            }
        });
    }
    tasks.join_all().await;
    let used = entries() - before;
    assert!(
        used <= 2 * 4 * ROUNDS,
        "{used} entries for {} cycles",
        4 * ROUNDS
    );
}

#[tokio::test]
async fn who_is_gone_is_not_granted_anything() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut holder = nodes.client(leader).await;
    let token = holder.lock("k", 0, 60).await;
    let mut gone = nodes.client(leader).await;
    gone.ask("k", 60, 60).await;
    let waiters = async |count: usize| {
        eventually("the number of waiters", async || {
            let status = nodes.server(leader).cluster_status().unwrap();
            (status.waiters == count).then_some(())
        })
        .await;
    };
    waiters(1).await;
    drop(gone);
    waiters(0).await;
    let mut next = nodes.client(leader).await;
    let id = next.ask("k", 60, 60).await;
    waiters(1).await;
    assert!(next.is_silent(id, Duration::from_millis(50)).await);
    holder.unlock("k", token).await;
    let granted = next.answer(id).await;
    assert!(matches!(granted, Reply::Granted { .. }), "{granted:?}");
}
