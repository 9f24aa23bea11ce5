//! The choice among candidates.

use highwater_client::Key;
use highwater_client::leader::{
    BackendError, BoxFuture, Candidate, CandidateRegistry, Candidates, Field, Fifo, InProcess,
    LeaderError, LeaderResult, NodeId, Random, Scored, StrategicElector, Strategy,
};
use tokio::time::{sleep, timeout};

use crate::{SECOND, candidate};

fn field(round: u64, candidates: &[(&str, i64, u64)]) -> Field {
    let candidates = candidates
        .iter()
        .map(|(node, score, place)| Candidate::new(NodeId::new(node).unwrap(), *score, *place));
    Field::new(round, candidates.collect())
}

#[test]
fn strategies_choose_by_place_by_score_and_by_chance() {
    let all = [("a", 1, 3), ("b", 5, 2), ("c", 5, 4)];
    let chosen = |strategy: &dyn Strategy, round| {
        strategy
            .choose(&field(round, &all))
            .unwrap()
            .node
            .to_string()
    };
    assert_eq!(chosen(&Fifo, 0), "b");
    assert_eq!(chosen(&Scored, 0), "b");
    assert_eq!(
        Scored
            .choose(&field(0, &[("a", -1, 1), ("b", -2, 0)]))
            .unwrap()
            .node
            .as_str(),
        "a"
    );
    let mut counts = std::collections::BTreeMap::new();
    for round in 0..3_000 {
        let first = chosen(&Random::new(7), round);
        // Everybody with this seed chooses the same, in whatever order it sees them.
        let mut turned = all;
        turned.reverse();
        assert_eq!(
            Random::new(7)
                .choose(&field(round, &turned))
                .unwrap()
                .node
                .as_str(),
            first
        );
        *counts.entry(first).or_insert(0) += 1;
    }
    assert!(
        counts.len() == 3 && counts.values().all(|count| (800..1_200).contains(count)),
        "{counts:?}"
    );
    for strategy in [&Fifo as &dyn Strategy, &Scored, &Random::new(1)] {
        assert!(strategy.choose(&field(0, &[])).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn only_who_is_chosen_runs_and_then_it_is_the_turn_of_the_next() {
    let service = InProcess::new();
    let registry = Candidates::new(60 * SECOND);
    let electors = ["a", "b", "c"]
        .map(|node| StrategicElector::new(candidate(&service, node), registry.clone(), Fifo));
    let mut led = Vec::new();
    // The first round makes them known to each other.
    for _ in 0..3 {
        for elector in &electors {
            let result = elector.run_if_leader_result("job", |leader| async move {
                Ok::<_, ()>(leader.node().to_string())
            });
            led.extend(result.await.unwrap().elected());
        }
    }
    assert_eq!(led.len(), 7, "{led:?}");
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|node| led.iter().filter(|other| other == node).count() >= 2),
        "{led:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_chosen_still_has_to_take_the_real_lock() {
    let service = InProcess::new();
    let registry = Candidates::new(60 * SECOND);
    let chosen =
        StrategicElector::new(candidate(&service, "a"), registry.clone(), Scored).with_score(9);
    let other =
        StrategicElector::new(candidate(&service, "b"), registry.clone(), Scored).with_score(1);
    let outsider = candidate(&service, "outsider")
        .try_acquire("job")
        .await
        .unwrap()
        .unwrap();
    let run = |elector: StrategicElector| async move {
        let result = elector.run_if_leader_result("job", |_| async { Ok::<_, ()>(()) });
        matches!(result.await.unwrap(), LeaderResult::Elected { .. })
    };
    assert!(!run(chosen.clone()).await, "the lock is held");
    outsider.release().await;
    assert!(!run(other.clone()).await, "it was not chosen");
    assert!(run(chosen.clone()).await);
    // Two views of the candidates choose two: only one can lead.
    let blind = Candidates::new(60 * SECOND);
    let blind = StrategicElector::new(candidate(&service, "b"), blind, Scored);
    let guard = chosen.elector().try_acquire("job").await.unwrap().unwrap();
    assert!(!run(blind.clone()).await);
    drop(guard);
    assert!(run(blind).await);
    // One who is not heard of any more is left out, and so is one who withdraws.
    tokio::time::advance(61 * SECOND).await;
    assert!(run(other.clone()).await);
    assert!(run(chosen.clone()).await);
    assert!(!run(other.clone()).await);
    chosen.withdraw("job").await.unwrap();
    assert!(run(other).await);
}

#[tokio::test(start_paused = true)]
async fn a_registry_forgets_nobody_who_announces_itself() {
    let registry = Candidates::new(10 * SECOND);
    let (name, node) = (Key::new("job").unwrap(), |node| NodeId::new(node).unwrap());
    for _ in 0..5 {
        registry.announce(name.clone(), node("a"), 0).await.unwrap();
        tokio::time::advance(6 * SECOND).await;
    }
    let field = registry.announce(name.clone(), node("b"), 0).await.unwrap();
    assert_eq!(field.candidates.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn it_is_the_turn_of_the_next_also_after_a_panic_and_a_cancellation() {
    for panics in [true, false] {
        let service = InProcess::new();
        let registry = Candidates::new(600 * SECOND);
        let [a, b] = ["a", "b"]
            .map(|node| StrategicElector::new(candidate(&service, node), registry.clone(), Fifo));
        // They are known to each other, and a stands first.
        for node in [a.elector().node(), b.elector().node()] {
            let (name, node) = (Key::new("job").unwrap(), node.clone());
            registry.announce(name, node, 0).await.unwrap();
        }
        let run = tokio::spawn(async move {
            let run = a.run_if_leader_result("job", |_| async move {
                assert!(!panics, "on purpose");
                std::future::pending::<Result<(), ()>>().await
            });
            drop(timeout(SECOND, run).await);
        });
        assert_eq!(run.await.is_err(), panics);
        sleep(SECOND).await;
        let run = b.run_if_leader_result("job", |_| async { Ok::<_, ()>(()) });
        let result = run.await.unwrap();
        assert!(matches!(result, LeaderResult::Elected { .. }), "{result:?}");
    }
}

/// A registry that does not answer all calls.
struct Silent {
    candidates: Candidates,
    announces: bool,
}

impl CandidateRegistry for Silent {
    fn announce(
        &self,
        name: Key,
        node: NodeId,
        score: i64,
    ) -> BoxFuture<Result<Field, BackendError>> {
        match self.announces {
            true => self.candidates.announce(name, node, score),
            false => Box::pin(std::future::pending()),
        }
    }

    fn led(&self, _: Key, _: NodeId) -> BoxFuture<Result<(), BackendError>> {
        Box::pin(std::future::pending())
    }

    fn withdraw(&self, _: Key, _: NodeId) -> BoxFuture<Result<(), BackendError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_falls_silent_withholds_no_result() {
    for announces in [true, false] {
        let candidates = Candidates::new(600 * SECOND);
        let registry = Silent {
            candidates,
            announces,
        };
        let a = StrategicElector::new(candidate(&InProcess::new(), "a"), registry, Fifo);
        let run = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(7) });
        let result = timeout(20 * SECOND, run).await.unwrap();
        match result {
            Ok(result) => assert!(announces && result.elected() == Some(7)),
            Err(LeaderError::Backend(BackendError::Indeterminate(_))) => assert!(!announces),
            Err(other) => panic!("{other:?}"),
        }
        let withdrawn = timeout(20 * SECOND, a.withdraw("job")).await.unwrap();
        assert!(withdrawn.unwrap_err().is_transient());
    }
}
