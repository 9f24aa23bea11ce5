//! The server restarts under a running application.

use highwater_server::Server;
use ticketing::{ReleaseOutcome, TicketError};

use crate::support::*;

async fn restart(server: Server) -> Server {
    let address = server.local_addr();
    server.shutdown().await;
    let again = builder().listen(address).no_auth().start().await;
    again.expect("the address is free again")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_reconnects_and_its_new_tokens_are_higher() {
    let server = server().await;
    let broker = client(&server).await;
    // Held over the restart, by somebody who does not know of it.
    let stale = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let domain = server.domain();

    let server = restart(server).await;
    assert_ne!(server.domain(), domain);
    // What is sent over a connection that has just ended would be reported as unknown, and
    // rightly: so wait until the client has noticed, and connected both of its connections.
    eventually("reconnected", || server.counts().connections == 2).await;
    let fresh = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    // The client takes both for one domain: the new holder must win.
    assert_eq!(stale.domain(), fresh.domain());
    assert!(fresh.token() > stale.token());

    let outcome = stale.release().await.expect("answered");
    assert_eq!(outcome, ReleaseOutcome::AlreadyGoneOrNotCurrent);
    assert_eq!(
        fresh.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_the_shutdown_refused_is_granted_after_the_restart() {
    let mut limits = highwater_server::Limits::default();
    // Refused once and then cut off, rather than refused again and again.
    limits.drain_time = std::time::Duration::ZERO;
    let server = server_with(limits).await;
    let broker = client(&server).await;
    let held = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let waits = tokio::spawn({
        let broker = broker.clone();
        async move { broker.acquire("apple", WAIT, LEASE, WORK).await }
    });
    eventually("it queues", || server.counts().waiters == 1).await;
    let server = restart(server).await;
    // "Not active" is what the client tries again within its wait.
    let granted = waits
        .await
        .expect("ends")
        .expect("granted by the new server");
    assert!(granted.token() > held.token());
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_the_server_took_with_it_is_reported_as_unknown() {
    let server = server().await;
    let broker = client(&server).await;
    let _held = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let waits = tokio::spawn({
        let broker = broker.clone();
        async move { broker.acquire("apple", WAIT, LEASE, WORK).await }
    });
    eventually("it queues", || server.counts().waiters == 1).await;
    drop(server);
    let unknown = waits.await.expect("ends");
    assert!(
        matches!(unknown, Err(TicketError::Indeterminate)),
        "{unknown:?}"
    );
}
