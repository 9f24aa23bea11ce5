//! New tokens and certificates for a server that runs.

use highwater_protocol::Secret;
use highwater_protocol::handshake::HELLO_BYTES;
use highwater_server::config::{Credentials, Sources};
use highwater_server::{Admin, AdminToken, ReloadError, Server};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::client::*;
use crate::http::*;
use crate::tls::Identity;

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn admin_token(text: &str) -> AdminToken {
    AdminToken::from_file_content("ops", text).unwrap()
}

fn credentials(client: &[&str], admin: &[&str], tls: Option<&Identity>) -> Credentials {
    let mut credentials = Credentials::default();
    credentials.client_tokens = client.iter().map(|text| secret(text)).collect();
    credentials.admin_tokens = admin.iter().map(|text| admin_token(text)).collect();
    credentials.tls = tls.map(Identity::server);
    credentials
}

const OLD: &str = "the old client token";
const NEW: &str = "the new client token";
const ADMIN_OLD: &str = "the-old-admin-token";
const ADMIN_NEW: &str = "the-new-admin-token";

async fn status(server: &Server, token: &str) -> u16 {
    let bearer = format!("Authorization: Bearer {token}\r\n");
    send(server, "GET", "/readyz", &bearer).await.status
}

#[tokio::test]
async fn client_tokens_change_in_three_steps_and_nobody_is_cut_off() {
    let builder = Server::builder().in_memory().listen(any_port());
    let server = builder.client_token(secret(OLD)).start().await.unwrap();
    let mut early = Client::open_with(&server, &secret(OLD)).await.unwrap();
    let token = early.take("apple").await;
    assert!(Client::open_with(&server, &secret(NEW)).await.is_none());

    server
        .replace_credentials(&credentials(&[NEW, OLD], &[], None))
        .unwrap();
    for text in [OLD, NEW] {
        let mut client = Client::open_with(&server, &secret(text)).await.unwrap();
        client.take(&text.replace(' ', "-")).await;
    }
    server
        .replace_credentials(&credentials(&[NEW], &[], None))
        .unwrap();
    assert!(Client::open_with(&server, &secret(OLD)).await.is_none());
    assert!(Client::open_with(&server, &secret(NEW)).await.is_some());
    early.release("apple", token).await;
    early.take("apple").await;
}

#[tokio::test]
async fn admin_tokens_change_too() {
    let server = server_with(|_| {}, |admin| admin.token(admin_token(ADMIN_OLD))).await;
    assert_eq!(status(&server, ADMIN_OLD).await, 200);
    assert_eq!(status(&server, ADMIN_NEW).await, 401);
    server
        .replace_credentials(&credentials(&[], &[ADMIN_OLD, ADMIN_NEW], None))
        .unwrap();
    assert_eq!(status(&server, ADMIN_OLD).await, 200);
    assert_eq!(status(&server, ADMIN_NEW).await, 200);
    server
        .replace_credentials(&credentials(&[], &[ADMIN_NEW], None))
        .unwrap();
    assert_eq!(status(&server, ADMIN_OLD).await, 401);
    assert_eq!(status(&server, ADMIN_NEW).await, 200);
}

