//! Health and readiness.

use std::time::Duration;

use highwater_protocol::{Key, LeaseSeconds, Request, RequestNumber};
use highwater_server::{Admin, Limits, Readiness, Server};

use crate::client::*;
use crate::http::*;

#[tokio::test]
async fn a_server_that_serves_is_healthy_and_ready() {
    let server = server().await;
    assert_eq!(server.readiness(), Readiness::Ready);
    assert_eq!(get(&server, "/healthz").await, r#"{"status":"healthy"}"#);
    assert_eq!(get(&server, "/readyz").await, r#"{"status":"ready"}"#);
    assert_eq!(metric(&server, "highwater_ready").await, 1.0);
    let head = send(&server, "HEAD", "/readyz", "").await;
    assert_eq!((head.status, head.header("content-length")), (200, "18"));
}

#[tokio::test]
async fn a_server_that_drains_is_healthy_and_not_ready_from_the_first_moment_on() {
    let server = server_with(|limits| limits.drain_time = PATIENCE, |admin| admin).await;
    let mut holder = Client::open(&server).await;
    let token = holder.take("apple").await;
    let mut admin = connect(&server).await;
    assert_eq!(ask(&mut admin, "GET", "/readyz", "").await.status, 200);

    let mut shutdown = Box::pin(server.shutdown());
    // One poll begins the shutdown: no other task has run yet.
    assert!(futures_poll(&mut shutdown).await);
    let answer = ask(&mut admin, "GET", "/readyz", "").await;
    assert_eq!(
        (answer.status, &*answer.body),
        (503, r#"{"status":"draining"}"#)
    );
    assert_eq!(ask(&mut admin, "GET", "/healthz", "").await.status, 200);

    holder.release("apple", token).await;
    within(shutdown).await;
    let address = admin.peer_addr().unwrap();
    until(async || tokio::net::TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_holders_that_are_gone() {
    let server = server_with(|limits| limits.drain_time = Duration::MAX, |admin| admin).await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    one.take_for_long("apple").await;
    two.take_for_long("pear").await;
    drop(one);
    eventually(|| server.counts().connections == 1).await;
    let mut admin = connect(&server).await;
    let shutdown = tokio::spawn(server.shutdown());
    until(async || ask(&mut admin, "GET", "/readyz", "").await.status == 503).await;
    assert!(!shutdown.is_finished(), "somebody could still give back");
    drop(two);
    within(shutdown).await.unwrap();
}

#[tokio::test]
async fn a_server_that_waits_for_old_leases_or_cannot_store_is_healthy_and_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let start = async || {
        let mut no_patience = Limits::default();
        no_patience.drain_time = Duration::ZERO;
        let builder = Server::builder()
            .data_dir(&path)
            .listen(any_port())
            .no_auth();
        let builder = builder.limits(no_patience).admin(Admin::on(any_port()));
        builder.start().await.unwrap()
    };
    let server = start().await;
    Client::open(&server).await.take("apple").await;
    assert_eq!(get(&server, "/readyz").await, r#"{"status":"ready"}"#);
    assert_eq!(metric(&server, "highwater_token_blocks_total").await, 1.0);
    assert_eq!(metric(&server, "highwater_state_records_total").await, 2.0);
    assert_eq!(metric(&server, "highwater_state_syncs_total").await, 6.0);
    within(server.shutdown()).await;

    let server = start().await;
    let answer = send(&server, "GET", "/readyz", "").await;
    assert_eq!(
        (answer.status, &*answer.body),
        (503, r#"{"status":"waiting for old leases"}"#)
    );
    assert_eq!(metric(&server, "highwater_ready").await, 0.0);
    std::fs::remove_dir_all(&path).unwrap();
    // Longer than what is stored: it has to be written, which is noticed at once or later.
    let mut client = Client::open(&server).await;
    client.send(&longest_wait("pear")).await;
    until(async || server.readiness() == Readiness::StorageFailed).await;
    let answer = send(&server, "GET", "/readyz", "").await;
    assert_eq!(
        (answer.status, &*answer.body),
        (503, r#"{"status":"storage failed"}"#)
    );
    assert_eq!(send(&server, "GET", "/healthz", "").await.status, 200);
}

/// A request for a lock that is worth waiting for, with the longest lease.
fn longest_wait(key: &str) -> Request {
    Request::Acquire {
        id: RequestNumber::MIN,
        keys: Key::new(key).unwrap().into(),
        wait_seconds: u8::MAX,
        lease: LeaseSeconds::new(LeaseSeconds::MAX).unwrap(),
    }
}

/// Polls once; whether it is still pending.
async fn futures_poll(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|context| {
        let polled = std::pin::Pin::new(&mut *future).poll(context);
        std::task::Poll::Ready(polled.is_pending())
    })
    .await
}
