//! Many that are parked: they are let in by portions, in their order, and not judged in vain.

use std::collections::BTreeMap;

use super::durable::World;
use super::*;
use crate::desk::gate::AT_ONCE;
use crate::desk::parked::{Entry, acquired};
use crate::storage::AfterRestart;
use crate::storage::tests::ModelDisk;

const MANY: u64 = 2 * AT_ONCE as u64 + 100;

fn granted(peer: &Peer) -> Vec<u64> {
    let replies = peer.replies();
    let granted = replies.iter().map(|reply| match reply {
        Reply::Granted { id, .. } => id.get(),
        other => panic!("{other:?}"),
    });
    granted.collect()
}

fn block_of(block: u64) -> World {
    let policy = AfterRestart::default();
    World::start_with(&ModelDisk::new(), policy, block, Limits::default())
}

fn park_many(world: &World) -> Peer {
    let client = peer(&world.desk);
    for id in 1..=MANY {
        client.acquires(&world.desk, id, &[&format!("key-{id}")], 200, 60);
    }
    assert_eq!(client.replies(), []);
    client
}

#[tokio::test(start_paused = true)]
async fn one_record_lets_a_portion_in_and_the_timekeeper_the_others_in_order() {
    let mut world = block_of(1 << 20);
    let client = park_many(&world);
    let (record, _) = world.desk.record().unwrap();
    assert!(world.write(record));
    let first: Vec<u64> = (1..=AT_ONCE as u64).collect();
    assert_eq!(granted(&client), first);
    // Whoever comes now for a key of those who are left comes behind them.
    let late = peer(&world.desk);
    let last = format!("key-{MANY}");
    late.acquires(&world.desk, 1, &[&last], 0, 5);
    assert_eq!(late.replies(), [Reply::TimedOut { id: number(1) }]);
    late.acquires(&world.desk, 2, &[&last], 100, 5);
    world.desk.tick();
    let second: Vec<u64> = (AT_ONCE as u64 + 1..=2 * AT_ONCE as u64).collect();
    assert_eq!(granted(&client), second);

    let desk = Arc::new(world.desk);
    let keeper = Arc::clone(&desk);
    let keeper = tokio::spawn(async move { keeper.keep_time().await });
    tokio::time::sleep(Duration::from_micros(1)).await;
    let rest: Vec<u64> = (2 * AT_ONCE as u64 + 1..=MANY).collect();
    assert_eq!(granted(&client), rest);
    assert_eq!(late.replies(), []);
    assert!(!desk.state().parked.is_in_round());
    let waiting = desk.counts().waiters;
    assert_eq!(waiting, 1);
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_judged_again_and_not_let_in_keeps_its_place() {
    let mut world = block_of(2);
    let client = park_many(&world);
    // Each record makes room for few, over and over, and all come in their order.
    let mut order = Vec::new();
    while order.len() < MANY as usize {
        if let Some((record, _)) = world.desk.record() {
            assert!(world.write(record));
        }
        world.desk.tick();
        order.extend(granted(&client));
    }
    assert!(order.is_sorted(), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn while_old_leases_run_a_record_does_not_judge_those_who_wait_for_their_end() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let holder = peer(&first.desk);
    holder.acquires(&first.desk, 1, &["apple"], 0, 60);
    first.store();
    drop(first);
    let mut world = World::start(&disk.after_process_end());
    let client = peer(&world.desk);
    for id in 1..=MANY {
        client.acquires(&world.desk, id, &[&format!("key-{id}")], 200, 100);
    }
    let (record, _) = world.desk.record().unwrap();
    assert!(world.write(record));
    assert!(!world.desk.state().parked.is_in_round());
    assert_eq!(client.replies(), []);
    world.pass(Duration::from_secs(64)).await;
    assert_eq!(granted(&client).len(), AT_ONCE);
    world.desk.tick();
    world.desk.tick();
    assert_eq!(granted(&client).len(), MANY as usize - AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn many_whose_wait_is_over_are_answered_in_portions() {
    let world = block_of(1_000);
    let client = park_many(&world);
    world.pass(Duration::from_secs(200)).await;
    assert_eq!(client.replies().len(), AT_ONCE);
    let now = world.desk.clock.timestamp();
    assert!(world.desk.state().next_deadline().unwrap() <= now);
    world.desk.tick();
    world.desk.tick();
    assert_eq!(client.replies().len(), MANY as usize - AT_ONCE);
}

/// The counts, against counting.
#[test]
fn the_counts_of_what_is_parked_are_right() {
    let mut parked = Parked::default();
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % bound
    };
    let mut here: BTreeMap<WaiterId, Operation> = BTreeMap::new();
    for request in 1..3_000 {
        let connection = ConnectionId::new(below(4));
        let id = WaiterId::new(connection, RequestId::new(request));
        let until = Timestamp::from_micros(below(50) + request);
        let key = Key::new(format!("{}", below(3))).unwrap();
        let operation = match below(3) {
            0 => Operation::Release {
                keys: key.into(),
                token: FencingToken::MIN,
                minimum_hold: Duration::from_secs(1),
            },
            _ => Operation::Acquire {
                waiter: id,
                keys: key.into(),
                wait: Duration::from_secs(1),
                lease: Duration::from_secs(1),
            },
        };
        here.insert(id, operation.clone());
        let entry = |operation| Entry {
            waiter: id,
            operation,
            until,
        };
        parked.push(None, entry(operation));
        match below(6) {
            0 => {
                if let Some(entry) = parked.take_due(Timestamp::from_micros(request)) {
                    here.remove(&entry.waiter);
                }
            }
            1 => parked.begin_round(),
            2 => {
                if let Some((place, entry)) = parked.take_next(below(2) == 0) {
                    parked.push(Some(place), entry);
                }
            }
            3 if below(20) == 0 => {
                parked.remove_connection(connection);
                here.retain(|id, _| id.connection != connection);
            }
            4 if parked.take_acquire(id).is_some() => {
                here.remove(&id);
            }
            _ => {}
        }
        assert_eq!(parked.len(), here.len());
        for connection in (0..4).map(ConnectionId::new) {
            let count = here.keys().filter(|id| id.connection == connection);
            assert_eq!(parked.of_connection(connection), count.count());
        }
        for key in ["0", "1", "2"].map(|key| Key::new(key).unwrap()) {
            let count = here.values().filter(|what| acquired(what).contains(&key));
            assert_eq!(parked.most_for(std::slice::from_ref(&key)), count.count());
        }
    }
}
