//! What only a server can do to its leaders.

use std::time::Duration;

use highwater_client::leader::{
    Backend as _, Candidacy, FailurePolicy, Highwater, LeaderElector, LeaderError, LeaderOptions,
    LeaderResult, LeaseEnd, MemoryHistory, NodeId, NotLeader, PolicyResult, RenewError, Standing,
    TermOutcome, blocking,
};
use highwater_client::{Client, FencingToken, Key, Lost, Release};
use tokio::time::timeout;

use crate::world::{PATIENCE, World};

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_under_each_policy_and_never_contention() {
    let world = World::highwater().await;
    let options = || world.options().wait(world.unit);
    let a = world.elector("a", options()).await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    world.stop();
    let error = a.run_if_leader("other", |_| async { panic!("it must not run") });
    let error: LeaderError = error.await.map(|_: Option<()>| ()).unwrap_err();
    assert!(
        matches!(error, LeaderError::Backend(_)) && error.is_transient(),
        "{error:?}"
    );
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        let run = a.run_with_policy("other", policy, |leader| async move {
            Ok::<_, ()>(leader.fence().is_some())
        });
        match (policy, run.await) {
            (FailurePolicy::Error, Err(LeaderError::Backend(_))) => {}
            (FailurePolicy::Skip, Ok(PolicyResult::SkippedByFailure { .. })) => {}
            (
                FailurePolicy::FailOpen,
                Ok(PolicyResult::Unprotected {
                    outcome: Ok(false), ..
                }),
            ) => {}
            (policy, other) => panic!("{policy:?}: {other:?}"),
        }
    }
    assert!(a.state("job").await.is_err());
    // The leader from before is told in time, although nobody answers it.
    let lost = timeout(PATIENCE, guard.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::Expired));
    assert_eq!((a.stats().skipped, a.stats().failed), (0, 4));
}

#[tokio::test]
async fn a_server_that_is_gone_for_a_while_costs_a_leader_that_extends_nothing() {
    let world = World::highwater().await;
    let options = world
        .options()
        .lease(Duration::from_secs(20))
        .auto_extend(true);
    let a = world.elector("a", options).await;
    let result = a.run_if_leader_result("job", |leader| {
        let world = &world;
        async move {
            world.stop();
            tokio::time::sleep(Duration::from_millis(300)).await;
            leader.check()?;
            Ok::<_, NotLeader>(())
        }
    });
    let LeaderResult::Elected { term, .. } = result.await.unwrap() else {
        panic!("the lease was good all the time");
    };
    // Nobody was there to give it back to.
    assert!(matches!(term.end, LeaseEnd::Unknown { .. }), "{term:?}");
    assert_eq!(a.stats().release_unknown, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocking_face_leads_at_a_server() {
    let world = World::highwater().await;
    let rival = world.candidate("b").await;
    let address = world.address();
    let leading = tokio::task::spawn_blocking(move || {
        let client = highwater_client::blocking::Client::builder(address)
            .connect()
            .unwrap();
        let options = LeaderOptions::builder();
        let options = options
            .lease(Duration::from_secs(4))
            .auto_extend(true)
            .node("a");
        let backend = Highwater::from(&client);
        let elector = blocking::LeaderElector::new(backend, options.build().unwrap()).unwrap();
        let history = std::sync::Arc::new(MemoryHistory::new(10));
        elector.elector().record_to(history.clone());
        let ran = elector.run_if_leader("job", |leader| {
            // Longer than the lease.
            std::thread::sleep(Duration::from_secs(5));
            leader.check().unwrap();
            leader.token().unwrap()
        });
        let token = ran.unwrap().unwrap();
        (token, history.records())
    });
    world
        .until("it leads", async || {
            !rival.state("job").await.unwrap().is_free()
        })
        .await;
    assert!(rival.try_acquire("job").await.unwrap().is_none());
    let (token, records) = leading.await.unwrap();
    assert_eq!(
        (records[0].term.token, records[0].outcome),
        (token, TermOutcome::Completed)
    );
    let next = rival.try_acquire("job").await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn a_client_that_was_closed_says_so() {
    let world = World::highwater().await;
    let client = Client::builder(world.address()).connect().await.unwrap();
    let backend = Highwater::new(client.clone());
    let options = world.options().build().unwrap();
    let elector = LeaderElector::new(backend, options);
    let guard = elector.try_acquire("job").await.unwrap().unwrap();
    client.close().await;
    let error = elector.try_acquire("job").await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    let report = guard.release().await;
    assert!(matches!(report.end, LeaseEnd::Unknown { .. }), "{report:?}");
}

/// A blocking action on the only thread: nothing is extended and nobody can be told, and the server
/// elects the next one meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starved_runtime_loses_its_lease_aloud_and_the_next_leader_does_not_wait_for_it() {
    let world = World::highwater().await;
    let options = world
        .options()
        .wait(PATIENCE)
        .lease(Duration::from_secs(60));
    let next = world.elector("b", options).await;
    let address = world.address();
    let (leads, is_leading) = tokio::sync::oneshot::channel();
    let (elected, is_elected) = std::sync::mpsc::channel();
    let starved = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = Client::builder(address).connect().await.unwrap();
            let options = LeaderOptions::builder().lease(Duration::from_secs(1));
            let options = options.auto_extend(true).node("a").build().unwrap();
            let elector = LeaderElector::new(Highwater::new(client), options);
            let result = elector.run_if_leader_result("job", |leader| async move {
                leads.send(()).unwrap();
                let token: highwater_client::FencingToken =
                    is_elected.recv_timeout(PATIENCE).unwrap();
                assert!(token > leader.token().unwrap());
                leader.check()
            });
            (result.await.unwrap(), elector.stats())
        })
    });
    is_leading.await.unwrap();
    let guard = next.try_acquire("job").await.unwrap().unwrap();
    elected.send(guard.token()).unwrap();
    let joined = tokio::task::spawn_blocking(move || starved.join().unwrap()).await;
    let (result, stats) = joined.unwrap();
    let lost = NotLeader::Lost(Lost::Expired);
    match result {
        LeaderResult::LeaseLost { outcome, .. } => assert_eq!(outcome, Some(Err(lost))),
        other => panic!("{other:?}"),
    }
    assert_eq!((stats.revoked, stats.released), (1, 0));
    assert_eq!(guard.check(), Ok(()));
}

