//! Every bound of the server in one place.
//!
//! Reaching one has a typed consequence: a busy reply, or the end of the one connection that went
//! too far. The bounds on keys, queues and leases are those of the lock core.

use std::time::Duration;

/// What one server accepts before it says no.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Keys held, waiters (in all, of one key, of one connection) and the like: reaching one is a
    /// busy reply.
    pub locks: highwater_lock::Limits,
    /// Open connections, those still setting up included. One more is closed before the hello.
    pub connections: usize,
    /// The time for the whole set-up: TLS, challenge and answer.
    pub handshake_time: Duration,
    /// The time for the rest of a frame once its first byte is there.
    pub frame_time: Duration,
    /// The bytes of replies that may wait for one slow reader; one byte more ends its connection.
    /// Less than 64 KiB counts as 64 KiB, which one read of short requests can cause.
    pub output_bytes: usize,
    /// How long a reader may take nothing at all while replies wait for it.
    pub output_stall_time: Duration,
    /// How long a shutdown waits for holders to release before it closes their connections.
    pub drain_time: Duration,
}

impl Limits {
    pub(crate) fn effective_output_bytes(&self) -> usize {
        self.output_bytes.max(64 * 1024)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            locks: highwater_lock::Limits::default(),
            connections: 10_000,
            handshake_time: Duration::from_secs(10),
            frame_time: Duration::from_secs(5),
            output_bytes: 128 * 1024,
            output_stall_time: Duration::from_secs(10),
            drain_time: Duration::from_secs(3),
        }
    }
}
