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
    let keepalive = keepalive.with_interval(KEEPALIVE_INTERVAL);
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
/// Sent data that nobody acknowledges for so much longer means that the peer is gone.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MORE: Duration = Duration::from_secs(10);
/// Replies are a few bytes long: thousands of them fit. What waits here counts as delivered, so
/// it should not be more than is useful.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
