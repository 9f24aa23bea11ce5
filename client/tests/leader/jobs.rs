//! Schedules, campaigns, streams, and the choice among candidates.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use highwater_client::leader::{
    Candidate, CandidateRegistry, Candidates, Field, Fifo, InProcess, LeaderElector, LeaderError,
    LeaderResult, NodeId, OptionsError, Random, Scored, StrategicElector, Strategy, StreamError,
    StreamLease,
};
use highwater_client::{Key, Lost};
use tokio::time::{Instant, sleep};

use crate::faulty::{Fault, Faulty};
use crate::{SECOND, candidate, elector, options};

#[tokio::test(start_paused = true)]
async fn a_schedule_rests_between_its_runs_and_survives_whatever_its_action_does() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let runs = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let schedule = a.schedule("job", 10 * SECOND, {
        let runs = Arc::clone(&runs);
        move |leader| {
            let runs = Arc::clone(&runs);
            async move {
                let run = {
                    let mut runs = runs.lock().unwrap();
                    runs.push((started.elapsed().as_secs(), leader.token().unwrap().get()));
                    runs.len()
                };
                match run {
                    1 => Err("an error"),
                    2 => panic!("on purpose"),
                    3 => {
                        sleep(5 * SECOND).await;
                        Ok(())
                    }
                    // The lease is lost on the way.
                    4 => {
                        sleep(100 * SECOND).await;
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
        }
    });
    let schedule = schedule.unwrap();
    sleep(90 * SECOND).await;
    // Fixed delay: from the end of one run to the start of the next.
    let expected = [(0, 1), (10, 2), (20, 3), (35, 4), (74, 5), (84, 6)];
    assert_eq!(*runs.lock().unwrap(), expected);
    schedule.stop().await;
    sleep(100 * SECOND).await;
    assert_eq!(runs.lock().unwrap().len(), 6);
    let stats = a.stats();
    assert_eq!(
        (stats.actions_failed, stats.panicked, stats.revoked),
        (1, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_schedule_goes_on_when_the_lock_service_does() {
    let faulty = Faulty::new(InProcess::new());
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap());
    let runs = Arc::new(AtomicU32::new(0));
    faulty.acquire(Fault::Fails);
    let _schedule = a
        .schedule("job", SECOND, {
            let runs = Arc::clone(&runs);
            move |_| {
                runs.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, ()>(()) }
            }
        })
        .unwrap();
    sleep(10 * SECOND).await;
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    assert!(a.stats().failed >= 9);
    faulty.acquire(Fault::None);
    sleep(2 * SECOND).await;
    assert!(runs.load(Ordering::Relaxed) >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_is_stopped_finishes_its_run_and_one_that_is_dropped_does_not() {
    for stops in [true, false] {
        let service = InProcess::new();
        let (a, b) = (
            elector(&service, options("a").auto_extend(true)),
            candidate(&service, "b"),
        );
        let finished = Arc::new(AtomicBool::new(false));
        let schedule = a.schedule("job", SECOND, {
            let finished = Arc::clone(&finished);
            move |_| {
                let finished = Arc::clone(&finished);
                async move {
                    sleep(20 * SECOND).await;
                    finished.store(true, Ordering::Relaxed);
                    Ok::<_, ()>(())
                }
            }
        });
        let schedule = schedule.unwrap();
        sleep(5 * SECOND).await;
        let asked = Instant::now();
        if stops {
            schedule.stop().await;
            assert_eq!(asked.elapsed(), 15 * SECOND);
        } else {
            drop(schedule);
            tokio::task::yield_now().await;
        }
        assert_eq!(finished.load(Ordering::Relaxed), stops);
        assert!(b.try_acquire("job").await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_is_stopped_gives_its_candidacy_up() {
    let service = InProcess::new();
    let guard = candidate(&service, "b").try_acquire("job").await.unwrap();
    let a = elector(&service, options("a").wait(600 * SECOND));
    let schedule = a
        .schedule("job", SECOND, |_| async { Ok::<_, ()>(()) })
        .unwrap();
    sleep(SECOND).await;
    assert_eq!(a.state("job").await.unwrap().waiting, 1);
    let asked = Instant::now();
    schedule.stop().await;
    assert_eq!(asked.elapsed().as_secs(), 0);
    assert_eq!(a.state("job").await.unwrap().waiting, 0);
    drop(guard);
    let never = a.schedule("job", Duration::ZERO, |_| async { Ok::<_, ()>(()) });
    assert!(matches!(
        never,
        Err(LeaderError::Options(OptionsError::Period))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_campaign_goes_on_after_contention_failures_and_losses_with_a_higher_token() {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let options = options("a").auto_extend(true).build().unwrap();
    let a = LeaderElector::new(faulty.clone(), options);
    let holder = elector(&service, crate::options("b").auto_extend(true));
    let holder = holder.try_acquire("job").await.unwrap().unwrap();
    let first = holder.token();
    faulty.acquire(Fault::Fails);
    let tokens = Arc::new(Mutex::new(vec![first]));
    let campaign = tokio::spawn({
        let (a, tokens) = (a.clone(), Arc::clone(&tokens));
        async move {
            a.campaign("job", |leader| {
                let tokens = Arc::clone(&tokens);
                async move {
                    let terms = {
                        let mut tokens = tokens.lock().unwrap();
                        tokens.push(leader.token().unwrap());
                        tokens.len()
                    };
                    if terms < 4 {
                        sleep(10_000 * SECOND).await;
                    }
                    terms
                }
            })
            .await
        }
    });
    sleep(20 * SECOND).await;
    faulty.acquire(Fault::None);
    sleep(300 * SECOND).await;
    assert_eq!(tokens.lock().unwrap().len(), 1, "b leads");
    holder.release().await;
    for _ in 0..2 {
        sleep(30 * SECOND).await;
        service.force_release(&Key::new("job").unwrap());
        sleep(30 * SECOND).await;
    }
    assert_eq!(campaign.await.unwrap().unwrap(), 4);
    assert!(tokens.lock().unwrap().is_sorted_by(|one, next| one < next));
    let wrong = a.campaign("not a name", |_| async {}).await.unwrap_err();
    assert!(matches!(wrong, LeaderError::Name(_)));
}

/// Gives what it was told, each after a pause.
struct Items {
    items: VecDeque<Result<u32, &'static str>>,
    pause: Duration,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    at_rest: Arc<AtomicBool>,
}

impl Stream for Items {
    type Item = Result<u32, &'static str>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let pause = self.pause;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(pause)));
        std::task::ready!(sleep.as_mut().poll(context));
        self.sleep = None;
        Poll::Ready(self.items.pop_front())
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        self.at_rest.store(true, Ordering::Relaxed);
    }
}

fn items(
    items: impl IntoIterator<Item = Result<u32, &'static str>>,
    seconds: u32,
) -> (Items, Arc<AtomicBool>) {
    let at_rest = Arc::new(AtomicBool::new(false));
    let items = Items {
        items: items.into_iter().collect(),
        pause: seconds * SECOND,
        sleep: None,
        at_rest: Arc::clone(&at_rest),
    };
    (items, at_rest)
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[tokio::test(start_paused = true)]
async fn a_stream_leads_until_it_ends_fails_or_is_dropped() {
    for (how, last) in [
        ("ends", None),
        ("fails", Some(Err("no"))),
        ("is dropped", None),
    ] {
        let service = InProcess::new();
        let (a, b) = (candidate(&service, "a"), candidate(&service, "b"));
        let (source, at_rest) = items((0..10).map(Ok).chain(last), 5);
        let stream = a.stream_if_leader("job", StreamLease::AutoExtend, |leader| {
            assert!(leader.fence().is_some());
            source
        });
        let mut stream = stream.await.unwrap().unwrap();
        for number in 0..10 {
            assert_eq!(next(&mut stream).await, Some(Ok(number)));
            // Longer than the lease, which is extended although the options do not say so.
            assert!(b.try_acquire("job").await.unwrap().is_none());
        }
        match how {
            "ends" => assert_eq!(next(&mut stream).await, None),
            "fails" => assert_eq!(
                next(&mut stream).await,
                Some(Err(StreamError::Failed("no")))
            ),
            _ => {}
        }
        if how != "is dropped" {
            // Already: what came last came after the release.
            assert!(b.try_acquire("job").await.unwrap().is_some());
            assert_eq!(next(&mut stream).await, None);
        }
        drop(stream);
        assert!(at_rest.load(Ordering::Relaxed));
        tokio::task::yield_now().await;
        assert!(b.try_acquire("job").await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_bounded_stream_that_does_not_end_is_ended_by_its_lease() {
    let service = InProcess::new();
    // It is not extended, whatever the options say.
    let a = elector(&service, options("a").auto_extend(true));
    let (source, at_rest) = items((0..100).map(Ok), 7);
    let stream = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    let mut stream = stream.await.unwrap().unwrap();
    for number in 0..4 {
        assert_eq!(next(&mut stream).await, Some(Ok(number)));
    }
    let lost = StreamError::LeaseLost(Lost::Expired);
    assert_eq!(next(&mut stream).await, Some(Err(lost)));
    assert!(at_rest.load(Ordering::Relaxed));
    assert_eq!(next(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_not_polled_in_time_gives_nothing_more() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let (source, _) = items((0..100).map(Ok), 0);
    let stream = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    let mut stream = stream.await.unwrap().unwrap();
    assert_eq!(next(&mut stream).await, Some(Ok(0)));
    tokio::time::advance(30 * SECOND).await;
    let lost = StreamError::LeaseLost(Lost::Expired);
    assert_eq!(next(&mut stream).await, Some(Err(lost)));
    assert_eq!(next(&mut stream).await, None);
    let held = candidate(&service, "b")
        .try_acquire("job")
        .await
        .unwrap()
        .unwrap();
    let (source, _) = items([], 0);
    let skipped = a.stream_if_leader("job", StreamLease::Bounded, |_| source);
    assert!(skipped.await.unwrap().is_none());
    let short = elector(&service, options("a").lease(SECOND / 10));
    let (source, _) = items([], 0);
    let refused = short.stream_if_leader("job", StreamLease::AutoExtend, |_| source);
    let refused = refused.await.unwrap_err();
    assert!(matches!(
        refused,
        LeaderError::Options(OptionsError::TooShortToExtend { .. })
    ));
    drop(held);
}

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
