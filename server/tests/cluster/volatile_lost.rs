//! Memory that is lost: what a process without one may do, and what is left of the cluster.

use std::num::NonZeroU64;
use std::time::Duration;

use highwater_protocol::{ErrorCode, Reply};
use highwater_server::cluster::{self, ClusterError, ClusterFile, ClusterMode, OperatorError};
use highwater_server::{Builder, Readiness, StartError};
use tokio::time::{Instant, sleep};

use crate::nodes::{Nodes, eventually};
use crate::peer::{PRE_VOTE, Peer, VOTE, irresistible};
use crate::volatile::{generations, status, whole};

#[tokio::test]
async fn a_volatile_cluster_begins_once_and_only_when_all_nodes_are_there() {
    let mut nodes = Nodes::fresh_as(ClusterMode::Volatile, 3, None).await;
    let fresh = cluster::status(&nodes.file, 1, None).await.unwrap();
    assert_eq!((fresh.begun, fresh.generation), (false, 0));
    nodes.kill(2);
    let missing = cluster::init(&nodes.file, 0, None).await.unwrap_err();
    assert!(
        matches!(missing, OperatorError::Refused { .. }),
        "{missing}"
    );
    nodes.start(2).await;
    cluster::init(&nodes.file, 0, None).await.unwrap();
    whole(&nodes).await;
    for slot in 0..3 {
        assert!(nodes.marker(slot).exists());
        let again = cluster::init(&nodes.file, slot, None).await.unwrap_err();
        assert!(matches!(again, OperatorError::Refused { .. }), "{again}");
    }
}

/// Neither with the mark nor without: what it might have promised is gone.
#[tokio::test]
async fn a_process_without_a_memory_votes_for_nobody() {
    let mut nodes = Nodes::volatile(3).await;
    whole(&nodes).await;
    for slot in 0..3 {
        nodes.kill(slot);
    }
    for (marked, known_as) in [(true, 0), (false, 1)] {
        if !marked {
            std::fs::remove_file(nodes.marker(1)).unwrap();
        }
        nodes.start(1).await;
        let address = nodes.server(1).peer_addr().unwrap();
        let mut peer = Peer::open(&nodes, address, (0, 1), (1, known_as))
            .await
            .unwrap();
        for kind in [VOTE, PRE_VOTE] {
            let answer = peer.call(kind, &irresistible((0, 1))).await;
            let refused = answer.unwrap_err();
            assert!(refused.contains("no part in the cluster"), "{refused}");
        }
        if marked {
            let old = Peer::open(&nodes, address, (0, 1), (1, 1)).await;
            assert_eq!(old.err(), Some(3), "it answers under its old name");
        }
        nodes.kill(1);
    }
}

#[tokio::test]
async fn a_process_whose_mark_is_lost_is_a_new_node_all_the_same() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    whole(&nodes).await;
    nodes.kill(1);
    std::fs::remove_file(nodes.marker(1)).unwrap();
    nodes.start(1).await;
    eventually("it is let in", async || {
        (status(&nodes, 1).generation == 2).then_some(())
    })
    .await;
    assert_eq!(generations(&nodes).await, [1, 2, 1]);
    assert!(nodes.marker(1).exists());
}

async fn dies(count: u8, lost: u8) {
    let mut nodes = Nodes::volatile_and_calm(count).await;
    let leader = whole(&nodes).await;
    let token = nodes.client(leader).await.lock("kept", 0, 200).await;
    for slot in 0..lost {
        nodes.kill(slot);
    }
    for slot in 0..lost {
        nodes.start(slot).await;
    }
    all_say_that_they_are_dead(&nodes).await;
    for slot in nodes.slots() {
        let mut client = nodes.client(slot).await;
        for reply in [
            client.acquire("free", 0, 10).await,
            client.release("kept", token).await,
        ] {
            let code = ErrorCode::NoLeader;
            assert!(matches!(reply, Reply::Error { code: found, .. } if found == code));
        }
        let again = cluster::init(&nodes.file, slot, None).await.unwrap_err();
        assert!(matches!(again, OperatorError::Refused { .. }), "{again}");
    }
    // Nothing begins by itself when the last one who remembered has gone too.
    for slot in lost..count {
        nodes.kill(slot);
        nodes.start(slot).await;
    }
    all_say_that_they_are_dead(&nodes).await;
    for slot in nodes.slots() {
        assert_eq!(status(&nodes, slot).generation, 0);
        let again = cluster::init(&nodes.file, slot, None).await.unwrap_err();
        assert!(matches!(again, OperatorError::Refused { .. }), "{again}");
    }
}

