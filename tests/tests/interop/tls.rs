//! The published client through TLS.

use highwater_server::{Secret, Server, tls_from_pem_files};
use ticketing::{ReleaseOutcome, TicketBrokerBuilder, TlsMode};

use crate::support::*;

/// A TLS server for `localhost`, and the file with the certificate that it shows.
async fn start() -> (Server, tempfile::TempDir) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes");
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = folder.path().join("certificate.pem");
    let key = folder.path().join("key.pem");
    std::fs::write(&certificate, made.cert.pem()).expect("writes");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("writes");
    let secret = Secret::new("a shared client token").expect("a secret");
    let builder = builder().client_token(secret);
    let builder = builder.tls(tls_from_pem_files(&certificate, &key).expect("an identity"));
    (builder.start().await.expect("starts"), folder)
}

fn tls_client(server: &Server) -> TicketBrokerBuilder {
    let address = format!("localhost:{}", server.local_addr().port());
    client_builder(address).token("a shared client token")
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_through_tls_with_a_trusted_certificate() {
    let (server, folder) = start().await;
    let trusted = TlsMode::Ca(folder.path().join("certificate.pem"));
    let broker = tls_client(&server).tls(trusted);
    let broker = ready(broker.connect().expect("a configuration")).await;
    let first = broker
        .acquire("apple", WAIT, LEASE, WORK)
        .await
        .expect("free");
    let waits = tokio::spawn({
        let broker = broker.clone();
        async move { broker.acquire("apple", WAIT, LEASE, WORK).await }
    });
    eventually("it queues", || server.counts().waiters == 1).await;
    let token = first.token();
    assert_eq!(
        first.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
    let second = waits.await.expect("ends").expect("its turn");
    assert!(second.token() > token);
    let set = broker
        .acquire_set(&["a", "b"], WAIT, LEASE, WORK)
        .await
        .expect("free");
    assert_eq!(
        set.release().await.expect("answered"),
        ReleaseOutcome::Released
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_trust_the_certificate_does_not_get_in() {
    let (server, _folder) = start().await;
    let (_, other_folder) = start().await;
    let other = TlsMode::Ca(other_folder.path().join("certificate.pem"));
    let broker = tls_client(&server)
        .tls(other)
        .connect()
        .expect("a configuration");
    let refused = broker.acquire("apple", WAIT, LEASE, WORK).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(server.counts().connections, 0);
}
