//! What a crash costs: only a lease that is given, or waits to be, is waited for after it.

use super::durable::World;
use super::*;
use crate::readiness::Readiness;
use crate::storage::AfterRestart;
use crate::storage::tests::ModelDisk;

const HOUR: u32 = 3_600_000;

fn keys(names: &[&str]) -> KeySet {
    KeySet::new(names.iter().map(|name| Key::new(name).unwrap())).unwrap()
}

fn timed(id: u64, names: &[&str], wait: u32, lease: u32) -> Request {
    Request::AcquireTimed {
        id: number(id),
        keys: keys(names),
        wait: SpanMillis::new(wait).unwrap(),
        lease: LeaseMillis::new(lease).unwrap(),
    }
}

fn slot(id: u64, name: &str, slots: u32) -> Request {
    Request::AcquireSlot {
        id: number(id),
        name: Key::new(name).unwrap(),
        slots: NonZeroU32::new(slots).unwrap(),
        wait: SpanMillis::new(10_000).unwrap(),
        lease: LeaseMillis::new(HOUR).unwrap(),
    }
}

/// Everything that is refused with an hour in it, whatever refuses it.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_waited_for_after_a_crash() {
    let limits = Limits {
        keys: 4,
        waiters_per_key: 1,
        ..Limits::default()
    };
    let disk = ModelDisk::new();
    let mut world = World::start_with(&disk, AfterRestart::default(), 100, limits);
    let (holder, waiter, asker) = (peer(&world.desk), peer(&world.desk), peer(&world.desk));
    holder.acquires(&world.desk, 1, &["apple"], 0, 5);
    let stored = world.store().unwrap();
    assert_eq!(stored.horizon, Duration::from_secs(5));
    let [Reply::Granted { token, .. }] = holder.replies()[..] else {
        panic!("not granted");
    };
    waiter.acquires(&world.desk, 1, &["apple"], 200, 5);

    let lease = LeaseMillis::new(HOUR).unwrap();
    let minimum = SpanMillis::new(HOUR).unwrap();
    let other = FencingToken::new(token.get() + 1).unwrap();
    let extend = |id, names, token| Request::Extend {
        id: number(id),
        keys: keys(names),
        token,
        lease,
    };
    let retain = |id, names, token| Request::Retain {
        id: number(id),
        keys: keys(names),
        token,
        minimum,
    };
    let refused = [
        timed(1, &["apple"], 0, HOUR),
        timed(2, &["apple"], 10_000, HOUR),
        timed(3, &["a", "b", "c", "d"], 10_000, HOUR),
        slot(4, "apple", 2),
        slot(5, "group", 5_000),
        extend(6, &["apple"], other),
        extend(7, &["apple", "pear"], token),
        retain(8, &["apple"], other),
        retain(9, &["apple", "pear"], token),
    ];
    for request in refused {
        asker.asks(&world.desk, request.clone());
        let replies = asker.replies();
        assert_eq!(replies.len(), 1, "{request:?} waits: {replies:?}");
        let took = matches!(
            replies[0],
            Reply::GrantedTimed { .. }
                | Reply::GrantedSlot { .. }
                | Reply::Extended { .. }
                | Reply::Retained { .. }
        );
        assert!(!took, "{request:?}: {replies:?}");
        assert_eq!(world.desk.record(), None, "{request:?}");
    }

    // Nor does it count while nothing is granted.
    let disk = disk.after_process_end();
    let world = World::start(&disk);
    let asker = peer(&world.desk);
    for request in [
        timed(1, &["apple"], 0, HOUR),
        timed(2, &["apple"], 1_000, HOUR),
        slot(3, "group", 5_000),
    ] {
        asker.asks(&world.desk, request.clone());
        assert_eq!(asker.replies().len(), 1, "{request:?}");
        assert_eq!(world.desk.record(), None, "{request:?}");
    }
    let world = World::start(&disk.after_process_end());
    let remaining = Duration::from_secs(5);
    assert_eq!(world.desk.readiness(), Readiness::OldLeases { remaining });
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_to_wait_for_the_disk_is_not_stored() {
    let limits = Limits {
        waiters: 1,
        ..Limits::default()
    };
    let mut world = World::start_with(&ModelDisk::new(), AfterRestart::default(), 100, limits);
    let client = peer(&world.desk);
    client.asks(&world.desk, timed(1, &["apple"], 10_000, 5_000));
    client.asks(&world.desk, timed(2, &["pear"], 10_000, HOUR));
    assert_eq!(client.replies(), [Reply::Busy { id: number(2) }]);
    assert_eq!(world.store().unwrap().horizon, Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn rounding_stores_nothing_longer_than_the_limit() {
    let limits = Limits {
        lease: Duration::from_secs(33),
        minimum_hold: Duration::from_millis(41_500),
        ..Limits::default()
    };
    let mut world = World::start_with(&ModelDisk::new(), AfterRestart::default(), 100, limits);
    let client = peer(&world.desk);
    client.asks(&world.desk, timed(1, &["apple"], 0, 33_000));
    assert_eq!(world.store().unwrap().horizon, Duration::from_secs(33));
    let [Reply::GrantedTimed { token, .. }] = client.replies()[..] else {
        panic!("not granted");
    };
    let retain = |id| Request::Retain {
        id: number(id),
        keys: keys(&["apple"]),
        token,
        minimum: SpanMillis::new(41_500).unwrap(),
    };
    client.asks(&world.desk, retain(2));
    let stored = world.store().unwrap();
    assert_eq!(stored.horizon, Duration::from_millis(41_500));
    assert_eq!(client.replies(), [Reply::Retained { id: number(2) }]);
}

/// What is stored for old leases covers a new one, and may not be forgotten with them.
#[tokio::test(start_paused = true)]
async fn a_lease_that_only_old_leases_covered_is_still_waited_for() {
    let disk = ModelDisk::new();
    let policy = AfterRestart::TrustFencing;
    let start = |disk| World::start_with(disk, policy, 4, Limits::default());
    let mut first = start(&disk);
    let holder = peer(&first.desk);
    holder.acquires(&first.desk, 1, &["apple"], 0, 60);
    first.store();
    drop(first);
    let disk = disk.after_process_end();
    let mut world = start(&disk);
    let holder = peer(&world.desk);
    world.pass(Duration::from_secs(59)).await;
    holder.acquires(&world.desk, 1, &["apple"], 0, 50);
    assert_eq!(holder.replies().len(), 1, "it is covered");
    holder.acquires(&world.desk, 2, &["pear"], 0, 1);
    holder.acquires(&world.desk, 3, &["plum"], 0, 1);
    world.pass(Duration::from_secs(10)).await;
    let stored = world.store().unwrap();
    assert!(stored.horizon >= Duration::from_secs(50), "{stored:?}");
    assert!(stored.horizon < Duration::from_secs(60), "{stored:?}");
}