pub(crate) async fn all_say_that_they_are_dead(nodes: &Nodes) {
    eventually("all know that a majority has lost its memory", async || {
        let mut all = nodes.slots();
        let dead = all.all(|slot| {
            let says = status(nodes, slot).dead;
            says && nodes.server(slot).readiness() == Readiness::MajorityLost
        });
        dead.then_some(())
    })
    .await;
}

#[tokio::test]
async fn three_nodes_of_which_two_have_lost_their_memory_are_dead() {
    dies(3, 2).await;
}

#[tokio::test]
async fn five_nodes_of_which_three_have_lost_their_memory_are_dead() {
    dies(5, 3).await;
}

/// One has lost its memory, one is alone, and one is out of reach: two who remember are enough.
#[tokio::test]
async fn nodes_that_are_only_out_of_reach_are_not_dead() {
    let mut nodes = Nodes::volatile(3).await;
    let leader = whole(&nodes).await;
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != leader).collect();
    nodes.isolate(others[0]);
    nodes.kill(others[1]);
    nodes.start(others[1]).await;
    eventually("nobody leads", async || {
        let leaderless = |slot| nodes.server(slot).readiness() == Readiness::NoLeader;
        (0..3).all(leaderless).then_some(())
    })
    .await;
    let since = Instant::now();
    while since.elapsed() < SOME_SLOW_SURVEYS {
        for slot in 0..3 {
            assert!(!status(&nodes, slot).dead, "slot {slot}");
        }
        sleep(Duration::from_millis(20)).await;
    }
    nodes.heal();
    let mut expected = vec![1; 3];
    expected[usize::from(others[1])] = 2;
    eventually("it goes on", async || {
        (generations(&nodes).await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_volatile_node_cannot_have_is_refused() {
    let mut nodes = Nodes::fresh_as(ClusterMode::Volatile, 3, None).await;
    nodes.kill(0);
    let refused = async |builder: Builder| match builder.start().await {
        Err(StartError::Cluster(error)) => error,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it started"),
    };
    let data = refused(nodes.builder(0).data_dir(nodes.data_dir(0))).await;
    assert!(matches!(data, ClusterError::KeepsNothing), "{data:?}");
    let memory = refused(nodes.builder(0).in_memory()).await;
    assert!(matches!(memory, ClusterError::InMemory), "{memory:?}");
    let generation = nodes.builder(0).generation(NonZeroU64::MIN);
    let generation = refused(generation).await;
    assert!(
        matches!(generation, ClusterError::ByItself),
        "{generation:?}"
    );

    // A mark that cannot be read, and one that could not be left.
    let marker = nodes.marker(0);
    let attempt = marker.with_extension("used.try");
    for in_the_way in [marker, attempt] {
        std::fs::create_dir(&in_the_way).unwrap();
        let mark = refused(nodes.builder(0)).await;
        assert!(matches!(mark, ClusterError::Marker { .. }), "{mark:?}");
        std::fs::remove_dir(&in_the_way).unwrap();
    }
}

#[tokio::test]
async fn nodes_of_the_two_modes_are_strangers() {
    let nodes = Nodes::volatile(3).await;
    let path = nodes.files().join("cluster.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"volatile\"", "\"durable\"")).unwrap();
    let other = ClusterFile::read(&path).unwrap();
    assert_eq!(other.mode(), ClusterMode::Durable);
    let refused = cluster::status(&other, 0, None).await.unwrap_err();
    assert!(
        matches!(refused, OperatorError::Unreachable { .. }),
        "{refused}"
    );
}

/// Enough for everybody to ask more often than it takes to find a cluster dead.
pub(crate) const SOME_SURVEYS: Duration = Duration::from_secs(6);
/// The same, where somebody who is asked does not even refuse.
pub(crate) const SOME_SLOW_SURVEYS: Duration = Duration::from_secs(9);
