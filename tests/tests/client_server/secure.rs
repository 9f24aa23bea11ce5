//! Secrets and encryption.

use std::time::Duration;

use highwater_client::{
    AcquireError, Client, ClientTls, ConnectError, ConnectHint, Release, Secret,
};
use highwater_server::Server;
use highwater_tests::wait::eventually;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::{PATIENCE, key, server, wait};

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

/// An authority, and a server's certificate for `localhost` by it, as PEM.
struct Pki {
    authority: String,
    certificate: String,
    key: String,
}

fn pki() -> Pki {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Pki {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

async fn tls_server(pki: &Pki) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert"), folder.path().join("key"));
    std::fs::write(&certificate, &pki.certificate).unwrap();
    std::fs::write(&key, &pki.key).unwrap();
    let tls = highwater_server::tls_from_pem_files(&certificate, &key).unwrap();
    let builder = Server::builder()
        .in_memory()
        .listen("127.0.0.1:0".parse().unwrap());
    let builder = builder.client_token(secret("the client's token")).tls(tls);
    builder.start().await.unwrap()
}

fn trusting(pki: &Pki) -> ClientTls {
    ClientTls::from_ca_pem(pki.authority.as_bytes()).unwrap()
}

async fn refusal(server: &Server, tls: Option<ClientTls>) -> ConnectError {
    let mut builder = Client::builder(server.local_addr())
        .token(secret("the client's token"))
        .connect_time(Duration::from_millis(800));
    if let Some(tls) = tls {
        builder = builder.tls(tls);
    }
    builder.connect().await.unwrap_err()
}

#[tokio::test]
async fn an_encrypted_client_does_everything_a_plain_one_does() {
    let pki = pki();
    let server = tls_server(&pki).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca");
    std::fs::write(&file, &pki.authority).unwrap();
    let client = Client::builder(format!("localhost:{}", server.local_addr().port()))
        .token(secret("the client's token"))
        .tls(ClientTls::from_ca_file(&file).unwrap())
        .connect()
        .await
        .unwrap();
    let mut calls = Vec::new();
    for number in 0..200 {
        let client = client.clone();
        calls.push(tokio::spawn(async move {
            let key = key(&format!("k{}", number % 20));
            let ticket = client.acquire(&key, wait(30_000)).await.unwrap();
            ticket.release().await.unwrap()
        }));
    }
    for call in calls {
        assert_eq!(call.await.unwrap(), Release::Released);
    }
    client.close().await;
    server.shutdown().await;
}

#[tokio::test]
async fn an_unknown_authority_another_name_and_a_plain_peer_are_refused() {
    let (pki, other) = (pki(), pki());
    let server = tls_server(&pki).await;
    let unknown = trusting(&other).server_name("localhost");
    let wrong_name = trusting(&pki).server_name("elsewhere.example");
    for tls in [unknown, wrong_name] {
        let error = refusal(&server, Some(tls)).await;
        assert_eq!(hint(&error), ConnectHint::Certificate, "{error:?}");
    }
    let error = refusal(&server, None).await;
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert_eq!(hint(&error), ConnectHint::SilentWithoutTls, "{error:?}");
    assert!(error.to_string().contains("expects TLS"), "{error}");
    let invalid = trusting(&pki).server_name("not a name");
    let error = refusal(&server, Some(invalid)).await;
    assert!(
        matches!(error, ConnectError::InvalidServerName { .. }),
        "{error:?}"
    );
    // And the right one is let in by the same server.
    let builder = Client::builder(server.local_addr()).token(secret("the client's token"));
    let tls = trusting(&pki).server_name("localhost");
    builder.tls(tls).connect().await.unwrap();
}

#[tokio::test]
async fn a_plain_server_is_no_partner_for_an_encrypting_client() {
    let server = server().await;
    let tls = trusting(&pki()).server_name("localhost");
    let error = refusal(&server, Some(tls)).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    assert_eq!(hint(&error), ConnectHint::NoTls, "{error:?}");
}

#[track_caller]
fn hint(error: &ConnectError) -> ConnectHint {
    match error {
        ConnectError::Tls { hint, .. } | ConnectError::Unreachable { hint, .. } => *hint,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_secret_that_is_no_longer_valid_is_told_to_callers() {
    let listen = |address, text: &str| {
        Server::builder()
            .in_memory()
            .listen(address)
            .client_token(secret(text))
            .start()
    };
    let first = listen("127.0.0.1:0".parse().unwrap(), "the first secret").await;
    let first = first.unwrap();
    let address = first.local_addr();
    let client = Client::builder(address).token(secret("the first secret"));
    let client = client.connect().await.unwrap();
    drop(client.acquire(&key("k"), wait(1_000)).await.unwrap());
    first.shutdown().await;
    let second = eventually("the address is free again", PATIENCE, async || {
        listen(address, "the second secret").await.ok()
    })
    .await;
    eventually("the client is refused", PATIENCE, async || {
        match client.acquire(&key("k"), wait(1_000)).await.unwrap_err() {
            AcquireError::Unauthenticated => Some(()),
            AcquireError::NotConnected | AcquireError::Indeterminate => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    drop(second);
}
