//! Clusters of real nodes in one process, over sockets of the loopback; what they say to each other
//! goes through a proxy that can hold it back.

mod begin;
mod client;
mod leaders;
mod locks;
mod nodes;
mod partitions;
mod proxy;
mod restarts;
