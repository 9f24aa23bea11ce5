//! Time limits: of a frame, of a set-up through TLS, and of a peer that is gone.

use std::time::Duration;

use crate::wire::*;

#[tokio::test]
async fn a_frame_that_is_begun_has_to_be_finished() {
    let server = server_with(|limits| limits.frame_time = Duration::from_millis(100)).await;
    let mut bystander = Wire::open(&server).await;
    let mut slow = Wire::open(&server).await;
    let request = acquire(1, 0, 60, "apple");
    slow.send(&request[..request.len() - 1]).await;
    slow.expect_end().await;
    assert_eq!(server.counts().held_keys, 0);
    // One that has begun nothing may be silent for as long as it likes.
    bystander.take(1, "apple").await;
}

#[tokio::test]
async fn bytes_that_drip_do_not_renew_the_time_of_a_frame() {
    let server = server_with(|limits| limits.frame_time = Duration::from_millis(200)).await;
    let mut slow = Wire::open(&server).await;
    let request = acquire(1, 0, 60, &"k".repeat(128));
    let dripped = async {
        for byte in &request {
            use tokio::io::AsyncWriteExt;
            if slow.stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            // Slower than the whole frame may take, faster than that per byte.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(dripped).await;
    slow.expect_end().await;
    assert_eq!(server.counts().held_keys, 0);
}

#[tokio::test]
async fn a_time_limit_may_be_as_long_as_it_likes() {
    let server = server_with(|limits| {
        limits.frame_time = Duration::MAX;
        limits.output_stall_time = Duration::MAX;
        limits.handshake_time = Duration::MAX;
        limits.drain_time = Duration::MAX;
    })
    .await;
    let mut slow = Wire::open(&server).await;
    let request = acquire(1, 0, 60, "apple");
    let (first, rest) = request.split_at(5);
    slow.send(first).await;
    // On another connection, so that the server has seen the first part before.
    Wire::open(&server).await.take(1, "pear").await;
    slow.ask(rest).await.token('A', 1);
}

#[tokio::test]
async fn a_set_up_through_tls_has_one_time_limit_for_all_of_it() {
    let (config, connector) = tls();
    let mut limits = highwater_server::Limits::default();
    limits.connections = 1;
    limits.handshake_time = Duration::from_millis(300);
    let builder = builder().no_auth().limits(limits).tls(config);
    let server = builder.start().await.expect("starts");
    // In silence, after a piece of a first message, and through TLS but without an answer.
    let mut silent = Wire::dial(server.local_addr()).await;
    silent.expect_end().await;
    let mut half = Wire::dial(server.local_addr()).await;
    half.send(&[0x16, 0x03, 0x01, 0x01]).await;
    half.expect_end().await;
    let tcp = within(tokio::net::TcpStream::connect(server.local_addr())).await;
    let stream = encrypt(&connector, tcp.expect("connects")).await;
    let mut mute = Wire {
        stream: Box::new(stream),
    };
    mute.read::<28>().await.expect("a hello");
    mute.send(&[7; 31]).await;
    assert_eq!(mute.read::<1>().await, None);
    // Each gave back the only place there is.
    let tcp = within(tokio::net::TcpStream::connect(server.local_addr())).await;
    let stream = encrypt(&connector, tcp.expect("connects")).await;
    let mut wire = Wire {
        stream: Box::new(stream),
    };
    let secret = highwater_protocol::Secret::no_auth();
    assert_eq!(wire.log_in(&secret).await, Some(1));
    wire.take(1, "apple").await;
}

/// The kernel's table of sockets tells which timer runs for each: 2 is the one that asks a silent
/// peer whether it is still there.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_silent_connection_is_looked_after_by_the_system() {
    let server = server().await;
    let stream = within(tokio::net::TcpStream::connect(server.local_addr())).await;
    let stream = stream.expect("connects");
    let peer = stream.local_addr().expect("an address").port();
    let mut wire = Wire {
        stream: Box::new(stream),
    };
    let secret = highwater_protocol::Secret::no_auth();
    assert_eq!(wire.log_in(&secret).await, Some(1));
    wire.take(1, "apple").await;
    let ports = (
        format!(":{:04X}", server.local_addr().port()),
        format!(":{peer:04X}"),
    );
    // Another timer runs until what was sent last is acknowledged.
    eventually(|| {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
        let mut lines = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|words| words[1].ends_with(&ports.0) && words[2].ends_with(&ports.1));
        line.expect("the server's end")[5].starts_with("02:")
    })
    .await;
}
