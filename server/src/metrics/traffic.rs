//! What is counted around connections, by many tasks at once.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::SharedHistogram;

/// Counts since the start.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Connections that were given a task.
    pub(crate) accepted: Count,
    /// Connections that were closed at once because there was no room.
    pub(crate) refused: Count,
    /// Connections that could not be accepted.
    pub(crate) accept_errors: Count,
    /// Connections that are open, those still setting up included.
    pub(crate) open: Count,
    /// Requests to the admin listener.
    pub(crate) admin_requests: Count,
    /// Those of them that nobody who may do so sent.
    pub(crate) admin_refused: Count,
    /// Open connections of the admin listener.
    pub(crate) admin_open: Count,
    closed: [Count; Closed::ALL.len()],
    /// From the end of one ownership until the kernel had the next holder's grant, in microseconds.
    pub(crate) hand_over: SharedHistogram,
}

/// A number that only its owner understands.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one for as long as the value returned lives.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.add();
        Held(self)
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One that is counted.
#[derive(Debug)]
#[must_use = "it counts only while it lives"]
pub(crate) struct Held<'a>(&'a Count);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a connection ended, as far as it is told apart outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    ByPeer,
    Stopped,
    Network,
    SetUpTime,
    Tls,
    WrongSecret,
    SetUpLost,
    Malformed,
    IdInUse,
    FrameTime,
    Overflow,
    Stalled,
}

impl Closed {
    pub(crate) const ALL: [Self; 12] = [
        Self::ByPeer,
        Self::Stopped,
        Self::Network,
        Self::SetUpTime,
        Self::Tls,
        Self::WrongSecret,
        Self::SetUpLost,
        Self::Malformed,
        Self::IdInUse,
        Self::FrameTime,
        Self::Overflow,
        Self::Stalled,
    ];

    /// The word for it outside.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ByPeer => "by_peer",
            Self::Stopped => "stopped",
            Self::Network => "network",
            Self::SetUpTime => "setup_time",
            Self::Tls => "tls",
            Self::WrongSecret => "wrong_secret",
            Self::SetUpLost => "setup_lost",
            Self::Malformed => "malformed",
            Self::IdInUse => "id_in_use",
            Self::FrameTime => "frame_time",
            Self::Overflow => "overflow",
            Self::Stalled => "stalled",
        }
    }
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            accepted: Count::default(),
            refused: Count::default(),
            accept_errors: Count::default(),
            open: Count::default(),
            admin_requests: Count::default(),
            admin_refused: Count::default(),
            admin_open: Count::default(),
            closed: Default::default(),
            hand_over: SharedHistogram::new(HAND_OVER_MICROS),
        }
    }

    pub(crate) fn closed(&self, why: Closed) -> &Count {
        &self.closed[why as usize]
    }
}

const HAND_OVER_MICROS: &[u64] = &[
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];
