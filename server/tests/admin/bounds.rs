//! Nobody can keep the listener busy for ever.

use std::time::Duration;

use highwater_server::{Admin, AdminLimits, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::client::*;
use crate::http::*;

async fn bounded(change: impl FnOnce(&mut AdminLimits)) -> Server {
    let mut limits = AdminLimits::default();
    change(&mut limits);
    server_with(|_| {}, |admin: Admin| admin.limits(limits)).await
}

/// The server closes, whatever it says before.
async fn expect_end(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = within(stream.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let server = bounded(|limits| limits.connections = 2).await;
    let mut one = connect(&server).await;
    let mut two = connect(&server).await;
    assert_eq!(ask(&mut one, "GET", "/healthz", "").await.status, 200);
    assert_eq!(ask(&mut two, "GET", "/healthz", "").await.status, 200);
    let mut three = connect(&server).await;
    assert_eq!(expect_end(&mut three).await, b"");
    assert_eq!(ask(&mut one, "GET", "/healthz", "").await.status, 200);
    drop(two);
    until(async || {
        let mut again = connect(&server).await;
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        again.write_all(request).await.is_ok() && read(&mut again, false).await.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_head_has_to_be_finished_in_time() {
    let server = bounded(|limits| limits.request_time = Duration::from_millis(200)).await;
    let mut silent = connect(&server).await;
    let mut slow = connect(&server).await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHost: ")
        .await
        .unwrap();
    let ends = async {
        expect_end(&mut slow).await;
        expect_end(&mut silent).await;
    };
    // The limit of the library would be thirty.
    let ended = tokio::time::timeout(Duration::from_secs(20), ends).await;
    assert!(ended.is_ok(), "the limit is not the one that was asked for");
}

#[tokio::test]
async fn a_body_is_short_and_in_time() {
    let server = bounded(|limits| limits.request_time = Duration::from_millis(500)).await;
    let post = "POST /v1/locks/apple/release HTTP/1.1\r\nHost: localhost\r\n";
    let mut stream = connect(&server).await;
    let short = format!("{post}Content-Length: 2\r\n\r\n{{}}");
    stream.write_all(short.as_bytes()).await.unwrap();
    assert_eq!(read(&mut stream, false).await.unwrap().status, 200);
    // The connection goes on behind the body.
    assert_eq!(ask(&mut stream, "GET", "/healthz", "").await.status, 200);

    let long = format!("{post}Content-Length: 4097\r\n\r\n{}", "x".repeat(4_097));
    stream.write_all(long.as_bytes()).await.unwrap();
    read(&mut stream, false).await.unwrap().problem(413);
    let mut stream = connect(&server).await;
    let never = format!("{post}Content-Length: 2\r\n\r\n{{");
    stream.write_all(never.as_bytes()).await.unwrap();
    read(&mut stream, false).await.unwrap().problem(413);
    assert_eq!(metric(&server, "highwater_force_releases_total").await, 1.0);
}

#[tokio::test]
async fn a_head_is_not_longer_than_there_is_room_for() {
    let server = server().await;
    let mut stream = connect(&server).await;
    let field = format!("X-Long: {}\r\n", "x".repeat(20_000));
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{field}\r\n");
    let _ = stream.write_all(request.as_bytes()).await;
    let said = expect_end(&mut stream).await;
    assert!(
        !said.starts_with(b"HTTP/1.1 200"),
        "{}",
        said.escape_ascii()
    );

    let mut stream = connect(&server).await;
    let fields = "X-Many: x\r\n".repeat(65);
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let _ = stream.write_all(request.as_bytes()).await;
    let said = expect_end(&mut stream).await;
    assert!(
        !said.starts_with(b"HTTP/1.1 200"),
        "{}",
        said.escape_ascii()
    );
    assert_eq!(get(&server, "/healthz").await, r#"{"status":"healthy"}"#);
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let server = server().await;
    let mut bystander = connect(&server).await;
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\0",
        b"PRI * HTTP/2.0\r\n\r\n",
    ] {
        let mut stream = connect(&server).await;
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let said = expect_end(&mut stream).await;
        assert!(
            !said.starts_with(b"HTTP/1.1 200"),
            "{}",
            said.escape_ascii()
        );
    }
    assert_eq!(ask(&mut bystander, "GET", "/healthz", "").await.status, 200);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_dropped_and_the_locks_go_on() {
    let server = bounded(|limits| limits.stall_time = Duration::from_millis(300)).await;
    let mut client = Client::open(&server).await;
    for number in 0..1_000 {
        client.take(&format!("{number:0120}")).await;
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut slow = within(socket.connect(server.admin_addr().unwrap()))
        .await
        .unwrap();
    let request = "GET /v1/locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    slow.write_all(request.repeat(50).as_bytes()).await.unwrap();
    let open = "highwater_admin_connections";
    until(async || metric(&server, open).await == 2.0).await;
    // Only that of the question is left.
    until(async || metric(&server, open).await == 1.0).await;
    client.take("other").await;
    drop(slow);
}

#[tokio::test]
async fn a_connection_does_not_live_for_ever() {
    let server = bounded(|limits| limits.connection_time = Duration::from_millis(200)).await;
    let mut stream = connect(&server).await;
    assert_eq!(ask(&mut stream, "GET", "/healthz", "").await.status, 200);
    expect_end(&mut stream).await;
}

#[tokio::test]
async fn who_has_no_token_keeps_no_place() {
    let mut limits = AdminLimits::default();
    limits.connections = 1;
    limits.request_time = Duration::from_secs(60);
    let token = highwater_server::AdminToken::from_file_content("ops", TOKEN).unwrap();
    let server = server_with(|_| {}, |admin: Admin| admin.limits(limits).token(token)).await;
    let mut stranger = connect(&server).await;
    let answer = ask(&mut stranger, "GET", "/metrics", "").await;
    answer.problem(401);
    assert_eq!(answer.header("connection"), "close");
    assert_eq!(expect_end(&mut stranger).await, b"");
    // One that says nothing is closed long before its time for a later request.
    let mut silent = connect(&server).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), expect_end(&mut silent)).await;
    assert_eq!(ended.ok().as_deref(), Some(&b""[..]));
    until(async || {
        let mut operator = connect(&server).await;
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        operator.write_all(request.as_bytes()).await.is_ok()
            && read(&mut operator, false)
                .await
                .is_some_and(|answer| answer.status == 200)
    })
    .await;
}

const TOKEN: &str = "the-token-of-an-operator";
