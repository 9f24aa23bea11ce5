//! Requests that come together, and when a connection is woken to look into its box.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

/// Whether something in the box was announced since the last time.
fn announced(peer: &Peer) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(peer.outbox.filled()).poll(&mut context).is_ready()
}

fn release(id: u64, key: &str, token: FencingToken) -> Incoming {
    let keys = Key::new(key).unwrap().into();
    Incoming::Valid(Request::Release {
        id: number(id),
        keys,
        token,
    })
}

fn tokens(peer: &Peer) -> Vec<FencingToken> {
    let replies = peer.replies();
    let tokens = replies.iter().filter_map(|reply| match reply {
        Reply::Granted { token, .. } => Some(*token),
        _ => None,
    });
    tokens.collect()
}

#[tokio::test(start_paused = true)]
async fn who_asks_looks_by_itself_and_others_are_woken() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    one.acquires(&desk, 1, &["apple"], 0, 60);
    assert!(!announced(&one));
    let [token] = tokens(&one)[..] else {
        panic!("not granted");
    };
    two.acquires(&desk, 1, &["apple"], 10, 60);
    assert!(!announced(&two), "nothing came");
    desk.submit(one.connection, [release(2, "apple", token)])
        .unwrap();
    assert!(!announced(&one));
    assert!(announced(&two));
    assert_eq!(tokens(&two).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_decided_together_is_announced_once_and_what_comes_later_again() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    for (id, key) in [(1, "apple"), (2, "pear"), (3, "plum")] {
        one.acquires(&desk, id, &[key], 0, 60);
        two.acquires(&desk, id, &[key], 10, 60);
    }
    let [apple, pear, plum] = tokens(&one)[..] else {
        panic!("not granted");
    };
    let both = [release(4, "apple", apple), release(5, "pear", pear)];
    desk.submit(one.connection, both).unwrap();
    assert!(announced(&two));
    assert!(!announced(&two), "one look finds both");
    assert_eq!(tokens(&two).len(), 2);
    // Having looked, it is told again.
    desk.submit(one.connection, [release(6, "plum", plum)])
        .unwrap();
    assert!(announced(&two));
    assert_eq!(tokens(&two).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_box_that_runs_over_is_announced_although_it_was_not_emptied() {
    let desk = desk();
    let outbox = Arc::new(Outbox::new(24));
    let slow = Peer {
        connection: desk.connect(Arc::clone(&outbox)),
        outbox,
    };
    let other = peer(&desk);
    for (id, key) in [(1, "apple"), (2, "pear")] {
        other.acquires(&desk, id, &[key], 0, 60);
        slow.acquires(&desk, id, &[key], 10, 60);
    }
    let [apple, pear] = tokens(&other)[..] else {
        panic!("not granted");
    };
    desk.submit(other.connection, [release(3, "apple", apple)])
        .unwrap();
    assert!(announced(&slow));
    // It does not look, because its peer takes nothing.
    desk.submit(other.connection, [release(4, "pear", pear)])
        .unwrap();
    assert!(announced(&slow));
    assert!(slow.outbox.take().is_err());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_the_wait_is_over() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    one.acquires(&desk, 1, &["apple"], 0, 60);
    two.acquires(&desk, 1, &["apple"], 1, 60);
    advance(Duration::from_secs(2)).await;
    desk.tick();
    assert!(announced(&two));
    assert!(!two.replies().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_the_server_stops() {
    for stop in [Desk::drain, Desk::seal] {
        let desk = desk();
        let (one, two) = (peer(&desk), peer(&desk));
        one.acquires(&desk, 1, &["apple"], 0, 60);
        two.acquires(&desk, 1, &["apple"], 10, 60);
        stop(&desk);
        assert!(announced(&two));
        assert!(!two.replies().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn those_before_an_id_in_use_are_handled() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    one.acquires(&desk, 1, &["apple"], 0, 60);
    one.acquires(&desk, 2, &["pear"], 0, 60);
    let [apple, pear] = tokens(&one)[..] else {
        panic!("not granted");
    };
    two.acquires(&desk, 1, &["apple"], 10, 60);
    one.acquires(&desk, 7, &["apple"], 10, 60);
    let batch = [
        release(3, "apple", apple),
        Incoming::Valid(Request::Domain { id: number(7) }),
        release(4, "pear", pear),
    ];
    assert!(desk.submit(one.connection, batch).is_err());
    assert!(announced(&two), "its grant does not wait for the end");
    assert_eq!(tokens(&two).len(), 1);
    let pear = Key::new("pear").unwrap();
    assert!(desk.state().machine.holder(&pear).is_some());
}

#[tokio::test(start_paused = true)]
async fn leases_that_end_together_are_expired_in_portions_between_the_requests_of_a_batch() {
    let desk = desk();
    let (one, two) = (peer(&desk), peer(&desk));
    let portion = Limits::default().expiries_per_apply as usize;
    for id in 1..=3 * portion as u64 {
        one.acquires(&desk, id, &[&format!("key-{id}")], 0, 1);
    }
    advance(Duration::from_secs(2)).await;
    let now = desk.clock.timestamp();
    let query = |id| {
        let key = Key::new("other").unwrap();
        Incoming::Valid(Request::Query {
            id: number(id),
            key,
            from_slot: 0,
        })
    };
    let mut batch = (1..=10).map(query).collect::<Vec<_>>().into_iter();
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut state = desk.state();
        let taken = state.take_some(now, desk.domain, two.connection, &mut batch);
        assert!(matches!(taken, Ok(Taken::Some)));
        held.push(state.machine.held_keys());
    }
    assert_eq!(held, [2 * portion, portion]);
    assert_eq!(batch.len(), 8);
    // All of them are answered in the end.
    desk.submit(two.connection, batch).unwrap();
    assert_eq!(two.replies().len(), 10);
    assert_eq!(desk.counts().held_keys, 0);
}
