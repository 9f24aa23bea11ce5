//! Every way in which a connection can end is counted as what it is.

use std::time::Duration;

use highwater_server::Server;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::wire::*;

const REASONS: [&str; 11] = [
    "by_peer",
    "network",
    "setup_time",
    "tls",
    "wrong_secret",
    "setup_lost",
    "malformed",
    "id_in_use",
    "frame_time",
    "overflow",
    "stalled",
];

/// Exactly this reason is counted, once.
async fn once(server: &Server, reason: &str) {
    let name = |reason| format!("connections_closed_total{{reason=\"{reason}\"}}");
    eventually_counted(server, &name(reason), 1).await;
    for other in REASONS.into_iter().filter(|other| *other != reason) {
        assert_eq!(counter(server, &name(other)).await, 0, "{other}");
    }
    eventually_counted(server, "connections", 0).await;
}

async fn server() -> Server {
    counted_server_with(|limits| {
        limits.handshake_time = Duration::from_millis(300);
        limits.frame_time = Duration::from_millis(300);
        limits.output_stall_time = Duration::from_millis(300);
    })
    .await
}

#[tokio::test]
async fn a_close_by_the_peer() {
    let server = server().await;
    Wire::open(&server).await.take(1, "apple").await;
    once(&server, "by_peer").await;
}

#[tokio::test]
async fn a_reset_by_the_network() {
    let server = server().await;
    let stream = within(TcpStream::connect(server.local_addr())).await;
    let stream = stream.expect("connects");
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .expect("a socket option");
    let mut wire = Wire {
        stream: Box::new(stream),
    };
    let verdict = wire.log_in(&highwater_protocol::Secret::no_auth()).await;
    assert_eq!(verdict, Some(1));
    wire.take(1, "apple").await;
    drop(wire);
    once(&server, "network").await;
}

#[tokio::test]
async fn a_set_up_that_is_not_finished() {
    let server = server().await;
    let mut silent = Wire::dial(server.local_addr()).await;
    silent.read::<28>().await.expect("a hello");
    silent.expect_end().await;
    once(&server, "setup_time").await;
}

#[tokio::test]
async fn a_set_up_that_the_peer_ends() {
    let server = server().await;
    let mut early = Wire::dial(server.local_addr()).await;
    early.read::<28>().await.expect("a hello");
    drop(early);
    once(&server, "setup_lost").await;
}

#[tokio::test]
async fn a_wrong_secret() {
    let server = server().await;
    let mut wrong = Wire::dial(server.local_addr()).await;
    wrong.read::<28>().await.expect("a hello");
    wrong.send(&[7; 32]).await;
    assert_eq!(wrong.read::<1>().await, Some([0]));
    wrong.expect_end().await;
    once(&server, "wrong_secret").await;
}

#[tokio::test]
async fn no_tls_where_there_has_to_be_some() {
    let (config, _) = tls();
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let admin = highwater_server::Admin::on(admin);
    let builder = builder().no_auth().admin(admin).tls(config);
    let server = builder.start().await.expect("starts");
    let mut plain = Wire::dial(server.local_addr()).await;
    plain.send(&[7; 64]).await;
    assert_eq!(plain.read::<28>().await, None);
    once(&server, "tls").await;
}

#[tokio::test]
async fn a_malformed_frame_and_an_id_in_use() {
    let server_of_frames = server().await;
    let mut wire = Wire::open(&server_of_frames).await;
    wire.send(b"Z").await;
    wire.expect_end().await;
    once(&server_of_frames, "malformed").await;

    let server_of_ids = server().await;
    let mut wire = Wire::open(&server_of_ids).await;
    wire.take(1, "apple").await;
    wire.send(&[acquire(2, 60, 60, "apple"), domain(2)].concat())
        .await;
    wire.expect_end().await;
    once(&server_of_ids, "id_in_use").await;
}

#[tokio::test]
async fn a_frame_that_is_not_finished() {
    let server = server().await;
    let mut slow = Wire::open(&server).await;
    slow.send(b"A").await;
    slow.expect_end().await;
    once(&server, "frame_time").await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing() {
    let server = server().await;
    let mut slow = Wire::open_narrow(&server, None).await;
    let requests: Vec<u8> = (1..=20_000).flat_map(|id| release(id, 7, "free")).collect();
    let sent = async { while slow.stream.write_all(&requests).await.is_ok() {} };
    within(sent).await;
    once(&server, "stalled").await;
}
