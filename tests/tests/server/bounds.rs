//! Time limits of a single frame.

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
