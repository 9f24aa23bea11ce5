//! What clients see while the desk waits for the disk, for old leases, or for nothing any more.

use super::*;
use crate::readiness::Readiness;
use crate::storage::tests::{Fault, ModelDisk};
use crate::storage::{AfterRestart, Record, Start, Store, WriteError};

/// A durable desk, and a disk that is written only when the test says so.
pub(super) struct World {
    pub(super) desk: Desk,
    pub(super) store: Store<ModelDisk>,
    pub(super) first_token: u64,
}

pub(super) const DOMAIN: [u8; 32] = [7; 32];

impl World {
    pub(super) fn start(disk: &ModelDisk) -> Self {
        Self::start_with(
            disk,
            AfterRestart::WaitForOldLeases,
            1_000,
            Limits::default(),
        )
    }

    pub(super) fn start_with(
        disk: &ModelDisk,
        after_restart: AfterRestart,
        block: u64,
        limits: Limits,
    ) -> Self {
        Self::try_start(disk, after_restart, block, limits).unwrap()
    }

    pub(super) fn try_start(
        disk: &ModelDisk,
        after_restart: AfterRestart,
        block: u64,
        limits: Limits,
    ) -> Result<Self, crate::StorageError> {
        let (mut store, found) = Store::open(disk.clone())?;
        let new = || Ok((Domain::from_bytes(DOMAIN), FencingToken::new(100).unwrap()));
        let start: Result<Start, crate::StorageError> =
            Start::new(found, new, None, after_restart, block);
        let start = start?;
        let reserve = Reserve::begin(start, &mut store)?;
        let folder = Arc::new(tempfile::tempfile().unwrap());
        let durable = Some((reserve, folder));
        Ok(Self {
            desk: Desk::new(
                start.domain,
                start.first_token,
                limits,
                durable,
                HashSeed::default(),
            ),
            store,
            first_token: start.first_token.get(),
        })
    }

    /// Writes everything that the desk wants written; the last record written.
    pub(super) fn store(&mut self) -> Option<Record> {
        let mut written = None;
        for _ in 0..100 {
            let Some((record, last)) = self.desk.record() else {
                return written;
            };
            written = Some(record);
            if !self.write(record) || last {
                return written;
            }
        }
        panic!("there is always something more to write");
    }

    /// Writes a record, tells the desk, and says whether it was durable.
    pub(super) fn write(&mut self, record: Record) -> bool {
        let result = self.store.commit(&record).map(|()| self.store.syncs());
        let is_durable = result.is_ok();
        let result = result.map_err(WriteError::Storage);
        self.desk.stored(record, result);
        is_durable
    }

    pub(super) async fn pass(&self, time: Duration) {
        advance(time).await;
        self.desk.tick();
    }
}

impl Peer {
    pub(super) fn releases(&self, desk: &Desk, id: u64, key: &str, token: u64) {
        let request = Request::Release {
            id: number(id),
            keys: KeySet::from(Key::new(key).unwrap()),
            token: FencingToken::new(token).unwrap(),
        };
        self.asks(desk, request);
    }

    pub(super) fn extends(&self, desk: &Desk, id: u64, key: &str, token: u64, millis: u32) {
        let request = Request::Extend {
            id: number(id),
            keys: KeySet::from(Key::new(key).unwrap()),
            token: FencingToken::new(token).unwrap(),
            lease: LeaseMillis::new(millis).unwrap(),
        };
        self.asks(desk, request);
    }

    /// The token of the one reply there is, which has to be this grant.
    #[track_caller]
    fn is_granted(&self, granted: u64) -> u64 {
        let replies = self.replies();
        match replies[..] {
            [Reply::Granted { id, token, .. }] if id.get() == granted => token.get(),
            _ => panic!("{granted} is not granted: {replies:?}"),
        }
    }

    /// Takes a free key; whatever has to be stored for it is stored.
    fn takes(&self, world: &mut World, id: u64, key: &str, lease: u8) -> u64 {
        self.acquires(&world.desk, id, &[key], 0, lease);
        world.store();
        self.is_granted(id)
    }
}

fn not_active(id: u64) -> Reply {
    Reply::Error {
        id: number(id),
        code: ErrorCode::NotActive,
    }
}

