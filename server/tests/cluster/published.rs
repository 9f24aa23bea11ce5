//! The published client `ticketing` 0.4.0, unchanged, against our cluster.
//!
//! Only its public API is used. What it does with connections and leaders is its own business; what
//! we promise is that it gets what it expects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ticketing::{BrokerMode, ReleaseOutcome, TicketBroker, TicketError};
use tokio::task::JoinSet;

use crate::nodes::{LIMIT, Nodes, TOKEN, eventually};

const WAIT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(60);
const WORK: Duration = Duration::from_secs(1);
const KEYS: usize = 3;

async fn broker(nodes: &Nodes) -> TicketBroker {
    let broker = TicketBroker::builder()
        .addrs(nodes.addresses.iter().map(ToString::to_string))
        .token(std::str::from_utf8(TOKEN).unwrap())
        .mode(BrokerMode::Cluster {
            identity_fingerprint: *nodes.file.identity().as_bytes(),
        })
        .connect()
        .unwrap();
    assert!(broker.wait_ready(LIMIT).await, "no node lets it in");
    broker
}

#[tokio::test(flavor = "multi_thread")]
async fn it_finds_the_leader_and_follows_it() {
    let mut nodes = Nodes::begun(3).await;
    let broker = broker(&nodes).await;
    let mut highest = 0;
    for round in 0..3 {
        let one = broker.acquire("one", WAIT, LEASE, WORK).await.unwrap();
        assert!(one.token() > highest, "round {round}");
        let set = broker
            .acquire_set(&["b", "a"], WAIT, LEASE, WORK)
            .await
            .unwrap();
        assert!(set.token() > one.token());
        highest = set.token();
        assert_eq!(one.release().await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(set.release().await.unwrap(), ReleaseOutcome::Released);
        let leader = nodes.leader().await;
        match round {
            0 => nodes.stop(leader).await,
            _ => nodes.kill(leader),
        }
        nodes.leader().await;
        nodes.start(leader).await;
        nodes.leader().await;
    }
    broker.close().await;
}

/// What all workers have seen.
#[derive(Default)]
struct Seen {
    holders: [AtomicBool; KEYS],
    last: Mutex<BTreeMap<usize, u64>>,
    cycles: AtomicU64,
    unknown: AtomicU64,
    end: AtomicBool,
}

/// Holds and gives back one key after the other. A holder that is not sure of its lock says so by
/// the type of its answer, and then has none.
async fn work(broker: TicketBroker, seen: Arc<Seen>, worker: usize) {
    let mut round = worker;
    while !seen.end.load(Ordering::Relaxed) {
        let key = round % KEYS;
        round += 1;
        let ticket = match broker
            .acquire(&format!("key-{key}"), WAIT, LEASE, WORK)
            .await
        {
            Ok(ticket) => ticket,
            Err(TicketError::Indeterminate) => {
                // Nobody knows; what it may have got ends with its lease, which is long. So the
                // others go on with other keys.
                seen.unknown.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(TicketError::Timeout) => continue,
            Err(error) => panic!("worker {worker}: {error:?}"),
        };
        let held = seen.holders[key].swap(true, Ordering::SeqCst);
        assert!(!held, "two hold key {key}");
        let previous = seen.last.lock().unwrap().insert(key, ticket.token());
        assert!(
            previous < Some(ticket.token()),
            "a token of key {key} went back"
        );
        tokio::task::yield_now().await;
        seen.holders[key].store(false, Ordering::SeqCst);
        drop(ticket.release().await);
        seen.cycles.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_holders_exclude_each_other_while_leaders_come_and_go() {
    let mut nodes = Nodes::begun(3).await;
    let seen = Arc::new(Seen::default());
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let (broker, seen) = (broker(&nodes).await, Arc::clone(&seen));
        workers.spawn(work(broker, seen, worker));
    }
    for round in 0..4 {
        let before = seen.cycles.load(Ordering::Relaxed);
        eventually("work goes on", async || {
            assert!(workers.try_join_next().is_none_or(|ended| ended.is_ok()));
            (seen.cycles.load(Ordering::Relaxed) > before + 20).then_some(())
        })
        .await;
        let leader = nodes.leader().await;
        match round % 2 {
            0 => nodes.stop(leader).await,
            // A crash may leave a lock behind for which nobody knows the token.
            _ => {
                seen.end.store(true, Ordering::Relaxed);
                while let Some(ended) = workers.join_next().await {
                    ended.unwrap();
                }
                seen.end.store(false, Ordering::Relaxed);
                nodes.kill(leader);
                for worker in 0..8 {
                    let (broker, seen) = (broker(&nodes).await, Arc::clone(&seen));
                    workers.spawn(work(broker, seen, worker));
                }
            }
        }
        nodes.leader().await;
        nodes.start(leader).await;
    }
    seen.end.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    println!(
        "{} cycles, {} without an answer",
        seen.cycles.load(Ordering::Relaxed),
        seen.unknown.load(Ordering::Relaxed)
    );
}
