//! Desks without an engine: the tests are the log, and the time.

use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, FencingToken, Key, Limits, Machine, Operation, RequestId, Timestamp};
use highwater_protocol::handshake::Slot;
use highwater_protocol::{
    ErrorCode, Incoming, LeaseSeconds, Reply, ReplyDecoder, Request, RequestNumber,
};
use tokio::time::advance;

use super::*;
use crate::desk::NotForced;
use crate::outbox::Outbox;
use crate::readiness::Readiness;

fn slot(number: u8) -> Slot {
    Slot::new(number).unwrap()
}

fn id(number: u64) -> RequestNumber {
    RequestNumber::new(number).unwrap()
}

fn desk(number: u8) -> Desk {
    let machine = Machine::new(Limits::default(), FencingToken::MIN);
    Desk::new(
        Domain::from_bytes([1; 32]),
        slot(number),
        machine,
        NodeClock::start(None),
    )
}

fn lead(desk: &Desk, term: u64) {
    desk.look(Role::Leading { term });
}

/// Commits everything that this desk wants to propose, on all of them; gives the operations.
fn commit(leader: &Desk, all: &[&Desk]) -> Vec<Operation> {
    let mut operations = Vec::new();
    while let Some(batch) = leader.next_batch() {
        operations.extend(batch.operations.clone());
        for desk in all {
            desk.apply(1, &batch).unwrap();
        }
    }
    operations
}

struct Peer {
    connection: ConnectionId,
    outbox: Arc<Outbox>,
}

impl Peer {
    fn of(desk: &Desk) -> Self {
        let outbox = Arc::new(Outbox::new(1 << 20));
        let connection = desk.connect(Arc::clone(&outbox));
        Self { connection, outbox }
    }

    fn ask(&self, desk: &Desk, request: Request) -> Result<(), IdInUse> {
        desk.submit(self.connection, [Incoming::Valid(request)])
    }

    fn acquire(&self, desk: &Desk, number: u64, key: &str, wait: u8) {
        let request = Request::Acquire {
            id: id(number),
            keys: Key::new(key).unwrap().into(),
            wait_seconds: wait,
            lease: LeaseSeconds::new(10).unwrap(),
        };
        self.ask(desk, request).unwrap();
    }

    /// What came since the last time, without words about leaders.
    fn replies(&self) -> Vec<Reply> {
        let batch = self.outbox.take().unwrap();
        let mut decoder = ReplyDecoder::new();
        let mut bytes = &batch.bytes[..];
        let mut replies = Vec::new();
        while let Some(reply) = decoder.next(&mut bytes).unwrap() {
            replies.push(reply);
        }
        replies.retain(|reply| !matches!(reply, Reply::Leader { .. }));
        replies
    }

    fn token(&self) -> FencingToken {
        match self.replies()[..] {
            [Reply::Granted { token, .. }] => token,
            ref other => panic!("{other:?}"),
        }
    }
}

fn is_held(desk: &Desk, key: &str) -> bool {
    desk.lock(&Key::new(key).unwrap(), 0, 1).is_some()
}

