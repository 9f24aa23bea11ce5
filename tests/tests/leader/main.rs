//! Leader election at real servers on the loopback interface: the contract of every backend, over a single
//! server and over a cluster, and what only servers have to show.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "cluster")]
#[expect(dead_code, reason = "the tests of clusters use the rest")]
#[path = "../../../server/tests/cluster/client.rs"]
mod client;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod clustered;
mod comebacks;
mod fenced;
mod frozen;
#[cfg(feature = "cluster")]
#[expect(dead_code, reason = "the tests of clusters use the rest")]
#[path = "../../../server/tests/cluster/nodes.rs"]
mod nodes;
#[cfg(feature = "cluster")]
#[path = "../../../server/tests/cluster/proxy.rs"]
mod proxy;
mod road;
mod server;
mod world;

mod of_a_server {
    use crate::world::World;

    highwater_client::leader_contract! {
        #[tokio::test] =>
        World::highwater().await
    }
}

#[cfg(feature = "cluster")]
mod of_a_cluster {
    use crate::cluster::Cluster;

    highwater_client::leader_contract! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)] =>
        Cluster::begun().await
    }
}

#[cfg(feature = "cluster")]
mod of_a_volatile_cluster {
    use crate::cluster::Cluster;

    highwater_client::leader_contract! {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)] =>
        Cluster::volatile().await
    }
}
