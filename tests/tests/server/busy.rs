//! What is said at each limit, and that it is over when the limit is no longer reached.
//!
//! `B` means definitely not acquired. It is never said to a release or an extension, and never to
//! a try that only meets a lock which is held.

use highwater_server::Server;

use crate::wire::*;

fn busy(id: u64) -> Answer {
    Answer::new('B', id, &[])
}

/// Every busy reply was counted by this reason, and none by another.
async fn counted(server: &Server, reason: &str, times: u64) {
    for other in [
        "keys",
        "waiters",
        "waiters_per_key",
        "waiters_per_connection",
        "tokens",
        "other",
    ] {
        let count = counter(server, &format!("busy_total{{reason=\"{other}\"}}")).await;
        assert_eq!(count, if other == reason { times } else { 0 }, "{other}");
    }
}

/// Sends acquires that have to queue, and returns when they do.
async fn queue(server: &Server, wire: &mut Wire, requests: &[Vec<u8>]) {
    let all = server.counts().waiters + requests.len();
    wire.send(&requests.concat()).await;
    eventually(|| server.counts().waiters == all).await;
}

/// A plain lock `apple` and a group `group` of one slot, both held by the connection.
async fn hold(wire: &mut Wire) -> (u64, u64) {
    let apple = wire.take(1, "apple").await;
    let request = acquire_slot(2, 0, 60_000, 1, "group");
    let (group, ..) = wire.ask(&request).await.timed('n', 2);
    (apple, group)
}

/// Every kind of acquire that would have to queue behind these two.
fn waiting(id: u64) -> [Vec<u8>; 5] {
    [
        acquire(id, 60, 60, "apple"),
        acquire_set(id, 60, 60, &["apple", "pear"]),
        acquire_timed(id, 60_000, 60_000, &["apple"]),
        acquire_timed(id, 60_000, 60_000, &["apple", "pear"]),
        acquire_slot(id, 60_000, 60_000, 1, "group"),
    ]
}

/// The same without waiting.
fn trying(id: u64) -> [Vec<u8>; 5] {
    [
        acquire(id, 0, 60, "apple"),
        acquire_set(id, 0, 60, &["apple", "pear"]),
        acquire_timed(id, 0, 60_000, &["apple"]),
        acquire_timed(id, 0, 60_000, &["apple", "pear"]),
        acquire_slot(id, 0, 60_000, 1, "group"),
    ]
}

/// Nothing of a full server keeps a holder from its own lock, and no try is told that it is full.
async fn serves_the_rest(holder: &mut Wire, (apple, group): (u64, u64)) {
    for (key, token) in [("apple", apple), ("group", group)] {
        let extended = holder.ask(&extend(80, token, 1, &[key])).await;
        assert_eq!(extended.opcode, 'x');
        holder.expect(&release(81, 7, key), not_held(81)).await;
        let status = holder.ask(&query(82, 0, key)).await.status(82);
        assert_eq!(status.token, token);
    }
    for request in trying(83) {
        holder.expect(&request, timed_out(83)).await;
    }
}

#[tokio::test]
async fn the_queue_of_one_key_is_bounded() {
    let server = counted_server_with(|limits| limits.locks.waiters_per_key = 2).await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let held = hold(&mut holder).await;
    let first = [
        acquire(1, 60, 60, "apple"),
        acquire(2, 60, 60, "apple"),
        acquire_slot(3, 60_000, 60_000, 1, "group"),
        acquire_slot(4, 60_000, 60_000, 1, "group"),
    ];
    queue(&server, &mut waiter, &first).await;
    for request in waiting(9) {
        waiter.expect(&request, busy(9)).await;
    }
    serves_the_rest(&mut holder, held).await;
    counted(&server, "waiters_per_key", 5).await;
    // Other queues are not full, and this one is not once somebody has left.
    holder.take(3, "plum").await;
    queue(&server, &mut waiter, &[acquire(5, 60, 60, "plum")]).await;
    waiter.expect(&cancel(6, 1), timed_out(1)).await;
    assert_eq!(waiter.answer().await.opcode, 'c');
    queue(&server, &mut waiter, &[acquire(9, 60, 60, "apple")]).await;
}

#[tokio::test]
async fn all_queues_together_are_bounded() {
    let server = counted_server_with(|limits| limits.locks.waiters = 2).await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let mut other = Wire::open(&server).await;
    let held = hold(&mut holder).await;
    let first = [
        acquire(1, 60, 60, "apple"),
        acquire_slot(2, 60_000, 60_000, 1, "group"),
    ];
    queue(&server, &mut waiter, &first).await;
    for request in waiting(9) {
        other.expect(&request, busy(9)).await;
        waiter.expect(&request, busy(9)).await;
    }
    serves_the_rest(&mut holder, held).await;
    counted(&server, "waiters", 10).await;
    // The end of a connection makes room.
    drop(waiter);
    eventually(|| server.counts().waiters == 0).await;
    queue(&server, &mut other, &[acquire(9, 60, 60, "apple")]).await;
}

