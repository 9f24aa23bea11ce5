//! What happens between the moment a lease ends and the tick that sees it.
//!
//! No timekeeper runs here, so that moment lasts for as long as a test likes.

use highwater_lock::{Key, KeySet};
use highwater_protocol::{LeaseSeconds, ReplyDecoder};
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
    Desk::new(domain, FencingToken::MIN, Limits::default())
}

fn peer(desk: &Desk) -> Peer {
    let outbox = Arc::new(Outbox::new(64 * 1024));
    Peer {
        connection: desk.connect(Arc::clone(&outbox)),
        outbox,
    }
}

impl Peer {
    fn acquires(&self, desk: &Desk, id: u64, keys: &[&str], wait_seconds: u8, lease: u8) {
        let keys = keys.iter().map(|key| Key::new(key).unwrap());
        let request = Request::Acquire {
            id: RequestNumber::new(id).unwrap(),
            keys: KeySet::new(keys).unwrap(),
            wait_seconds,
            lease: LeaseSeconds::new(lease).unwrap(),
        };
        desk.submit(self.connection, Incoming::Valid(request))
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