#[tokio::test(start_paused = true)]
async fn what_was_only_asked_for_is_turned_away() {
    let desk = desk(0);
    let peer = Peer::of(&desk);
    peer.acquire(&desk, 1, "k", 5);
    let code = ErrorCode::NoLeader;
    assert_eq!(peer.replies(), [Reply::Error { id: id(1), code }]);
    lead(&desk, 1);
    peer.acquire(&desk, 2, "k", 5);
    desk.look(Role::Following(slot(2)));
    peer.acquire(&desk, 3, "k", 5);
    let leader = Some(slot(2));
    let moved = |number| Reply::Moved {
        id: id(number),
        leader,
    };
    assert_eq!(peer.replies(), [moved(2), moved(3)]);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_has_moved_and_what_was_cut_off_is_unknown() {
    let desk = desk(0);
    lead(&desk, 1);
    commit(&desk, &[&desk]);
    let peer = Peer::of(&desk);
    for (number, fate) in [(1, Fate::Refused), (2, Fate::Unknown)] {
        peer.acquire(&desk, number, "k", 5);
        let batch = desk.next_batch().unwrap();
        assert_eq!(peer.replies(), []);
        desk.settle(1, batch.number, fate);
        let expected = match fate {
            Fate::Refused => Reply::Error {
                id: id(number),
                code: ErrorCode::NoLeader,
            },
            Fate::Unknown => Reply::Indeterminate { id: id(number) },
        };
        assert_eq!(peer.replies(), [expected]);
    }
}

/// The client was told that nobody knows, so nobody else will clean up.
#[tokio::test(start_paused = true)]
async fn what_comes_about_after_all_is_taken_back() {
    let desk = desk(0);
    lead(&desk, 1);
    commit(&desk, &[&desk]);
    let peer = Peer::of(&desk);
    peer.acquire(&desk, 1, "free", 30);
    let first = desk.next_batch().unwrap();
    advance(Duration::from_millis(1_100)).await;
    lead(&desk, 1);
    assert_eq!(peer.replies(), []);
    advance(Duration::from_millis(200)).await;
    lead(&desk, 1);
    assert_eq!(peer.replies(), [Reply::Indeterminate { id: id(1) }]);

    // The number may be used again; what the old request brings is not for the new one.
    peer.acquire(&desk, 1, "other", 30);
    let second = desk.next_batch().unwrap();
    desk.apply(1, &first).unwrap();
    assert!(is_held(&desk, "free"));
    assert_eq!(peer.replies(), []);
    desk.apply(1, &second).unwrap();
    peer.token();
    let back = commit(&desk, &[&desk]);
    assert!(matches!(back[..], [Operation::Release { .. }]), "{back:?}");
    assert!(!is_held(&desk, "free"));
}

#[tokio::test(start_paused = true)]
async fn some_requests_wait_for_the_batch_that_is_under_way_but_not_a_few_and_not_many() {
    let desk = desk(0);
    lead(&desk, 1);
    let peer = Peer::of(&desk);
    let first = desk.next_batch().unwrap();
    assert_eq!(first.operations.len(), 1);
    assert!(!desk.has_another_batch(), "nothing was asked for");
    for number in 1..256 {
        peer.acquire(&desk, number, &format!("k{number}"), 30);
        // With the one that is under way they are eight.
        assert_eq!(desk.has_another_batch(), number <= 7, "{number}");
    }
    peer.acquire(&desk, 256, "k256", 30);
    assert!(desk.has_another_batch());
    let many = desk.next_batch().unwrap();
    assert_eq!(many.operations.len(), 256);
    assert!(!desk.has_another_batch());
    peer.acquire(&desk, 257, "k257", 30);
    assert!(!desk.has_another_batch());
    desk.apply(1, &first).unwrap();
    assert!(!desk.has_another_batch());
    desk.apply(2, &many).unwrap();
    assert!(desk.has_another_batch());
}

#[tokio::test(start_paused = true)]
async fn who_was_told_that_nobody_knows_does_not_stay_in_the_queue() {
    let desk = desk(0);
    lead(&desk, 1);
    let holder = Peer::of(&desk);
    holder.acquire(&desk, 1, "k", 0);
    commit(&desk, &[&desk]);
    let token = holder.token();
    let peer = Peer::of(&desk);
    peer.acquire(&desk, 1, "k", 30);
    let batch = desk.next_batch().unwrap();
    advance(Duration::from_millis(1_300)).await;
    lead(&desk, 1);
    assert_eq!(peer.replies(), [Reply::Indeterminate { id: id(1) }]);
    desk.apply(1, &batch).unwrap();
    // Until it is out of the queue its number is in use, or the machine would mix the two up.
    let again = Request::Acquire {
        id: id(1),
        keys: Key::new("k").unwrap().into(),
        wait_seconds: 9,
        lease: LeaseSeconds::new(9).unwrap(),
    };
    assert!(peer.ask(&desk, again).is_err());
    let waiter = WaiterId::new(peer.connection, RequestId::new(1));
    assert_eq!(commit(&desk, &[&desk]), [Operation::Cancel { waiter }]);
    let release = Request::Release {
        id: id(2),
        keys: Key::new("k").unwrap().into(),
        token,
    };
    holder.ask(&desk, release).unwrap();
    commit(&desk, &[&desk]);
    assert!(!is_held(&desk, "k"));
    assert_eq!(peer.replies(), []);
}

#[tokio::test(start_paused = true)]
async fn who_queued_at_an_older_leader_is_sent_to_the_new_one() {
    let (old, new) = (desk(0), desk(1));
    let all = [&old, &new];
    lead(&old, 1);
    let (holder, waiter) = (Peer::of(&old), Peer::of(&old));
    holder.acquire(&old, 1, "k", 0);
    waiter.acquire(&old, 1, "k", 60);
    commit(&old, &all);
    holder.token();
    assert_eq!(waiter.replies(), []);
    old.look(Role::Leaderless);
    assert_eq!(waiter.replies(), []);
    lead(&new, 2);
    commit(&new, &all);
    let leader = Some(slot(1));
    assert_eq!(waiter.replies(), [Reply::Moved { id: id(1), leader }]);
    assert_eq!(new.counts().waiters, 0);
    assert!(is_held(&new, "k"));
}

#[tokio::test(start_paused = true)]
async fn a_later_reign_leaves_what_an_earlier_one_granted() {
    let (one, other) = (desk(0), desk(1));
    let all = [&one, &other];
    lead(&one, 1);
    let (gone, quick) = (Peer::of(&one), Peer::of(&one));
    gone.acquire(&one, 1, "k", 0);
    quick.acquire(&one, 1, "quick", 0);
    commit(&one, &all);
    // In the reign that granted it a lock that never left is given back.
    one.disconnect(quick.connection, Vec::new());
    let back = commit(&one, &all);
    assert!(matches!(back[..], [Operation::Release { .. }]), "{back:?}");
    one.look(Role::Following(slot(1)));
    lead(&other, 2);
    commit(&other, &all);
    other.look(Role::Following(slot(0)));
    lead(&one, 3);
    commit(&one, &all);
    one.disconnect(gone.connection, Vec::new());
    assert_eq!(commit(&one, &all), []);
    assert!(is_held(&one, "k"));
}

/// The clocks of two nodes have nothing in common but their speed.
#[tokio::test(start_paused = true)]
async fn a_lease_lasts_as_long_whoever_leads() {
    let old = desk(0);
    advance(Duration::from_secs(1_000)).await;
    let young = desk(1);
    let all = [&old, &young];
    for (first, second, term) in [(&young, &old, 1), (&old, &young, 3)] {
        lead(first, term);
        let peer = Peer::of(first);
        peer.acquire(first, 1, "k", 0);
        commit(first, &all);
        let granted: Timestamp = first.state().machine.now();
        peer.token();
        first.look(Role::Leaderless);
        advance(Duration::from_secs(4)).await;
        lead(second, term + 1);
        let tick = second.next_batch().unwrap();
        // An outage counts here because the second one was up all the time.
        assert_eq!(tick.stamp.saturating_since(granted), Duration::from_secs(4));
        all.iter().for_each(|desk| desk.apply(1, &tick).unwrap());
        assert!(is_held(second, "k"));
        for (seconds, held) in [(5, true), (2, false)] {
            advance(Duration::from_secs(seconds)).await;
            lead(second, term + 1);
            commit(second, &all);
            assert_eq!(is_held(second, "k"), held);
        }
        second.look(Role::Leaderless);
    }
}

/// No node ends a lease by itself, and only one tick is on its way.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_is_proposed_once_by_the_leader() {
    let (leader, other) = (desk(0), desk(1));
    let all = [&leader, &other];
    lead(&leader, 1);
    let peer = Peer::of(&leader);
    peer.acquire(&leader, 1, "k", 0);
    commit(&leader, &all);
    other.look(Role::Following(slot(0)));
    advance(Duration::from_secs(11)).await;
    for _ in 0..3 {
        lead(&leader, 1);
        other.look(Role::Following(slot(0)));
    }
    assert_eq!(other.next_batch(), None);
    assert!(is_held(&leader, "k"));
    let tick = leader.next_batch().unwrap();
    assert_eq!(tick.operations, [Operation::Tick]);
    lead(&leader, 1);
    assert_eq!(leader.next_batch(), None);
    all.iter().for_each(|desk| desk.apply(1, &tick).unwrap());
    assert!(!is_held(&leader, "k") && !is_held(&other, "k"));
}