#[tokio::test]
async fn what_one_connection_has_pending_is_bounded() {
    let server = counted_server_with(|limits| limits.locks.waiters_per_connection = 2).await;
    let mut holder = Wire::open(&server).await;
    let mut waiter = Wire::open(&server).await;
    let mut other = Wire::open(&server).await;
    let held = hold(&mut holder).await;
    let first = [
        acquire(1, 60, 60, "apple"),
        acquire_slot(2, 60_000, 60_000, 1, "group"),
    ];
    queue(&server, &mut waiter, &first).await;
    for request in waiting(9) {
        waiter.expect(&request, busy(9)).await;
    }
    // A free key needs no queue, and another connection has a bound of its own.
    waiter.take(9, "plum").await;
    queue(&server, &mut other, &[acquire(9, 60, 60, "apple")]).await;
    serves_the_rest(&mut holder, held).await;
    counted(&server, "waiters_per_connection", 5).await;
    holder
        .expect(&release(9, held.0, "apple"), released(9))
        .await;
    waiter.answer().await.token('A', 1);
    queue(&server, &mut waiter, &[acquire(9, 60, 60, "apple")]).await;
}

#[tokio::test]
async fn the_keys_in_use_are_bounded() {
    let server = counted_server_with(|limits| limits.locks.keys = 4).await;
    let mut holder = Wire::open(&server).await;
    let mut other = Wire::open(&server).await;
    // Apple and a group of one slot are two keys.
    let held = hold(&mut holder).await;
    let plum = holder.take(3, "plum").await;
    // One is left: not enough for two keys, nor for a group of two.
    for (request, answer) in [
        (acquire_set(9, 0, 60, &["kiwi", "pear"]), busy(9)),
        (acquire_set(9, 60, 60, &["apple", "kiwi", "pear"]), busy(9)),
        (acquire_timed(9, 0, 60_000, &["kiwi", "pear"]), busy(9)),
        (acquire_slot(9, 0, 60_000, 2, "other"), busy(9)),
    ] {
        other.expect(&request, answer).await;
    }
    // A queue is a use too.
    queue(
        &server,
        &mut other,
        &[acquire_set(1, 60, 60, &["apple", "kiwi"])],
    )
    .await;
    for request in [
        acquire(9, 0, 60, "pear"),
        acquire(9, 60, 60, "pear"),
        acquire_set(9, 60, 60, &["apple", "pear"]),
        acquire_timed(9, 0, 60_000, &["pear"]),
        acquire_slot(9, 0, 60_000, 1, "other"),
        acquire_slot(9, 60_000, 60_000, 1, "other"),
    ] {
        other.expect(&request, busy(9)).await;
    }
    for (key, token) in [("apple", held.0), ("group", held.1)] {
        let extended = holder.ask(&extend(80, token, 1, &[key])).await;
        assert_eq!(extended.opcode, 'x');
    }
    // What is in use needs no room, and a release makes some.
    other
        .expect(&acquire(9, 0, 60, "apple"), timed_out(9))
        .await;
    holder.expect(&release(9, plum, "plum"), released(9)).await;
    other.take(9, "pear").await;
    other.expect(&acquire(9, 0, 60, "plum"), busy(9)).await;
    // A key that is kept for its minimum is in use as well.
    let retained = Answer::new('h', 10, &[]);
    let kept = retain(10, held.1, 3_600_000, &["group"]);
    holder.expect(&kept, retained).await;
    other.expect(&acquire(9, 0, 60, "plum"), busy(9)).await;
}

#[tokio::test]
async fn the_connections_are_bounded_and_those_inside_do_not_notice() {
    let server = counted_server_with(|limits| limits.connections = 3).await;
    let mut inside = [Wire::open(&server).await, Wire::open(&server).await];
    // One that is not through yet has a place like any other.
    let mut silent = Wire::dial(server.local_addr()).await;
    silent.read::<28>().await.expect("a hello");
    for _ in 0..20 {
        let mut refused = Wire::dial(server.local_addr()).await;
        assert_eq!(refused.read::<1>().await, None, "no room, no hello");
    }
    for (id, wire) in (1..).zip(&mut inside) {
        wire.take(1, &format!("inside-{id}")).await;
    }
    assert_eq!(counter(&server, "connections_refused_total").await, 20);
    assert_eq!(counter(&server, "connections").await, 3);
    drop(silent);
    // The place may be free a moment after the close.
    loop {
        let mut next = Wire::dial(server.local_addr()).await;
        if next.read::<28>().await.is_some() {
            break;
        }
    }
}
