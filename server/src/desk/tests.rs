//! What happens between the moment a lease ends and the tick that sees it.
//!
//! No timekeeper runs here, so that moment lasts for as long as a test likes.

mod announced;
mod durable;
mod portions;
mod promised;
mod simulation;
mod undecided;

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_lock::{Key, KeySet};
use highwater_protocol::{
    KeyState, KeyStatus, LeaseMillis, LeaseSeconds, ReplyDecoder, Request, SpanMillis,
};
use tokio::time::advance;

use super::*;

impl Desk {
    /// As if an invariant did not hold.
    pub(crate) fn break_for_test(&self) {
        let _state = self.state();
        panic!("broken on purpose");
    }
}

struct Peer {
    connection: ConnectionId,
    outbox: Arc<Outbox>,
}

fn desk() -> Desk {
    let domain = Domain::from_bytes([7; 32]);
    Desk::new(
        domain,
        FencingToken::MIN,
        Limits::default(),
        None,
        HashSeed::default(),
    )
}

fn peer(desk: &Desk) -> Peer {
    let outbox = Arc::new(Outbox::new(64 * 1024));
    Peer {
        connection: desk.connect(Arc::clone(&outbox)),
        outbox,
    }
}

fn number(id: u64) -> RequestNumber {
    RequestNumber::new(id).unwrap()
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl Peer {
    fn acquires(&self, desk: &Desk, id: u64, keys: &[&str], wait_seconds: u8, lease: u8) {
        let keys = keys.iter().map(|key| Key::new(key).unwrap());
        let request = Request::Acquire {
            id: number(id),
            keys: KeySet::new(keys).unwrap(),
            wait_seconds,
            lease: LeaseSeconds::new(lease).unwrap(),
        };
        self.asks(desk, request);
    }

    fn asks(&self, desk: &Desk, request: Request) {
        desk.submit(self.connection, [Incoming::Valid(request)])
            .unwrap();
    }

    fn replies(&self) -> Vec<Reply> {
        let batch = self.outbox.take().unwrap();
        let mut bytes = batch.bytes.as_slice();
        let mut decoder = ReplyDecoder::new();
        std::iter::from_fn(|| decoder.next(&mut bytes).unwrap()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_as_its_turn_comes_takes_nothing_with_it() {
    let desk = desk();
    let (holder, waiter, next) = (peer(&desk), peer(&desk), peer(&desk));
    holder.acquires(&desk, 1, &["apple"], 0, 1);
    waiter.acquires(&desk, 1, &["apple"], 60, 60);
    next.acquires(&desk, 1, &["apple"], 60, 60);

    advance(Duration::from_secs(2)).await;
    desk.disconnect(waiter.connection, Vec::new());

    let granted = next.replies();
    assert!(
        matches!(granted[..], [Reply::Granted { .. }]),
        "{granted:?}"
    );
    let counts = desk.counts();
    assert_eq!((counts.held_keys, counts.waiters), (1, 0));
    assert_eq!(counts.connections, 2);
}

#[tokio::test(start_paused = true)]
async fn draining_grants_nothing_by_removing_those_before() {
    let desk = desk();
    let (holder, first, second) = (peer(&desk), peer(&desk), peer(&desk));
    holder.acquires(&desk, 1, &["apple"], 0, 60);
    first.acquires(&desk, 2, &["apple", "pear"], 60, 60);
    second.acquires(&desk, 3, &["pear"], 60, 60);

    desk.drain();

    for (peer, id) in [(&first, 2), (&second, 3)] {
        let told = Reply::Error {
            id: RequestNumber::new(id).unwrap(),
            code: ErrorCode::NotActive,
        };
        assert_eq!(peer.replies(), [told]);
    }
    assert_eq!((desk.counts().held_keys, desk.counts().waiters), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn draining_grants_nothing_that_a_lease_leaves_just_then() {
    let desk = desk();
    let (holder, waiter) = (peer(&desk), peer(&desk));
    holder.acquires(&desk, 1, &["apple"], 0, 1);
    waiter.acquires(&desk, 1, &["apple"], 60, 60);

    advance(Duration::from_secs(2)).await;
    desk.drain();

    let told = waiter.replies();
    assert!(matches!(told[..], [Reply::Error { .. }]), "{told:?}");
    assert_eq!(desk.counts().held_keys, 0);
}

/// So that the moment of sending, what is told here, and the lease never add up to more than the
/// lease of the server.
#[tokio::test(start_paused = true)]
async fn the_time_in_the_queue_is_told_in_whole_milliseconds_and_never_too_long() {
    let desk = desk();
    let (holder, waiter) = (peer(&desk), peer(&desk));
    advance(micros(777)).await;
    let lease = LeaseMillis::new(700).unwrap();
    let wait = SpanMillis::new(1_000).unwrap();
    holder.acquires(&desk, 1, &["apple"], 0, 60);
    let keys: KeySet = Key::new("apple").unwrap().into();
    waiter.asks(
        &desk,
        Request::AcquireTimed {
            id: number(1),
            keys,
            wait,
            lease,
        },
    );
    let slots = NonZeroU32::new(1).unwrap();
    for id in [2, 3] {
        advance(micros(100)).await;
        let name = Key::new("group").unwrap();
        waiter.asks(
            &desk,
            Request::AcquireSlot {
                id: number(id),
                name,
                slots,
                wait,
                lease,
            },
        );
    }
    let [
        Reply::GrantedSlot {
            waited_ms: 0,
            token,
            slot: 0,
            ..
        },
    ] = waiter.replies()[..]
    else {
        panic!("the first slot is free");
    };

    // 500 ms and 999 microseconds after the acquire, 799 after the second slot.
    advance(micros(500_799)).await;
    let name: KeySet = Key::new("group").unwrap().into();
    waiter.asks(
        &desk,
        Request::Release {
            id: number(4),
            keys: name,
            token,
        },
    );
    desk.disconnect(holder.connection, holder.outbox.close());

    let mut waited: Vec<_> = waiter
        .replies()
        .into_iter()
        .filter_map(|reply| match reply {
            Reply::GrantedTimed { id, waited_ms, .. } => Some((id.get(), waited_ms)),
            Reply::GrantedSlot { id, waited_ms, .. } => Some((id.get(), waited_ms)),
            _ => None,
        })
        .collect();
    waited.sort_unstable();
    assert_eq!(waited, [(1, 500), (3, 500)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_milliseconds_ends_exactly_then() {
    let (wait, lease) = (SpanMillis::new(20).unwrap(), LeaseMillis::new(1).unwrap());
    let (key, id) = (Key::new("apple").unwrap(), number(1));
    let slots = NonZeroU32::new(1).unwrap();
    let timed = Request::AcquireTimed {
        id,
        keys: key.clone().into(),
        wait,
        lease,
    };
    let slot = |lease| Request::AcquireSlot {
        id,
        name: key.clone(),
        slots,
        wait,
        lease,
    };
    let hour = LeaseMillis::new(LeaseMillis::MAX).unwrap();
    for request in [timed, slot(lease)] {
        let desk = desk();
        let (holder, waiter) = (peer(&desk), peer(&desk));
        match request {
            Request::AcquireSlot { .. } => holder.asks(&desk, slot(hour)),
            _ => holder.acquires(&desk, 1, &["apple"], 0, 60),
        }
        waiter.asks(&desk, request);
        advance(micros(19_999)).await;
        desk.tick();
        assert_eq!(waiter.replies(), []);
        advance(micros(1)).await;
        desk.tick();
        assert_eq!(waiter.replies(), [Reply::TimedOut { id }]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_does_not_tell_of_a_lease_that_is_over() {
    let desk = desk();
    let (holder, other) = (peer(&desk), peer(&desk));
    let query = || Request::Query {
        id: number(9),
        key: Key::new("apple").unwrap(),
        from_slot: 0,
    };
    holder.acquires(&desk, 1, &["apple"], 0, 1);
    advance(micros(999_999)).await;
    other.asks(&desk, query());
    let [Reply::Status { status, .. }] = other.replies()[..] else {
        panic!("no status");
    };
    assert!(
        matches!(
            status.state,
            KeyState::Held {
                remaining_ms: 0,
                ..
            }
        ),
        "{status:?}"
    );
    advance(micros(1)).await;
    other.asks(&desk, query());
    let unused = KeyStatus {
        state: KeyState::Free,
        waiters: 0,
        slots: None,
        taken: 0,
    };
    let told = Reply::Status {
        id: number(9),
        status: unused,
    };
    assert_eq!(other.replies(), [told]);
}

#[tokio::test(start_paused = true)]
async fn grants_that_never_left_are_counted_and_those_that_waited_are_timed() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    one.acquires(&desk, 1, &["apple"], 0, 10);
    two.acquires(&desk, 1, &["apple"], 60, 10);
    assert_eq!(one.replies().len(), 1);
    advance(Duration::from_secs(3)).await;
    let token = desk.lock(&Key::new("apple").unwrap(), 0, 1).unwrap();
    let token = token.holders[0].token;
    let keys = Key::new("apple").unwrap().into();
    let id = RequestNumber::new(2).unwrap();
    let release = Request::Release { id, keys, token };
    desk.submit(one.connection, [Incoming::Valid(release)])
        .unwrap();
    // Its grant waits in the box when it ends.
    desk.disconnect(two.connection, Vec::new());
    let readings = desk.readings();
    assert_eq!(readings.tally.undelivered, 1);
    assert_eq!(
        (readings.tally.granted_at_once, readings.tally.handed_over),
        (1, 1)
    );
    assert_eq!(readings.tally.waited.sum(), 3_000_000);
    assert_eq!((readings.counts.held_keys, readings.holds), (0, 0));
    assert_eq!(readings.uptime, Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_free_for_the_next_one_since_its_lease_ended_and_not_since_that_was_noticed() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    one.acquires(&desk, 1, &["apple"], 0, 2);
    two.acquires(&desk, 1, &["apple"], 60, 10);
    advance(Duration::from_secs(5)).await;
    desk.tick();
    let batch = two.outbox.take().unwrap();
    let [(_, grant)] = &batch.grants[..] else {
        panic!("one grant, not {:?}", batch.grants);
    };
    assert_eq!(grant.handed_over, Some(Timestamp::from_micros(2_000_000)));
    assert_eq!(
        desk.since(grant.handed_over.unwrap()),
        Duration::from_secs(3)
    );
    let batch = one.outbox.take().unwrap();
    assert_eq!(batch.grants[0].1.handed_over, None, "nobody had it before");
}

#[tokio::test(start_paused = true)]
async fn one_look_at_the_names_is_bounded_whatever_is_asked_for() {
    let desk = desk();
    let peer = peer(&desk);
    for id in 1..=2_500 {
        peer.acquires(&desk, id, &[&format!("{id:04}")], 0, 60);
    }
    let mut page = Page::new("", None, usize::MAX);
    assert_eq!(desk.look(0, &mut page), Some(1_000));
    let keys = page.into_keys();
    assert_eq!(keys.len(), 1_000);
    let shown = desk.names(&keys).names;
    assert_eq!((shown.len(), &shown[0].key), (128, &keys[0]));
    let after = Some(Key::new("2400").unwrap());
    let mut page = Page::new("24", after, 3);
    assert_eq!(desk.look(1_000, &mut page), Some(2_000));
    assert_eq!(desk.look(2_000, &mut page), None);
    let names: Vec<String> = page.into_keys().iter().map(Key::to_string).collect();
    assert_eq!(names, ["2401", "2402", "2403"]);
}