/// An order that was turned away was not done, and is not done later either.
#[tokio::test(start_paused = true)]
async fn an_order_of_an_operator_is_done_once_or_not_at_all() {
    let desk = desk(0);
    let key = || Key::new("k").unwrap();
    let early = desk.force_release(key()).await;
    assert_eq!(early, Err(NotForced::NoLeader));
    lead(&desk, 1);
    let peer = Peer::of(&desk);
    peer.acquire(&desk, 1, "k", 0);
    commit(&desk, &[&desk]);
    let token = peer.token();

    // Asked for and not proposed.
    let mut order = std::pin::pin!(desk.force_release(key()));
    assert!(futures_util::poll!(&mut order).is_pending());
    desk.look(Role::Following(slot(2)));
    assert_eq!(order.await, Err(NotForced::Elsewhere { leader: 2 }));

    // Proposed and refused: it never came into a log.
    lead(&desk, 3);
    commit(&desk, &[&desk]);
    let mut order = std::pin::pin!(desk.force_release(key()));
    assert!(futures_util::poll!(&mut order).is_pending());
    let batch = desk.next_batch().unwrap();
    desk.look(Role::Leaderless);
    desk.settle(3, batch.number, Fate::Refused);
    assert_eq!(order.await, Err(NotForced::NoLeader));
    lead(&desk, 3);
    assert_eq!(commit(&desk, &[&desk]), []);
    assert!(is_held(&desk, "k"));

    // Proposed and cut off, or without an outcome in time: nobody knows.
    for cut_off in [true, false] {
        let mut order = std::pin::pin!(desk.force_release(key()));
        assert!(futures_util::poll!(&mut order).is_pending());
        let batch = desk.next_batch().unwrap();
        match cut_off {
            true => desk.settle(3, batch.number, Fate::Unknown),
            false => advance(Duration::from_millis(1_300)).await,
        }
        assert_eq!(order.await, Err(NotForced::Unknown));
    }

    let mut order = std::pin::pin!(desk.force_release(key()));
    assert!(futures_util::poll!(&mut order).is_pending());
    commit(&desk, &[&desk]);
    let forced = order.await.unwrap();
    assert_eq!(forced.ended[0].token, token);
    assert!(forced.burned > token);
    assert!(!is_held(&desk, "k"));
}

