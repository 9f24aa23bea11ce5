//! What becomes of a grant whose reply does or does not leave the server.
//!
//! The kernel takes a bounded number of bytes for a peer that reads nothing: the server's send
//! buffer and this client's receive buffer, together below 300 kB. Requests whose replies are
//! more than that leave some of them in the server, and that is known without waiting for it.

use std::time::Duration;

use highwater_server::Server;
use tokio_rustls::TlsConnector;

use crate::wire::*;

/// Replies of 19 bytes each, so 380 kB.
const MANY: u64 = 20_000;

/// Takes so many keys without reading a reply that most replies wait in the server.
async fn clog(server: &Server, wire: &mut Wire) {
    let before = server.counts().held_keys;
    for first in (1..=MANY).step_by(500) {
        let ids = first..first + 500;
        let requests: Vec<u8> = ids
            .flat_map(|id| acquire(id, 0, 250, &format!("clog-{id}")))
            .collect();
        wire.send(&requests).await;
    }
    let all = before + MANY as usize;
    eventually(|| server.counts().held_keys == all).await;
}

async fn undelivered(server: Server, tls: Option<TlsConnector>) {
    let mut holder = Wire::open_narrow(&server, tls.clone()).await;
    let mut reader = Wire::open_narrow(&server, tls.clone()).await;
    let mut other = Wire::open_narrow(&server, tls).await;
    let token = holder.take(1, "apple").await;
    reader.send(&acquire(MANY + 1, 60, 250, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;
    clog(&server, &mut reader).await;
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
    // Granted to the reader, who has not got it.
    other
        .expect(&acquire(1, 0, 60, "apple"), timed_out(1))
        .await;

    drop(reader);
    eventually(|| server.counts().connections == 2).await;
    other.take(2, "apple").await;
    // Delivered ones stay held: those the kernel has taken, and not more.
    let stay = server.counts().held_keys - 1;
    assert!(stay > 0, "something was delivered");
    assert!(stay < 300_000 / 19, "{stay} grants were called delivered");
}

fn roomy(limits: &mut highwater_server::Limits) {
    limits.output_bytes = 4 * 1024 * 1024;
    limits.output_stall_time = Duration::from_secs(600);
}

#[tokio::test]
async fn a_grant_that_did_not_leave_is_free_again_at_once() {
    undelivered(server_with(roomy).await, None).await;
}

#[tokio::test]
async fn a_grant_that_did_not_leave_through_tls_is_free_again_at_once() {
    let (config, connector) = tls();
    let mut limits = highwater_server::Limits::default();
    roomy(&mut limits);
    let builder = builder().no_auth().limits(limits).tls(config);
    undelivered(builder.start().await.expect("starts"), Some(connector)).await;
}

/// Lets the server close on a client that then reads what had left.
async fn exactly_what_left(server: Server, tls: Option<TlsConnector>) {
    let mut reader = Wire::open_narrow(&server, tls).await;
    clog(&server, &mut reader).await;
    // All requests were read, so the close does not destroy what the kernel has.
    reader.send(b"Z\0\0").await;
    eventually(|| server.counts().connections == 0).await;
    let read = reader.answers_until_end().await.len();
    assert!(read > 0 && read < MANY as usize, "{read}");
    assert_eq!(server.counts().held_keys, read);
}

#[tokio::test]
async fn exactly_the_grants_that_left_are_held() {
    exactly_what_left(server_with(roomy).await, None).await;
}

#[tokio::test]
async fn exactly_the_grants_that_left_through_tls_are_held() {
    let (config, connector) = tls();
    let mut limits = highwater_server::Limits::default();
    roomy(&mut limits);
    let builder = builder().no_auth().limits(limits).tls(config);
    exactly_what_left(builder.start().await.expect("starts"), Some(connector)).await;
}

#[tokio::test]
async fn what_waited_comes_out_whole_when_it_is_read() {
    let server = server_with(roomy).await;
    let mut reader = Wire::open_narrow(&server, None).await;
    clog(&server, &mut reader).await;
    for id in 1..=MANY {
        reader.answer().await.token('A', id);
    }
    drop(reader);
    eventually(|| server.counts().connections == 0).await;
    assert_eq!(server.counts().held_keys, MANY as usize);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_dropped() {
    let server = server_with(|limits| {
        roomy(limits);
        limits.output_stall_time = Duration::from_millis(200);
    })
    .await;
    let mut bystander = Wire::open(&server).await;
    let mut slow = Wire::open_narrow(&server, None).await;
    let requests: Vec<u8> = (1..=MANY).flat_map(|id| release(id, 7, "free")).collect();
    // The server may close in the middle of it.
    let sent = tokio::io::AsyncWriteExt::write_all(&mut slow.stream, &requests);
    let _ = within(sent).await;
    eventually(|| server.counts().connections == 1).await;
    bystander.take(1, "apple").await;
}

#[tokio::test]
async fn a_slow_reader_is_not_read_so_its_replies_stay_bounded() {
    let server = server_with(|limits| {
        limits.output_bytes = 64 * 1024;
        limits.output_stall_time = Duration::from_millis(500);
    })
    .await;
    let mut bystander = Wire::open(&server).await;
    let before = bystander.take(1, "before").await;
    let mut slow = Wire::open_narrow(&server, None).await;
    let requests: Vec<u8> = (1..=4 * MANY)
        .flat_map(|id| acquire(id, 0, 250, &format!("{id}")))
        .collect();
    let sent = tokio::io::AsyncWriteExt::write_all(&mut slow.stream, &requests);
    let _ = within(sent).await;
    eventually(|| server.counts().connections == 1).await;
    let handled = bystander.take(2, "after").await - before;
    assert!(
        handled < (300_000 + 2 * 64 * 1024) / 19,
        "{handled} requests"
    );
}

#[tokio::test]
async fn a_reader_that_is_owed_too_much_is_dropped_and_all_it_was_owed_is_free() {
    const OWED: u64 = 30_000;
    let server = counted_server_with(|limits| {
        roomy(limits);
        limits.output_bytes = 1; // as 64 KiB
        limits.locks.waiters_per_connection = OWED as u32;
    })
    .await;
    let mut holder = Wire::open(&server).await;
    let mut slow = Wire::open_narrow(&server, None).await;
    let mut tokens = Vec::new();
    for first in (1..=OWED).step_by(500) {
        let ids = first..first + 500;
        let take = |id| acquire(id, 60, 250, &format!("{id}"));
        let requests: Vec<u8> = ids.clone().flat_map(take).collect();
        holder.send(&requests).await;
        for id in ids {
            tokens.push(holder.answer().await.token('A', id));
        }
        slow.send(&requests).await;
    }
    eventually(|| server.counts().waiters == OWED as usize).await;
    // 570 kB of grants come to a connection that may be owed 64 kB, and reads nothing.
    for first in (1..=OWED).step_by(500) {
        let give = |id: u64| release(id, tokens[id as usize - 1], &format!("{id}"));
        let requests: Vec<u8> = (first..first + 500).flat_map(give).collect();
        holder.send(&requests).await;
        for id in first..first + 500 {
            assert_eq!(holder.answer().await, released(id));
        }
    }
    eventually(|| server.counts().connections == 1).await;
    let overflow = r#"connections_closed_total{reason="overflow"}"#;
    eventually_counted(&server, overflow, 1).await;
    assert_eq!(server.counts().waiters, 0);
    // What had left before is held, and nothing of what came later, however late.
    let read = slow.answers_until_end().await.len();
    assert_eq!(server.counts().held_keys, read);
}
