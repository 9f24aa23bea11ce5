//! Who is let in.

use std::net::SocketAddr;

use highwater_server::{Admin, AdminToken, Server, StartError};

use crate::client::*;
use crate::http::*;
use crate::tls::Identity;

const TOKEN: &str = "Authorization: Bearer 0123456789abcdef\r\n";

fn token() -> AdminToken {
    AdminToken::from_file_content("ops", "0123456789abcdef\n").unwrap()
}

fn everywhere() -> Admin {
    Admin::on(SocketAddr::from(([0, 0, 0, 0], 0)))
}

#[tokio::test]
async fn off_the_loopback_there_is_no_listener_without_a_token() {
    let builder = || Server::builder().in_memory().listen(any_port()).no_auth();
    let refused = builder().admin(everywhere()).start().await.unwrap_err();
    assert!(
        matches!(refused, StartError::AdminOffLoopback { .. }),
        "{refused}"
    );
    let server = builder()
        .admin(everywhere().token(token()))
        .start()
        .await
        .unwrap();
    assert_eq!(send(&server, "GET", "/metrics", TOKEN).await.status, 200);
    let in_use = Admin::on(server.local_addr());
    let refused = builder().admin(in_use).start().await.unwrap_err();
    assert!(
        matches!(refused, StartError::AdminListen { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn with_a_token_nothing_is_told_without_it() {
    let server = server_with(|_| {}, |admin| admin.token(token())).await;
    let requests = [
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/v1/leaders"),
        ("GET", "/v1/locks"),
        ("GET", "/v1/locks/apple"),
        ("POST", "/v1/locks/apple/release"),
        ("GET", "/no-such-path"),
        ("DELETE", "/v1/locks"),
    ];
    for (method, path) in requests {
        for wrong in ["", "Authorization: Bearer 0123456789abcdeF\r\n"] {
            let answer = send(&server, method, path, wrong).await;
            answer.problem(401);
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
    }
    for (method, path) in &requests[..5] {
        assert_eq!(
            send(&server, method, path, TOKEN).await.status,
            200,
            "{path}"
        );
    }
    let page = send(&server, "GET", "/metrics", TOKEN).await.body;
    assert!(
        page.contains("highwater_admin_refused_total 18\n"),
        "{page}"
    );
    assert!(
        page.contains("highwater_force_releases_total 0\n"),
        "{page}"
    );
}

#[tokio::test]
async fn probes_can_be_let_in_without_a_token_and_nothing_else() {
    let server = server_with(|_| {}, |admin| admin.token(token()).open_probes()).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(send(&server, "GET", path, "").await.status, 200);
    }
    for path in ["/metrics", "/v1/locks", "/healthz/", "/v1/locks/healthz"] {
        send(&server, "GET", path, "").await.problem(401);
    }
}

#[tokio::test]
async fn pages_in_a_browser_are_not_operators() {
    let server = server().await;
    let page = "Origin: https://example.org\r\n";
    let path = "/v1/locks/apple/release";
    send(&server, "POST", path, page).await.problem(403);
    let mut stream = connect(&server).await;
    let request = format!("POST {path} HTTP/1.1\r\nHost: example.org\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes())
        .await
        .unwrap();
    read(&mut stream, false).await.unwrap().problem(403);
    assert_eq!(metric(&server, "highwater_force_releases_total").await, 0.0);
}

#[tokio::test]
async fn it_speaks_tls_if_it_is_told_to() {
    let identity = Identity::new();
    let server = server_with(|_| {}, |admin| admin.tls(identity.server())).await;
    let mut stream = identity.connect(connect(&server).await).await.unwrap();
    assert_eq!(ask(&mut stream, "GET", "/readyz", "").await.status, 200);

    let mut plain = connect(&server).await;
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut plain, request)
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = within(tokio::io::AsyncReadExt::read_to_end(
        &mut plain,
        &mut answer,
    ))
    .await;
    assert!(!answer.starts_with(b"HTTP"));
}