fn timed_out(id: u64) -> Reply {
    Reply::TimedOut { id: number(id) }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_nothing_is_granted_until_the_longest_lease_is_over() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let holder = peer(&first.desk);
    let short = holder.takes(&mut first, 1, "pear", 5);
    let long = holder.takes(&mut first, 2, "apple", 32);
    drop(first);

    let world = World::start(&disk.after_process_end());
    assert_eq!(
        world.desk.readiness(),
        Readiness::OldLeases {
            remaining: seconds(32)
        }
    );
    let client = peer(&world.desk);
    // Which keys are held is not known, so this concerns all of them.
    client.acquires(&world.desk, 1, &["plum"], 0, 5);
    client.acquires(&world.desk, 2, &["plum"], 30, 5);
    assert_eq!(client.replies(), [not_active(1), not_active(2)]);
    client.acquires(&world.desk, 3, &["plum"], 40, 5);
    client.acquires(&world.desk, 4, &["apple"], 40, 5);
    // The locks are not kept.
    client.releases(&world.desk, 5, "apple", long);
    assert_eq!(client.replies(), [Reply::NotHeld { id: number(5) }]);

    world.pass(seconds(32) - Duration::from_micros(1)).await;
    assert_eq!(client.replies(), []);
    world.pass(Duration::from_micros(1)).await;
    let granted = client.replies();
    let tokens: Vec<u64> = granted
        .iter()
        .map(|reply| match reply {
            Reply::Granted { token, .. } => token.get(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tokens, [world.first_token, world.first_token + 1]);
    assert!(world.first_token > long.max(short));
    assert_eq!(world.desk.readiness(), Readiness::Ready);
    client.acquires(&world.desk, 6, &["cherry"], 0, 5);
    client.is_granted(6);
}

#[tokio::test(start_paused = true)]
async fn the_timekeeper_knows_when_old_leases_end() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    peer(&first.desk).takes(&mut first, 1, "apple", 30);
    let world = World::start(&disk.after_process_end());
    let desk = Arc::new(world.desk);
    let waiter = peer(&desk);
    waiter.acquires(&desk, 1, &["apple"], 250, 5);
    let keeper = Arc::clone(&desk);
    let keeper = tokio::spawn(async move { keeper.keep_time().await });
    tokio::time::sleep(seconds(33)).await;
    waiter.is_granted(1);
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn who_trusts_fencing_does_not_wait_after_a_crash() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let old = peer(&first.desk).takes(&mut first, 1, "apple", 30);
    let disk = disk.after_process_end();
    let policy = AfterRestart::TrustFencing;
    let mut world = World::start_with(&disk, policy, 1_000, Limits::default());
    assert_eq!(world.desk.readiness(), Readiness::Ready);
    let new = peer(&world.desk).takes(&mut world, 1, "apple", 30);
    assert!(new > old);
}

#[tokio::test(start_paused = true)]
async fn after_an_orderly_end_only_what_remains_is_waited_for() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let holder = peer(&first.desk);
    let apple = holder.takes(&mut first, 1, "apple", 100);
    let pear = holder.takes(&mut first, 2, "pear", 30);
    first.pass(seconds(20)).await;
    first.desk.drain();
    holder.releases(&first.desk, 3, "apple", apple);
    first.desk.seal();
    // The end is being stored: it must stay true.
    holder.extends(&first.desk, 4, "pear", pear, 60_000);
    holder.acquires(&first.desk, 5, &["apple"], 0, 60);
    assert_eq!(holder.replies()[1..], [not_active(4), not_active(5)]);
    let key = Key::new("plum").unwrap();
    assert_eq!(
        first.desk.force_release(key),
        Err(NotForced::NoToken),
        "it would come again"
    );
    let last = first.store().unwrap();
    assert_eq!(last.horizon, seconds(10));
    assert_eq!(last.bound.get(), pear + 1);
    drop(first);

    let disk = disk.after_process_end();
    let mut world = World::start(&disk);
    assert_eq!(world.first_token, pear + 1, "no token is lost");
    let remaining = seconds(10);
    assert_eq!(world.desk.readiness(), Readiness::OldLeases { remaining });
    world.pass(seconds(4)).await;
    // Ended again in the middle of that, once so and once so.
    let crashed = World::start(&disk.after_process_end());
    assert_eq!(crashed.desk.readiness(), Readiness::OldLeases { remaining });
    world.desk.drain();
    world.desk.seal();
    assert_eq!(world.store().unwrap().horizon, seconds(6));
}

