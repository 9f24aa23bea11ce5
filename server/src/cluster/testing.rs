//! Processes of a volatile cluster for tests that look inside.

use std::num::NonZeroU8;
use std::sync::Arc;

use highwater_lock::{HashSeed, Machine};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::desk::Desk;
use super::file::{ClusterFile, ClusterMode, NodeAddresses};
use super::peer::{Trust, serve};
use super::presence::{Engine, Presence};
use super::retention::Retention;
use super::rules::{self, Pace};
use super::start::config;
use crate::system::NodeClock;

/// Nobody is to take a leader that is only slow for gone.
fn pace() -> Pace {
    Pace::slower(NonZeroU8::MIN.saturating_add(7))
}

/// Three processes that answer each other, and have no part in the cluster yet.
pub(super) async fn three() -> (TempDir, Vec<Arc<Presence>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut listeners = Vec::new();
    for _ in 0..3 {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let nodes = listeners.iter().enumerate().map(|(slot, listener)| {
        // Nobody listens there for clients.
        let clients = format!("127.0.0.1:{}", slot + 1);
        let peers = listener.local_addr().unwrap().to_string();
        NodeAddresses { clients, peers }
    });
    let nodes: Vec<NodeAddresses> = nodes.collect();
    let new = ClusterFile::create_as(ClusterMode::Volatile, folder.path(), &nodes).unwrap();
    let file = ClusterFile::read(new.file).unwrap();
    let slots = file.all().iter().map(|node| node.slot);
    let presences = slots.zip(listeners).map(|(slot, listener)| {
        let seed = HashSeed::from_bytes([1; 16]);
        let machine = Machine::seeded(rules::limits(), file.first_token(), seed);
        let clock = NodeClock::start(None);
        let trust = Trust {
            domain: file.identity(),
            secrets: file.peer_secrets().clone(),
            common: file.common(),
            accept: None,
            connect: None,
        };
        let presence = Arc::new(Presence::new(
            slot,
            Arc::new(trust),
            file.clone(),
            Arc::new(Desk::new(file.identity(), slot, machine, clock.clone())),
            None,
            Engine {
                config: Arc::new(config(1_000, pace()).unwrap()),
                retention: Retention::beside(1_000),
                pace: pace(),
                seed,
                clock,
            },
            [slot.get(); 16],
        ));
        tokio::spawn(serve::accept(listener, Arc::clone(&presence)));
        presence
    });
    let presences = presences.collect();
    (folder, presences)
}

/// The same, as the first nodes of a cluster that has begun, with the one that leads in front.
pub(super) async fn begun() -> (TempDir, Vec<Arc<Presence>>) {
    let (folder, mut presences) = three().await;
    for presence in &presences {
        tokio::spawn(Arc::clone(presence).live());
    }
    presences[0].init().await.unwrap();
    let leads = |presence: &Arc<Presence>| presence.status().whole;
    eventually(|| presences.iter().any(leads)).await;
    presences.sort_by_key(|presence| !leads(presence));
    (folder, presences)
}

/// Waits for a condition.
pub(super) async fn eventually(mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let limit = std::time::Duration::from_secs(30);
    tokio::time::timeout(limit, waited).await.expect("in time");
}
