//! Clusters of real nodes in one process, over sockets of the loopback; what they say to each other
//! goes through a proxy that can hold it back.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

mod admin;
mod begin;
mod client;
mod clocks;
mod displaced;
mod leaders;
mod locks;
mod nodes;
mod ours;
mod partitions;
mod peer;
mod proxy;
mod published;
mod replace;
mod resize;
mod restarts;
mod secrets;
mod secure;
mod snapshots;
mod volatile;
mod volatile_lost;
mod volatile_resize;
mod volatile_resize_lost;