#[tokio::test]
async fn operators_see_the_leaders_of_a_prefix() {
    let world = World::highwater().await;
    let a = world.candidate("a").await.for_tenant("jobs").unwrap();
    let kept = world.options().min_lease(20 * world.unit);
    let kept = world.elector("a", kept).await.for_tenant("jobs").unwrap();
    let group = world.group("a", 3).await.for_tenant("jobs").unwrap();
    let guard = a.try_acquire("close").await.unwrap().unwrap();
    let one = group.try_acquire("mail").await.unwrap().unwrap();
    let two = group.try_acquire("mail").await.unwrap().unwrap();
    let elsewhere = world.candidate("a").await.try_acquire("elsewhere").await;
    let retained = kept.try_acquire("report").await.unwrap().unwrap();
    let token = retained.token();
    drop(retained.release().await);
    let answer = world.ask("GET", "/v1/leaders?prefix=jobs/").await;
    let shown = |name: &str, state: &str, token: FencingToken| {
        let leader = format!("\"token\":\"{token}\",");
        let place = format!("\"fence_key\":\"{name}\",\"state\":\"{state}\"");
        answer.contains(&leader) && answer.contains(&place)
    };
    assert!(shown("jobs/close", "leading", guard.token()), "{answer}");
    assert!(shown("jobs/mail 0", "leading", one.token()), "{answer}");
    assert!(shown("jobs/mail 1", "leading", two.token()), "{answer}");
    assert!(shown("jobs/report", "retained", token), "{answer}");
    assert!(
        elsewhere.unwrap().is_some() && !answer.contains("elsewhere"),
        "{answer}"
    );
}

/// An extension that was begun before the release and is sent after it: the server has the last word.
#[tokio::test]
async fn a_server_extends_nothing_that_it_only_retains() {
    let world = World::highwater().await;
    let backend = world.backend("a").await;
    let name = Key::new("job").unwrap();
    let mut candidacy = Candidacy::new(name.clone(), NodeId::new("a").unwrap());
    candidacy.lease = 20 * world.unit;
    candidacy.min_lease = 10 * world.unit;
    let lease = backend.acquire(candidacy).await.unwrap().unwrap();
    let extending = lease.extend(600 * world.unit);
    assert_eq!(lease.release().await, Ok(Release::Released));
    let refused = extending.await.unwrap_err();
    let lost = NotLeader::Lost(Lost::NotHeld);
    assert!(
        matches!(refused, RenewError::NotLeader(reason) if reason == lost),
        "{refused:?}"
    );
    let state = backend.state(name.clone()).await.unwrap();
    let [holder] = &state.holders[..] else {
        panic!("{state:?}");
    };
    match holder.standing {
        Standing::Retained { remaining } => assert!(remaining <= 10 * world.unit),
        other => panic!("{other:?}"),
    }
    world
        .until("it is over", async || {
            backend.state(name.clone()).await.unwrap().is_free()
        })
        .await;
}