/// Whether the certificate of the lock port and of the admin port is this one.
async fn shows(server: &Server, identity: &Identity) -> (bool, bool) {
    let tcp = TcpStream::connect(server.local_addr()).await.unwrap();
    let locks = identity.connect(tcp).await.is_ok();
    let admin = identity.connect(connect(server).await).await.is_ok();
    (locks, admin)
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_the_open_ones_go_on() {
    let (old, new) = (Identity::new(), Identity::new());
    let builder = Server::builder().in_memory().listen(any_port()).no_auth();
    let admin = Admin::on(any_port()).tls(old.server());
    let server = builder
        .tls(old.server())
        .admin(admin)
        .start()
        .await
        .unwrap();
    let tcp = TcpStream::connect(server.local_addr()).await.unwrap();
    let mut early = old.connect(tcp).await.unwrap();
    let mut hello = [0; HELLO_BYTES];
    early.read_exact(&mut hello).await.unwrap();
    let mut early_admin = old.connect(connect(&server).await).await.unwrap();
    assert_eq!(
        ask(&mut early_admin, "GET", "/healthz", "").await.status,
        200
    );
    assert_eq!(shows(&server, &new).await, (false, false));

    server
        .replace_credentials(&credentials(&[], &[], Some(&new)))
        .unwrap();
    assert_eq!(shows(&server, &new).await, (true, true));
    assert_eq!(shows(&server, &old).await, (false, false));
    assert_eq!(
        ask(&mut early_admin, "GET", "/healthz", "").await.status,
        200
    );
    let challenge = highwater_protocol::handshake::Challenge::from_hello(
        &hello,
        highwater_protocol::handshake::Node::Single,
    );
    let answer = challenge.unwrap().answer(&Secret::no_auth());
    tokio::io::AsyncWriteExt::write_all(&mut early, &answer)
        .await
        .unwrap();
    assert_eq!(early.read_u8().await.unwrap(), 1);
}

#[tokio::test]
async fn what_cannot_be_taken_over_changes_nothing() {
    let identity = Identity::new();
    let admin = Admin::on(any_port()).token(admin_token(ADMIN_OLD));
    let builder = Server::builder().in_memory().listen(any_port());
    let builder = builder.client_token(secret(OLD)).admin(admin);
    let server = builder.start().await.unwrap();
    let mut empty = credentials(&[NEW], &[ADMIN_NEW], None);
    empty.client_tokens.push(Secret::no_auth());
    let cases = [
        (
            credentials(&[], &[ADMIN_NEW], None),
            ReloadError::Authentication,
        ),
        (empty, ReloadError::EmptySecret),
        (
            credentials(&[NEW], &[], None),
            ReloadError::AdminAuthentication,
        ),
        (
            credentials(&[NEW], &[ADMIN_NEW], Some(&identity)),
            ReloadError::Tls,
        ),
    ];
    for (new, expected) in cases {
        assert_eq!(server.replace_credentials(&new), Err(expected));
        assert!(Client::open_with(&server, &secret(OLD)).await.is_some());
        assert!(Client::open_with(&server, &secret(NEW)).await.is_none());
        assert_eq!(status(&server, ADMIN_OLD).await, 200);
        assert_eq!(status(&server, ADMIN_NEW).await, 401);
    }
    let open = crate::client::server().await;
    let new = credentials(&[NEW], &[], None);
    assert_eq!(
        open.replace_credentials(&new),
        Err(ReloadError::Authentication)
    );
    let new = credentials(&[], &[ADMIN_NEW], None);
    assert_eq!(
        open.replace_credentials(&new),
        Err(ReloadError::AdminAuthentication)
    );
    assert_eq!(open.replace_credentials(&Credentials::default()), Ok(()));
    Client::open(&open).await.take("apple").await;
}

#[tokio::test]
async fn files_that_go_wrong_leave_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (old, new) = (Identity::new(), Identity::new());
    old.write(folder.path());
    std::fs::write(path("token"), OLD).unwrap();
    let mut sources = Sources::default();
    sources.flag("in-memory", ["true"]);
    sources.flag("listen", ["127.0.0.1:0"]);
    sources.flag("admin", ["127.0.0.1:0"]);
    sources.flag("admin-tls", ["true"]);
    sources.flag("client-token-file", [path("token")]);
    sources.flag("tls-cert", [path("tls.crt")]);
    sources.flag("tls-key", [path("tls.key")]);
    let prepared = sources.prepare().unwrap();
    let effective = prepared.effective;
    let server = prepared.builder.start().await.unwrap();
    assert_eq!(shows(&server, &old).await, (true, true));

    // The certificate is there and its key not yet.
    std::fs::write(path("tls.crt"), &new.certificate).unwrap();
    let wrong = effective.credentials().unwrap_err();
    assert!(
        wrong.to_string().starts_with("tls-cert (--tls-cert): "),
        "{wrong}"
    );
    std::fs::write(path("tls.key"), &new.key).unwrap();
    std::fs::write(path("token"), "short").unwrap();
    let wrong = effective.credentials().unwrap_err();
    assert!(
        wrong.to_string().starts_with("client-token-file ("),
        "{wrong}"
    );
    assert_eq!(shows(&server, &old).await, (true, true));

    std::fs::write(path("token"), NEW).unwrap();
    server
        .replace_credentials(&effective.credentials().unwrap())
        .unwrap();
    assert_eq!(shows(&server, &new).await, (true, true));
}
