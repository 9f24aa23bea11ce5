//! The options of an accepted socket.
//!
//! They make a dead peer visible and keep little in the kernel for a slow one. None of them is
//! needed for correctness, so a platform that refuses one is not an error.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Sets what the connection wants and the platform has.
///
/// The kernel gives up a peer that acknowledges nothing, or has no room for anything, for a while
/// longer than `stall_time`: long enough for the server to decide first.
pub(crate) fn configure(tcp: &TcpStream, stall_time: Duration) {
    let _ = tcp.set_nodelay(true);
    let socket = SockRef::from(tcp);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
    let keepalive = keepalive
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(stall_time.saturating_add(UNACKNOWLEDGED_MORE)));
    #[cfg(not(target_os = "linux"))]
    let _ = stall_time;
}

/// Silence after which the peer is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between two such questions.
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How many of them may stay unanswered, where the time below does not decide before.
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "windows"))]
const KEEPALIVE_RETRIES: u32 = 3;
/// Sent data that nobody acknowledges for so much longer means that the peer is gone.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MORE: Duration = Duration::from_secs(10);
/// Replies are a few bytes long: thousands of them fit. What waits here counts as delivered, so
/// it should not be more than is useful.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_system_looks_for_peers_that_are_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        configure(&accepted, Duration::from_secs(7));

        let socket = SockRef::from(&accepted);
        assert!(accepted.nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_RETRIES);
        // Later than the server itself gives up a reader that takes nothing.
        let unacknowledged = socket.tcp_user_timeout().unwrap();
        assert_eq!(unacknowledged, Some(Duration::from_secs(17)));
        // Linux doubles it for its own bookkeeping.
        assert_eq!(socket.send_buffer_size().unwrap(), 2 * SEND_BUFFER_BYTES);
    }

    #[tokio::test]
    async fn a_stall_time_without_end_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        configure(&tcp, Duration::MAX);
        // Whatever the system makes of it, it must not be a short one.
        let told = SockRef::from(&tcp).tcp_user_timeout().unwrap();
        assert!(
            told.is_none_or(|time| time > Duration::from_secs(3_600)),
            "{told:?}"
        );
        assert!(tcp.nodelay().unwrap());
    }
}
