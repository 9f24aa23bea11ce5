//! Whether this node's monotonic clock runs as fast as those of the others.
//!
//! Lease time is stamped by the leader's monotonic clock, and that its rate is right is the one thing
//! that no vote can make true. So nodes keep asking each other for the time over their authenticated
//! connections: [`exchange`] says what two such questions prove about the rate, [`judgement`] what a
//! node makes of it, [`watch`] asks. What follows from it is the desk's business and that of [`Node`].
//! `docs/adr/0015-clock-health.md` has the argument and the numbers.
//!
//! [`Node`]: super::node::Node

mod exchange;
mod judgement;
mod watch;

pub(super) use self::judgement::Judgement;
pub use self::judgement::{ClockHealth, ClockStatus, PeerClock};
pub(super) use self::watch::{Clocks, answer};
