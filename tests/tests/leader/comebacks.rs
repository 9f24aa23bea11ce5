//! A leader whose connections are cut while a successor is elected, and that is connected again.

use std::net::SocketAddr;
use std::time::Duration;

use highwater_client::leader::{
    Highwater, LeaderElector, LeaderOptions, LeaderOptionsBuilder, LeaseEnd, NotLeader, RenewError,
};
use highwater_client::{Client, Lost};
use tokio::time::{sleep, timeout};

use crate::fenced::{base, close, closed_by};
use crate::road::Road;
use crate::world::{PATIENCE, World, request};

/// The two candidates, the ways of the first one, and the listeners of the operators.
struct Case {
    a: Client,
    b: Client,
    ways: Vec<Road>,
    admins: Vec<SocketAddr>,
}

/// How many extensions the nodes have been asked for.
async fn extensions(admins: &[SocketAddr]) -> u64 {
    let mut sum = 0;
    for admin in admins {
        let metrics = request(*admin, "GET", "/metrics").await;
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix("highwater_requests_total{kind=\"extend\"} "));
        sum += count.unwrap().parse::<u64>().unwrap();
    }
    sum
}

fn elector(client: &Client, node: &str, options: LeaderOptionsBuilder) -> LeaderElector {
    let options = options.node(node).build().unwrap();
    LeaderElector::new(Highwater::new(client.clone()), options)
}

async fn comes_back(case: Case) {
    let pool = base().await;
    let lease = Duration::from_secs(3);
    let a = LeaderOptions::builder().lease(lease).auto_extend(true);
    let a = elector(&case.a, "a", a);
    let b = LeaderOptions::builder().lease(Duration::from_secs(600));
    let b = elector(&case.b, "b", b.wait(Duration::from_secs(60)));
    let level = a.watch("invoice").unwrap();
    let old = a.try_acquire("invoice").await.unwrap().unwrap();
    assert!(close(&pool, old.fence(), "a, while it led").await);
    case.ways.iter().for_each(|way| way.close(true));
    let next = tokio::spawn(async move { b.try_acquire("invoice").await.unwrap().unwrap() });
    let lost = timeout(PATIENCE, old.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::Expired));
    let new = timeout(2 * PATIENCE, next).await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(close(&pool, new.fence(), "b").await);
    let asked = extensions(&case.admins).await;
    case.ways.iter().for_each(|way| way.close(false));
    let reached = async {
        while a.state("invoice").await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, reached).await.unwrap();
    assert_eq!(old.check(), Err(lost));
    assert!(!level.is_leader());
    assert!(!close(&pool, old.fence(), "a, although it was replaced").await);
    let refused = old.extend(lease).await.unwrap_err();
    assert!(matches!(refused, RenewError::NotLeader(reason) if reason == lost));
    // Two times what is between extensions.
    sleep(lease * 2 / 3).await;
    assert_eq!(extensions(&case.admins).await, asked);
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    let state = a.state("invoice").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    assert_eq!(new.check(), Ok(()));
    assert!(close(&pool, new.fence(), "b again").await);
    new.extend(lease).await.unwrap();
    // They are counted; one that moved counts at two nodes.
    assert!(extensions(&case.admins).await > asked);
    assert_eq!((a.stats().elected, a.stats().revoked), (1, 1));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
    assert_eq!(closed_by(&pool).await, ["a, while it led", "b", "b again"]);
}

#[tokio::test]
async fn a_leader_that_is_connected_again_behind_its_successor_is_fenced_out_and_silent() {
    let world = World::highwater().await;
    let way = Road::to(world.address()).await;
    let case = Case {
        a: Client::builder(way.address).connect().await.unwrap(),
        b: Client::builder(world.address()).connect().await.unwrap(),
        ways: vec![way],
        admins: vec![world.admin()],
    };
    comes_back(case).await;
}

#[cfg(feature = "cluster")]
mod at_a_cluster {
    use highwater_client::{Client, Secret};

    use super::{Case, comes_back};
    use crate::cluster::Cluster;
    use crate::nodes::{LIMIT, TOKEN};
    use crate::road::Road;

    async fn case(cluster: &Cluster) -> Case {
        let b = cluster.client("b").await;
        let nodes = cluster.nodes().await;
        let mut ways = Vec::new();
        for address in &nodes.addresses {
            ways.push(Road::to(*address).await);
        }
        let addresses = ways.iter().map(|way| way.address);
        let a = Client::cluster(addresses, nodes.file.identity());
        let a = a.token(Secret::new(TOKEN).unwrap()).connect_time(LIMIT);
        let admins = nodes.slots().map(|slot| nodes.server(slot).admin_addr());
        Case {
            a: a.connect().await.unwrap(),
            b,
            admins: admins.map(Option::unwrap).collect(),
            ways,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_leader_that_is_connected_again_behind_its_successor_is_fenced_out_and_silent() {
        let cluster = Cluster::begun().await;
        comes_back(case(&cluster).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn and_at_a_volatile_one() {
        let cluster = Cluster::volatile().await;
        comes_back(case(&cluster).await).await;
    }
}