/// Time stands still for a leader whose clock is wrong: nothing is granted, and no lease ends.
#[tokio::test(start_paused = true)]
async fn a_leader_that_distrusts_its_clock_stamps_no_later_time_and_grants_nothing() {
    let desk = desk(0);
    lead(&desk, 1);
    let holder = Peer::of(&desk);
    holder.acquire(&desk, 1, "k", 0);
    holder.acquire(&desk, 2, "short", 0);
    commit(&desk, &[&desk]);
    let [Reply::Granted { token, .. }, Reply::Granted { .. }] = holder.replies()[..] else {
        panic!("both are granted");
    };
    let waiter = Peer::of(&desk);
    waiter.acquire(&desk, 1, "k", 60);
    commit(&desk, &[&desk]);
    waiter.acquire(&desk, 2, "other", 60);
    let stamp = desk.state().machine.now();
    advance(Duration::from_secs(3)).await;

    desk.trust_clock(false);
    assert_eq!(desk.readiness(), Readiness::Clock);
    let code = ErrorCode::NotActive;
    // What was not proposed goes at once, and who queues as soon as the log says so.
    assert_eq!(waiter.replies(), [Reply::Error { id: id(2), code }]);
    waiter.acquire(&desk, 3, "other", 60);
    assert_eq!(waiter.replies(), [Reply::Error { id: id(3), code }]);
    let release = Request::Release {
        id: id(3),
        keys: Key::new("k").unwrap().into(),
        token,
    };
    holder.ask(&desk, release).unwrap();
    let queued = WaiterId::new(waiter.connection, RequestId::new(1));
    let operations = commit(&desk, &[&desk]);
    assert_eq!(operations[0], Operation::Cancel { waiter: queued });
    assert!(matches!(operations[1..], [Operation::Release { .. }]));
    assert_eq!(waiter.replies(), [Reply::Error { id: id(1), code }]);
    assert!(matches!(holder.replies()[..], [Reply::Released { .. }]));
    assert!(!is_held(&desk, "k"));

    advance(Duration::from_secs(3_600)).await;
    lead(&desk, 1);
    assert_eq!(desk.next_batch(), None, "no tick");
    assert_eq!(desk.state().machine.now(), stamp);
    assert!(is_held(&desk, "short"));

    // It goes on from there: the lease of ten seconds has all of its time.
    desk.trust_clock(true);
    for (seconds, held) in [(9, true), (2, false)] {
        advance(Duration::from_secs(seconds)).await;
        lead(&desk, 1);
        commit(&desk, &[&desk]);
        assert_eq!(is_held(&desk, "short"), held, "{seconds}");
    }
    waiter.acquire(&desk, 4, "other", 0);
    commit(&desk, &[&desk]);
    waiter.token();
}

/// Also for one that begins to lead while it does.
#[tokio::test(start_paused = true)]
async fn a_reign_that_begins_with_a_wrong_clock_begins_at_the_last_stamp() {
    let (old, new) = (desk(0), desk(1));
    let all = [&old, &new];
    lead(&old, 1);
    let holder = Peer::of(&old);
    holder.acquire(&old, 1, "k", 0);
    commit(&old, &all);
    let stamp = old.state().machine.now();
    new.trust_clock(false);
    advance(Duration::from_secs(100)).await;
    lead(&new, 2);
    let first = new.next_batch().unwrap();
    assert_eq!(
        (first.stamp, &first.operations[..]),
        (stamp, &[Operation::Tick][..])
    );
    all.iter().for_each(|desk| desk.apply(1, &first).unwrap());
    let peer = Peer::of(&new);
    peer.acquire(&new, 1, "free", 5);
    let code = ErrorCode::NotActive;
    assert_eq!(peer.replies(), [Reply::Error { id: id(1), code }]);
    assert!(is_held(&new, "k"));
}