#[tokio::test(start_paused = true)]
async fn after_an_orderly_end_with_nothing_held_nothing_is_waited_for() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let holder = peer(&first.desk);
    let token = holder.takes(&mut first, 1, "apple", 100);
    holder.releases(&first.desk, 2, "apple", token);
    first.desk.drain();
    first.desk.seal();
    first.store();
    let mut world = World::start(&disk.after_process_end());
    assert_eq!(world.desk.readiness(), Readiness::Ready);
    let next = peer(&world.desk).takes(&mut world, 1, "apple", 100);
    assert_eq!(next, token + 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_longer_than_any_before_waits_for_the_disk_and_nobody_else_does() {
    let mut world = World::start(&ModelDisk::new());
    let (one, two) = (peer(&world.desk), peer(&world.desk));
    one.takes(&mut world, 1, "cherry", 5);
    one.acquires(&world.desk, 2, &["apple"], 10, 60);
    assert_eq!(one.replies(), [], "60 s are not stored yet");
    two.acquires(&world.desk, 1, &["pear"], 0, 5);
    let pear = two.is_granted(1);
    // Behind the one that waits for the disk, in the order of arrival.
    two.acquires(&world.desk, 2, &["apple"], 10, 5);
    two.acquires(&world.desk, 3, &["apple"], 0, 5);
    assert_eq!(two.replies(), [timed_out(3)]);
    assert_eq!(world.desk.counts().waiters, 2);
    two.extends(&world.desk, 4, "pear", pear, 60_000);
    assert_eq!(two.replies(), []);

    world.store();
    let apple = one.is_granted(2);
    let extended = two.replies();
    let [Reply::Extended { remaining_ms, .. }] = extended[..] else {
        panic!("{extended:?}");
    };
    assert_eq!(remaining_ms, 60_000);
    one.releases(&world.desk, 3, "apple", apple);
    two.is_granted(2);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_slow_disk_is_answered_in_time() {
    let mut world = World::start(&ModelDisk::new());
    let client = peer(&world.desk);
    let token = client.takes(&mut world, 1, "apple", 5);
    client.acquires(&world.desk, 2, &["pear"], 0, 60);
    client.acquires(&world.desk, 3, &["plum"], 4, 60);
    client.extends(&world.desk, 4, "apple", token, 60_000);
    world.pass(Duration::from_millis(999)).await;
    assert_eq!(client.replies(), []);
    world.pass(Duration::from_millis(1)).await;
    assert_eq!(client.replies(), [not_active(2), not_active(4)]);
    world.pass(seconds(3)).await;
    assert_eq!(client.replies(), [timed_out(3)]);
    // It comes too late for them, and for nobody else.
    world.store();
    assert_eq!(client.replies(), []);
    client.acquires(&world.desk, 5, &["pear"], 0, 60);
    client.is_granted(5);
}

#[tokio::test(start_paused = true)]
async fn no_token_is_given_out_that_is_not_reserved_and_every_waiter_has_one() {
    let disk = ModelDisk::new();
    let policy = AfterRestart::default();
    let mut world = World::start_with(&disk, policy, 4, Limits::default());
    let client = peer(&world.desk);
    let first = client.takes(&mut world, 1, "apple", 60);
    for id in 2..=4 {
        client.acquires(&world.desk, id, &["apple"], 100, 60);
    }
    assert_eq!(client.replies(), []);
    // All four tokens are spoken for: a free key has to wait for the next block.
    client.acquires(&world.desk, 5, &["pear"], 100, 60);
    client.acquires(&world.desk, 6, &["plum"], 0, 60);
    assert_eq!(client.replies(), []);
    for (id, token) in [(2, first), (3, first + 1), (4, first + 2)] {
        client.releases(&world.desk, 10 + id, "apple", token);
        let replies = client.replies();
        assert!(
            matches!(replies[..], [Reply::Granted { .. }, Reply::Released { .. }]),
            "{replies:?}"
        );
    }
    let on_disk = Store::open(disk.after_process_end()).unwrap().1.unwrap();
    assert_eq!(
        on_disk.bound.get(),
        first + 4,
        "nothing was written for that"
    );
    client.releases(&world.desk, 20, "apple", first + 3);
    assert_eq!(client.replies().len(), 1);

    world.store();
    let granted = client.replies();
    let tokens: Vec<(u64, u64)> = granted
        .iter()
        .map(|reply| match reply {
            Reply::Granted { id, token, .. } => (id.get(), token.get()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tokens, [(5, first + 4), (6, first + 5)]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_ends_all_granting_and_nothing_else() {
    for operation in 0..5 {
        let disk = ModelDisk::new();
        let mut world = World::start(&disk);
        let (holder, waiter) = (peer(&world.desk), peer(&world.desk));
        let apple = holder.takes(&mut world, 1, "apple", 60);
        let pear = holder.takes(&mut world, 2, "pear", 30);
        waiter.acquires(&world.desk, 1, &["apple"], 100, 30);
        waiter.acquires(&world.desk, 2, &["plum"], 100, 200);
        disk.fail_at(operation, Fault::Refused);
        world.store();
        assert_eq!(world.desk.readiness(), Readiness::StorageFailed);
        let told = waiter.replies();
        assert_eq!(told, [not_active(1), not_active(2)], "{operation}");

        waiter.acquires(&world.desk, 3, &["cherry"], 100, 30);
        waiter.acquires(&world.desk, 4, &["cherry"], 0, 30);
        assert_eq!(waiter.replies(), [not_active(3), not_active(4)]);
        holder.extends(&world.desk, 3, "pear", pear, 50_000);
        holder.extends(&world.desk, 4, "pear", pear, 300_000);
        holder.releases(&world.desk, 5, "apple", apple);
        let replies = holder.replies();
        assert!(matches!(replies[0], Reply::Extended { .. }), "{replies:?}");
        assert_eq!(replies[1], not_active(4));
        assert!(matches!(replies[2], Reply::Released { .. }), "{replies:?}");
        assert_eq!(waiter.replies(), [], "nobody gets it");
        // It is not tried again, and an orderly end cannot make it good.
        world.desk.seal();
        assert!(world.desk.record().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_parked_can_cancel_and_leave() {
    let mut world = World::start(&ModelDisk::new());
    let (one, two) = (peer(&world.desk), peer(&world.desk));
    one.acquires(&world.desk, 1, &["apple"], 10, 60);
    two.acquires(&world.desk, 1, &["apple"], 10, 60);
    let again = Request::Domain { id: number(1) };
    let in_use = world.desk.submit(one.connection, [Incoming::Valid(again)]);
    assert!(in_use.is_err(), "the id is in use until it is answered");
    let cancel = Request::Cancel {
        id: number(2),
        acquire: number(1),
    };
    one.asks(&world.desk, cancel);
    let cancelled = Reply::Cancelled {
        id: number(2),
        was_queued: true,
    };
    assert_eq!(one.replies(), [timed_out(1), cancelled]);
    one.acquires(&world.desk, 1, &["apple"], 10, 60);
    world.desk.disconnect(two.connection, Vec::new());
    assert_eq!(world.desk.counts().waiters, 1);
    world.store();
    one.is_granted(1);
    assert_eq!(world.desk.counts().held_keys, 1);
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_queues_hold_for_what_is_parked() {
    let limits = Limits {
        waiters: 5,
        waiters_per_key: 2,
        waiters_per_connection: 3,
        ..Limits::default()
    };
    let disk = ModelDisk::new();
    let world = World::start_with(&disk, AfterRestart::default(), 100, limits);
    let (one, two) = (peer(&world.desk), peer(&world.desk));
    let busy = |id| Reply::Busy { id: number(id) };
    for (id, key) in [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c")] {
        one.acquires(&world.desk, id, &[key], 10, 60);
    }
    assert_eq!(one.replies(), [busy(3), busy(5)]);
    for (id, key) in [(1, "d"), (2, "e"), (3, "f")] {
        two.acquires(&world.desk, id, &[key], 10, 60);
    }
    assert_eq!(two.replies(), [busy(3)]);
}

#[tokio::test(start_paused = true)]
async fn draining_answers_who_is_parked() {
    let world = World::start(&ModelDisk::new());
    let client = peer(&world.desk);
    client.acquires(&world.desk, 1, &["apple"], 10, 60);
    world.desk.drain();
    assert_eq!(client.replies(), [not_active(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_lease_is_not_remembered() {
    let disk = ModelDisk::new();
    let limits = Limits {
        lease: seconds(10),
        ..Limits::default()
    };
    let mut world = World::start_with(&disk, AfterRestart::default(), 100, limits);
    let client = peer(&world.desk);
    client.acquires(&world.desk, 1, &["apple"], 0, 60);
    let replies = client.replies();
    assert!(matches!(replies[..], [Reply::Error { .. }]), "{replies:?}");
    assert_eq!(world.store(), None);
}

fn retain(id: u64, key: &str, token: u64, minimum: u32) -> Request {
    Request::Retain {
        id: number(id),
        keys: KeySet::from(Key::new(key).unwrap()),
        token: FencingToken::new(token).unwrap(),
        minimum: SpanMillis::new(minimum).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_is_waited_for_after_a_crash_like_a_lease() {
    let disk = ModelDisk::new();
    let mut first = World::start(&disk);
    let holder = peer(&first.desk);
    let token = holder.takes(&mut first, 1, "apple", 5);
    holder.asks(&first.desk, retain(2, "apple", token, 60_000));
    assert_eq!(holder.replies(), [], "60 s are not stored yet");
    first.store();
    assert_eq!(holder.replies(), [Reply::Retained { id: number(2) }]);
    let after_crash = World::start(&disk.after_process_end());
    let remaining = seconds(64);
    assert_eq!(
        after_crash.desk.readiness(),
        Readiness::OldLeases { remaining }
    );
    first.desk.drain();
    first.desk.seal();
    assert_eq!(first.store().unwrap().horizon, seconds(60));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_given_back_even_if_its_minimum_hold_cannot_be_stored() {
    for fails in [true, false] {
        let disk = ModelDisk::new();
        let mut world = World::start(&disk);
        let holder = peer(&world.desk);
        let apple = holder.takes(&mut world, 1, "apple", 5);
        let pear = holder.takes(&mut world, 2, "pear", 5);
        holder.asks(&world.desk, retain(3, "apple", apple, 60_000));
        if fails {
            disk.fail_at(0, Fault::Refused);
            world.store();
            holder.asks(&world.desk, retain(4, "pear", pear, 60_000));
        } else {
            holder.asks(&world.desk, retain(4, "pear", pear, 60_000));
            world.pass(seconds(1)).await;
        }
        let retained = |id| Reply::Retained { id: number(id) };
        assert_eq!(holder.replies(), [retained(3), retained(4)], "{fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_request_was_parked_counts_as_waited() {
    let mut world = World::start(&ModelDisk::new());
    let client = peer(&world.desk);
    let request = Request::AcquireTimed {
        id: number(1),
        keys: KeySet::from(Key::new("apple").unwrap()),
        wait: SpanMillis::new(10_000).unwrap(),
        lease: LeaseMillis::new(30_000).unwrap(),
    };
    client.asks(&world.desk, request);
    world.pass(Duration::from_millis(700)).await;
    world.store();
    let replies = client.replies();
    let [Reply::GrantedTimed { waited_ms, .. }] = replies[..] else {
        panic!("{replies:?}");
    };
    assert_eq!(waited_ms, 700);
}

#[tokio::test(start_paused = true)]
async fn a_force_release_burns_no_token_that_is_not_reserved_or_set_aside() {
    let disk = ModelDisk::new();
    let policy = AfterRestart::default();
    let mut world = World::start_with(&disk, policy, 2, Limits::default());
    let (holder, waiter) = (peer(&world.desk), peer(&world.desk));
    let first = holder.takes(&mut world, 1, "apple", 60);
    waiter.acquires(&world.desk, 1, &["apple"], 100, 60);
    let key = || Key::new("apple").unwrap();
    assert_eq!(world.desk.force_release(key()), Err(NotForced::NoToken));
    assert_eq!(waiter.replies(), []);
    world.store();
    let forced = world.desk.force_release(key()).unwrap();
    assert_eq!(forced.burned.get(), first + 1);
    assert_eq!(waiter.is_granted(1), first + 2);
}
