//! What a cluster does to the leaders of elections while it has trouble of its own.

use std::time::Duration;

use highwater_client::Lost;
use highwater_client::leader::contract::Service as _;
use highwater_client::leader::{
    FailurePolicy, Highwater, LeaderElector, LeaderError, LeaderOptions, LeaderResult, LeaseEnd,
    NotLeader, PolicyResult,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::Cluster;
use crate::world::PATIENCE;

async fn elector(cluster: &Cluster, node: &str, lease: u64, wait: u64) -> LeaderElector {
    let options = LeaderOptions::builder()
        .lease(Duration::from_secs(lease))
        .wait(Duration::from_secs(wait))
        .auto_extend(true)
        .node(node);
    let backend = Highwater::new(cluster.client(node).await);
    LeaderElector::new(backend, options.build().unwrap())
}

/// Long enough for the cluster to elect another leader of its own, at a machine that is busy.
const LEASE: u64 = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_stays_when_the_cluster_changes_its_own() {
    let cluster = Cluster::begun().await;
    let a = elector(&cluster, "a", LEASE, 5).await;
    let b = elector(&cluster, "b", LEASE, 600).await;
    let (begins, has_begun) = oneshot::channel();
    let result = a.run_if_leader_result("job", |leader| {
        let (cluster, a) = (&cluster, &a);
        begins.send(()).unwrap();
        async move {
            for round in 0..2 {
                let mut nodes = cluster.nodes().await;
                let down = nodes.leader().await;
                match round {
                    0 => nodes.kill(down),
                    _ => nodes.stop(down).await,
                }
                let next = nodes.leader().await;
                assert_ne!(next, down);
                drop(nodes);
                let extended = a.stats().extended;
                let started = Instant::now();
                while a.stats().extended <= extended {
                    leader.check()?;
                    assert!(started.elapsed() < PATIENCE, "nothing is extended");
                    sleep(Duration::from_millis(20)).await;
                }
                cluster.nodes().await.start(down).await;
                cluster.nodes().await.leader().await;
            }
            Ok::<_, NotLeader>(leader.token().unwrap())
        }
    });
    let rival = async {
        has_begun.await.unwrap();
        timeout(20 * PATIENCE, b.try_acquire("job")).await.unwrap()
    };
    let (result, rival) = tokio::join!(result, rival);
    let result = result.unwrap();
    let LeaderResult::Elected { value: token, term } = result else {
        panic!("the lease was good all the time: {result:?}");
    };
    assert!(matches!(term.end, LeaseEnd::Released), "{term:?}");
    let next = match rival {
        // It may be told that its place in the queue is gone; then it asks again.
        Ok(guard) => guard.unwrap(),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            b.try_acquire("job").await.unwrap().unwrap()
        }
    };
    assert!(next.token() > token);
    assert_eq!((a.stats().revoked, a.stats().released), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_majority_elects_nobody_and_its_leader_is_told_in_time() {
    let cluster = Cluster::begun().await;
    let a = elector(&cluster, "a", 3, 5).await;
    let b = elector(&cluster, "b", 3, 0).await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    cluster.outage(true).await;
    let since = Instant::now();
    let lost = timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::Expired));
    // Its last extension was at most that long ago.
    assert!(
        since.elapsed() < Duration::from_secs(3),
        "{:?}",
        since.elapsed()
    );
    let run = b.run_if_leader("job", |_| async { panic!("it must not run") });
    let error = run.await.map(|_: Option<()>| ()).unwrap_err();
    assert!(
        matches!(&error, LeaderError::Backend(error) if error.is_outage()),
        "{error:?}"
    );
    let run = b.run_with_policy("job", FailurePolicy::Skip, |_| async { Ok::<(), ()>(()) });
    let skipped = run.await.unwrap();
    assert!(
        matches!(skipped, PolicyResult::SkippedByFailure { .. }),
        "{skipped:?}"
    );
    cluster.outage(false).await;
    // Leases that were running when it fell silent come to their end; then there is a next one.
    let next = elector(&cluster, "b", 3, 60).await;
    let next = next.try_acquire("job").await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(next.check(), Ok(()));
}
