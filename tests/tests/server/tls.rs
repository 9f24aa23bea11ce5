//! The same bytes inside TLS.

use highwater_protocol::Secret;
use highwater_server::{Server, TlsError, tls_from_pem_files};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::wire::*;

async fn start() -> (Server, TlsConnector) {
    let (config, connector) = tls();
    let secret = Secret::new("a shared client token").expect("a secret");
    let builder = builder().client_token(secret).tls(config);
    (builder.start().await.expect("starts"), connector)
}

async fn open(server: &Server, connector: &TlsConnector) -> Wire {
    let tcp = within(TcpStream::connect(server.local_addr())).await;
    let stream = encrypt(connector, tcp.expect("connects")).await;
    let mut wire = Wire {
        stream: Box::new(stream),
    };
    let secret = Secret::new("a shared client token").expect("a secret");
    assert_eq!(wire.log_in(&secret).await, Some(1));
    wire
}

#[tokio::test]
async fn requests_and_hand_overs_work_through_tls() {
    let (server, connector) = start().await;
    let mut holder = open(&server, &connector).await;
    let mut waiter = open(&server, &connector).await;
    let token = holder.take(1, "apple").await;
    waiter.send(&acquire(1, 60, 60, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
    assert!(waiter.answer().await.token('A', 1) > token);
}

#[tokio::test]
async fn long_runs_of_replies_are_cut_into_records() {
    let (server, connector) = start().await;
    let mut wire = open(&server, &connector).await;
    wire.take(1, "apple").await;
    let requests: Vec<u8> = (2..3_000)
        .flat_map(|id| acquire(id, 0, 60, "apple"))
        .collect();
    wire.send(&requests).await;
    for id in 2..3_000 {
        assert_eq!(wire.answer().await, timed_out(id));
    }
}

#[tokio::test]
async fn a_plain_peer_gets_nothing_from_a_tls_server() {
    let (server, connector) = start().await;
    let mut plain = Wire::dial(server.local_addr()).await;
    plain.send(&[7; 64]).await;
    // At most an alert, never a hello.
    assert_eq!(plain.read::<28>().await, None);
    open(&server, &connector).await.take(1, "apple").await;
}

#[tokio::test]
async fn a_closed_tls_connection_leaves_the_queue() {
    let (server, connector) = start().await;
    let mut holder = open(&server, &connector).await;
    holder.take(1, "apple").await;
    let mut waiter = open(&server, &connector).await;
    waiter.send(&acquire(1, 60, 60, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;
    within(tokio::io::AsyncWriteExt::shutdown(&mut waiter.stream))
        .await
        .expect("closes");
    eventually(|| server.counts().waiters == 0).await;
    assert_eq!(server.counts().held_keys, 1);
}

#[tokio::test]
async fn a_shutdown_closes_tls_in_order() {
    let (server, connector) = start().await;
    let mut wire = open(&server, &connector).await;
    within(server.shutdown()).await;
    let mut rest = Vec::new();
    let read = within(tokio::io::AsyncReadExt::read_to_end(
        &mut wire.stream,
        &mut rest,
    ))
    .await;
    // Without a goodbye this would be an unexpected end, which could be an attack.
    assert_eq!(read.expect("a closed connection"), 0);
}

#[test]
fn files_that_are_no_identity_are_told_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes");
    let write = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("writes");
        path
    };
    let certificate = write("certificate.pem", &good.cert.pem());
    let key = write("key.pem", &good.signing_key.serialize_pem());
    let other_key = write("other.pem", &other.signing_key.serialize_pem());
    let empty = write("empty.pem", "");
    let missing = folder.path().join("missing.pem");

    assert!(tls_from_pem_files(&certificate, &key).is_ok());
    let refused = |certificate, key| tls_from_pem_files(certificate, key).expect_err("refused");
    assert!(matches!(
        refused(&missing, &key),
        TlsError::File { path, .. } if path == missing
    ));
    assert!(matches!(
        refused(&certificate, &missing),
        TlsError::File { path, .. } if path == missing
    ));
    assert!(matches!(
        refused(&empty, &key),
        TlsError::NoCertificate { path } if path == empty
    ));
    assert!(matches!(
        refused(&certificate, &empty),
        TlsError::File { path, .. } if path == empty
    ));
    assert!(matches!(
        refused(&certificate, &other_key),
        TlsError::Identity(_)
    ));
}
