//! Nodes whose clocks run wrong.

use std::time::Duration;

use highwater_protocol::{ErrorCode, Reply};
use highwater_server::cluster::{self, ClockHealth, NodeRole};
use highwater_server::{FencingToken, Readiness};
use tokio::time::{Instant, sleep};

use crate::nodes::{Nodes, eventually};

fn health(nodes: &Nodes, slot: u8) -> ClockHealth {
    nodes.server(slot).cluster_status().unwrap().clock.health
}

async fn finds(nodes: &Nodes, slot: u8, wanted: ClockHealth) {
    let what = format!("slot {slot} finds its clock {wanted:?}");
    eventually(&what, async || {
        (health(nodes, slot) == wanted).then_some(())
    })
    .await;
}

fn is_not_active(reply: &Reply) -> bool {
    let code = ErrorCode::NotActive;
    matches!(reply, Reply::Error { code: found, .. } if *found == code)
}

/// A lock of whoever leads; asks again while that changes.
async fn lock_anew(nodes: &Nodes, among: &[u8], name: &str) -> (u8, FencingToken) {
    let what = format!("{name} is granted by one of {among:?}");
    eventually(&what, async || {
        let leader = nodes.leader_among(among).await;
        let mut client = nodes.client(leader).await;
        match client.acquire(name, 0, 200).await {
            Reply::Granted { token, .. } => Some((leader, token)),
            Reply::Moved { .. } | Reply::Error { .. } => None,
            other => panic!("{other:?}"),
        }
    })
    .await
}

#[tokio::test]
async fn a_leader_whose_clock_is_too_fast_or_too_slow_lets_another_one_lead() {
    let nodes = Nodes::calm(3).await;
    let mut highest = None;
    for (round, rate) in [200_000, -200_000].into_iter().enumerate() {
        let old = nodes.leader().await;
        let others: Vec<u8> = nodes.slots().filter(|slot| *slot != old).collect();
        nodes.skews[usize::from(old)].set(rate, 0);
        finds(&nodes, old, ClockHealth::Differs).await;
        let (new, token) = lock_anew(&nodes, &others, &format!("k/{round}")).await;
        assert_ne!(new, old);
        assert!(Some(token) > highest);
        highest = Some(token);
        for slot in &others {
            assert_eq!(health(&nodes, *slot), ClockHealth::Good);
        }
        let mut client = nodes.client(old).await;
        eventually("the old leader sends clients on", async || {
            let moved = client.acquire("other", 0, 200).await;
            assert!(!matches!(moved, Reply::Granted { .. }), "{moved:?}");
            matches!(moved, Reply::Moved { .. }).then_some(())
        })
        .await;
        let status = nodes.server(old).cluster_status().unwrap();
        for peer in &status.clock.peers {
            assert!(peer.differs && peer.answers, "{peer:?}");
        }
        nodes.skews[usize::from(old)].set(0, 0);
        finds(&nodes, old, ClockHealth::Good).await;
    }
}

/// Two are left and their clocks differ: nobody can tell whose is wrong.
#[tokio::test]
async fn a_leader_that_no_majority_agrees_with_lets_time_stand_still_and_takes_releases() {
    let mut nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut holder = nodes.client(leader).await;
    let kept = holder.lock("kept", 0, 200).await;
    let gone = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.kill(gone);
    let mut waiter = nodes.client(leader).await;
    let waiting = waiter.ask("kept", 200, 200).await;
    eventually("it queues", async || {
        (nodes.server(leader).counts().waiters == 1).then_some(())
    })
    .await;
    eventually("it is seen that one is gone", async || {
        let peers = nodes.server(leader).cluster_status().unwrap().clock.peers;
        let silent = peers.iter().find(|peer| !peer.answers)?;
        (silent.slot == gone).then_some(())
    })
    .await;
    let short = holder.lock("short", 0, 6).await;
    nodes.skews[usize::from(leader)].set(1_000_000, 0);
    // Who waits is sent away, and gets nothing when the holder releases.
    let sent_away = waiter.answer(waiting).await;
    assert!(is_not_active(&sent_away), "{sent_away:?}");
    assert_eq!(health(&nodes, leader), ClockHealth::Differs);
    assert_eq!(nodes.server(leader).readiness(), Readiness::Clock);
    holder.unlock("kept", kept).await;
    let refused = holder.acquire("kept", 0, 200).await;
    assert!(is_not_active(&refused), "{refused:?}");
    // A lease that would be over by any clock goes on: nobody counts its time.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        assert_eq!(nodes.server(leader).counts().held_keys, 1);
        let status = nodes.server(leader).cluster_status().unwrap();
        assert_eq!(status.role, NodeRole::Leader);
        sleep(Duration::from_millis(50)).await;
    }
    nodes.skews[usize::from(leader)].set(0, 0);
    finds(&nodes, leader, ClockHealth::Good).await;
    let token = holder.lock("kept", 0, 200).await;
    assert!(token > short);
    eventually("the short lease ends", async || {
        (nodes.server(leader).counts().held_keys == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_follower_whose_clock_is_wrong_does_not_come_to_lead() {
    let mut nodes = Nodes::begun(5).await;
    let first = nodes.leader().await;
    // The one that would be preferred.
    let wrong = nodes.slots().filter(|slot| *slot != first).max().unwrap();
    nodes.skews[usize::from(wrong)].set(-300_000, 0);
    finds(&nodes, wrong, ClockHealth::Differs).await;
    for _ in 0..5 {
        let leader = nodes.leader().await;
        assert_ne!(leader, wrong);
        let done = cluster::step_down(&nodes.file, leader, None).await;
        // It may have lost the lead before it was asked to give it up.
        assert!(done.is_ok() || nodes.leader().await != leader, "{done:?}");
    }
    for _ in 0..4 {
        let leader = nodes.leader().await;
        assert_ne!(leader, wrong);
        nodes.kill(leader);
        assert_ne!(nodes.leader().await, wrong);
        nodes.start(leader).await;
        finds(&nodes, leader, ClockHealth::Good).await;
    }
}

#[tokio::test]
async fn a_wall_clock_that_jumps_stops_nothing_and_is_shown() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    let hour = 3_600_000_000_i64;
    let begun = Instant::now();
    for (round, ahead) in [hour, -hour, 0, 30 * 24 * hour].into_iter().enumerate() {
        nodes.skews[usize::from(leader)].set(0, ahead);
        eventually("the others see it", async || {
            let others = nodes.slots().filter(|slot| *slot != leader);
            let shown = others.map(|slot| {
                let clock = nodes.server(slot).cluster_status().unwrap().clock;
                let peer = clock.peers.into_iter().find(|peer| peer.slot == leader)?;
                let error = i64::try_from(peer.wall_error_micros?).ok()?;
                ((peer.wall_ahead_micros? - ahead).abs() <= error + 100_000).then_some(())
            });
            shown.into_iter().collect::<Option<Vec<()>>>()
        })
        .await;
        client.lock(&format!("k/{round}"), 0, 200).await;
    }
    assert_eq!(nodes.leader().await, leader, "after {:?}", begun.elapsed());
    for slot in nodes.slots() {
        assert_eq!(health(&nodes, slot), ClockHealth::Good);
    }
}
