//! What every backend has to show. Each case reaches the backend through the electors only; see
//! [`World`] for what else it may do.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use highwater_client::Lost;
use highwater_client::leader::{
    FailurePolicy, LeaderElector, LeaderError, LeaderResult, LeaseEnd, NotLeader, Occurrence,
    PolicyResult, RenewError, Standing, StreamLease, TermOutcome,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::world::{PATIENCE, World};

pub(crate) async fn one_leads_at_a_time_and_tokens_grow(world: &World) {
    let inside = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for node in ["a", "b", "c"] {
        let options = world
            .options()
            .wait(600 * world.unit)
            .lease(600 * world.unit);
        let elector = world.elector(node, options).await;
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let ran = elector.run_if_leader("job", |leader| {
                    let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
                    async move {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two lead");
                        tokio::task::yield_now().await;
                        tokens.lock().unwrap().push(leader.token().unwrap());
                        assert!(inside.swap(false, Ordering::SeqCst));
                    }
                });
                assert_eq!(ran.await.unwrap(), Some(()));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 60);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

pub(crate) async fn contention_ends_after_the_wait_and_is_no_error(world: &World) {
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let b = world
        .elector("b", world.options().wait(3 * world.unit))
        .await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let started = Instant::now();
    let skipped = b
        .run_if_leader("job", |_| async { panic!("it must not run") })
        .await;
    assert_eq!(skipped.unwrap(), None::<()>);
    assert!(
        started.elapsed() >= 3 * world.unit,
        "{:?}",
        started.elapsed()
    );
    let one_try = world.candidate("c").await;
    let skipped = one_try
        .run_if_leader_result("job", |_| async { Ok::<(), ()>(()) })
        .await;
    assert_eq!(skipped.unwrap(), LeaderResult::Skipped);
    for policy in [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ] {
        let skipped = one_try.run_with_policy("job", policy, |_| async { Ok::<(), ()>(()) });
        assert_eq!(
            skipped.await.unwrap(),
            PolicyResult::Held(LeaderResult::Skipped)
        );
    }
    assert_eq!((b.stats().skipped, b.stats().failed), (1, 0));
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
}

pub(crate) async fn a_value_that_is_none_is_still_elected(world: &World) {
    let a = world.candidate("a").await;
    assert_eq!(
        a.run_if_leader("job", |_| async { None::<u8> })
            .await
            .unwrap(),
        Some(None)
    );
    assert_eq!(
        a.run_if_leader("job", |_| async {}).await.unwrap(),
        Some(())
    );
    let result = a.run_if_leader_result("job", |_| async { Ok::<_, ()>(None::<u8>) });
    assert!(matches!(
        result.await.unwrap(),
        LeaderResult::Elected { value: None, .. }
    ));
}

pub(crate) async fn an_action_that_fails_gives_its_error_and_the_lease_back(world: &World) {
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let result = a
        .run_if_leader_result("job", |_| async { Err::<(), _>("no") })
        .await;
    let LeaderResult::ActionFailed { cause, term } = result.unwrap() else {
        panic!("the action failed");
    };
    assert_eq!((cause, term.end), ("no", LeaseEnd::Released));
    assert!(b.try_acquire("job").await.unwrap().is_some());
}

pub(crate) async fn candidates_are_elected_in_the_order_of_their_coming(world: &World) {
    let options = || {
        world
            .options()
            .wait(600 * world.unit)
            .lease(600 * world.unit)
    };
    let holder = world.elector("holder", options()).await;
    let guard = holder.try_acquire("job").await.unwrap().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (place, node) in (1_u32..).zip(["a", "b", "c"]) {
        let elector = world.elector(node, options()).await;
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let ran = elector.run_if_leader("job", |_| async { order.lock().unwrap().push(node) });
            assert_eq!(ran.await.unwrap(), Some(()));
        }));
        world.waiting(&holder, "job", place).await;
    }
    guard.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), ["a", "b", "c"]);
}

/// spring-integration: a lock object that is made anew is a second leader.
pub(crate) async fn the_lock_is_not_reentrant_also_for_an_elector_made_anew(world: &World) {
    let first = world.candidate("a").await;
    let guard = first.try_acquire("job").await.unwrap().unwrap();
    let again = world.candidate("a").await;
    assert!(first.try_acquire("job").await.unwrap().is_none());
    assert!(again.try_acquire("job").await.unwrap().is_none());
    assert!(!again.watch("job").unwrap().is_leader());
    assert_eq!(guard.check(), Ok(()));
    drop(first);
    assert!(again.try_acquire("job").await.unwrap().is_none());
    drop(guard);
    world.is_free(&again, "job").await;
}

pub(crate) async fn a_lease_that_is_not_extended_is_lost_before_another_one_is_elected(
    world: &World,
) {
    let a = world.candidate("a").await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let started = Instant::now();
    let lost = guard.lost();
    let next = tokio::spawn(async move {
        let guard = b.try_acquire("job").await.unwrap().unwrap();
        (Instant::now(), guard)
    });
    assert_eq!(lost.await, NotLeader::Lost(Lost::Expired));
    let lost = Instant::now();
    assert!(
        lost - started < 20 * world.unit + world.unit,
        "{:?}",
        lost - started
    );
    let (elected, next) = next.await.unwrap();
    // A twentieth of the lease is between the two.
    assert!(
        elected > lost,
        "the old one was told {:?} late",
        lost - elected
    );
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(a.stats().revoked, 1);
}

pub(crate) async fn a_lease_that_extends_itself_outlives_its_time(world: &World) {
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let b = world.candidate("b").await;
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let mut extended = 0;
    world
        .until("three lease times pass", async || {
            assert_eq!(guard.check(), Ok(()));
            assert!(b.try_acquire("job").await.unwrap().is_none());
            extended = a.stats().extended;
            extended >= 9
        })
        .await;
    let report = guard.release().await;
    assert_eq!(report.end, LeaseEnd::Released);
    assert!(
        report.held >= 50 * world.unit && report.extensions >= extended,
        "{report:?}"
    );
    assert!(b.try_acquire("job").await.unwrap().is_some());
}

pub(crate) async fn an_extension_by_hand_lengthens_the_lease(world: &World) {
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    guard.extend(100 * world.unit).await.unwrap();
    let remaining = guard.remaining();
    assert!(
        remaining > 80 * world.unit && remaining <= 100 * world.unit,
        "{remaining:?}"
    );
    guard.extend(world.unit).await.unwrap();
    assert!(
        guard.remaining() > 50 * world.unit,
        "a lease is not shortened"
    );
    world.pass(25).await;
    assert_eq!(guard.check(), Ok(()));
    assert!(b.try_acquire("job").await.unwrap().is_none());
    let context = guard.context();
    assert_eq!(guard.release().await.end, LeaseEnd::Released);
    let error = context.extend(world.unit).await.unwrap_err();
    assert!(matches!(error, RenewError::NotLeader(NotLeader::Ended)));
}

pub(crate) async fn a_minimum_lease_keeps_everybody_out_after_success_error_and_drop(
    world: &World,
) {
    let options = || world.options().min_lease(10 * world.unit);
    let a = world.elector("a", options()).await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    for ending in ["success", "error", "drop"] {
        let started = Instant::now();
        match ending {
            "drop" => {
                let run = a.run_if_leader(ending, |_| std::future::pending::<()>());
                assert!(timeout(world.unit, run).await.is_err());
            }
            _ => {
                let fails = ending == "error";
                let run = a.run_if_leader_result(ending, |_| async move {
                    if fails { Err(()) } else { Ok(()) }
                });
                let result = run.await.unwrap();
                let end = &result.term().unwrap().end;
                assert!(
                    matches!(end, LeaseEnd::Retained { .. }),
                    "{ending}: {end:?}"
                );
                // Its caller does not wait for it.
                assert!(started.elapsed() < 9 * world.unit);
            }
        }
        world
            .until("it is retained", async || {
                let state = a.state(ending).await.unwrap();
                matches!(state.holders[0].standing, Standing::Retained { .. })
            })
            .await;
        // Nobody, the same node included.
        assert!(a.try_acquire(ending).await.unwrap().is_none(), "{ending}");
        let next = b.try_acquire(ending).await.unwrap().unwrap();
        let kept = started.elapsed();
        assert!(kept >= 10 * world.unit, "{ending}: {kept:?}");
        assert!(
            !world.is_virtual() || kept <= 11 * world.unit,
            "{ending}: {kept:?}"
        );
        next.release().await;
    }
}

pub(crate) async fn a_stale_token_touches_no_successor(world: &World) {
    let a = world.candidate("a").await;
    let options = world.options().wait(600 * world.unit).auto_extend(true);
    let b = world.elector("b", options).await;
    let old = a.try_acquire("job").await.unwrap().unwrap();
    let new = b.try_acquire("job").await.unwrap().unwrap();
    assert!(new.token() > old.token());
    assert!(old.extend(100 * world.unit).await.is_err());
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    let state = a.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    assert_eq!(new.check(), Ok(()));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

/// redisson: the loss is only logged.
pub(crate) async fn an_operator_ends_a_leadership_and_the_next_extension_notices(world: &World) {
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let (begun, has_begun) = oneshot::channel();
    let run = a.run_if_leader_result("job", |_| async move {
        begun.send(()).unwrap();
        std::future::pending::<Result<(), ()>>().await
    });
    let operator = async {
        has_begun.await.unwrap();
        world.force_release("job").await;
    };
    let (result, ()) = tokio::join!(run, operator);
    let LeaderResult::LeaseLost {
        reason, outcome, ..
    } = result.unwrap()
    else {
        panic!("the lease is lost");
    };
    assert_eq!((reason, outcome), (Lost::NotHeld, None));
}

/// spring-integration: the release does not say that the lock was lost.
pub(crate) async fn an_operator_ends_a_leadership_and_the_release_notices(world: &World) {
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let result = a.run_if_leader_result("job", |_| async {
        world.force_release("job").await;
        Ok::<_, ()>(7)
    });
    let LeaderResult::LeaseLost {
        reason,
        outcome,
        term,
    } = result.await.unwrap()
    else {
        panic!("the lease is lost");
    };
    assert_eq!(
        (reason, outcome, term.end),
        (Lost::NotHeld, Some(Ok(7)), LeaseEnd::NotHeld)
    );
    let error = a
        .run_if_leader("job", |_| world.force_release("job"))
        .await
        .unwrap_err();
    assert!(matches!(error, LeaderError::LeaseLost { .. }));
}

pub(crate) async fn a_dropped_run_gives_its_lease_back(world: &World) {
    let options = world.options().lease(600 * world.unit).auto_extend(true);
    let (a, b) = (
        world.elector("a", options).await,
        world.candidate("b").await,
    );
    let (dropped, mut is_dropped) = oneshot::channel::<()>();
    let run = a.run_if_leader("job", |_| async move {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    });
    assert!(timeout(world.unit, run).await.is_err());
    assert!(matches!(
        is_dropped.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    assert!(!a.watch("job").unwrap().is_leader());
    world.is_free(&b, "job").await;
    world
        .until("it is told", async || a.stats().released == 1)
        .await;
    assert_eq!((a.stats().cancelled, a.stats().actions_failed), (1, 0));
}

pub(crate) async fn a_panic_gives_its_lease_back(world: &World) {
    let a = world
        .elector("a", world.options().lease(600 * world.unit))
        .await;
    let run = a.run_if_leader("job", |_| async { panic!("on purpose") });
    assert!(AssertUnwindSafe(run).catch_unwind().await.is_err());
    assert!(
        a.state("job").await.unwrap().is_free(),
        "it is given back before the panic goes on"
    );
    assert_eq!(a.stats().panicked, 1);
}

/// etcd: a waiter is granted, or left waiting, after it is gone.
pub(crate) async fn a_dropped_candidacy_is_never_elected(world: &World) {
    let options = || {
        world
            .options()
            .wait(600 * world.unit)
            .lease(600 * world.unit)
    };
    let holder = world.elector("holder", options()).await;
    let guard = holder.try_acquire("job").await.unwrap().unwrap();
    let (a, b) = (
        world.elector("a", options()).await,
        world.elector("b", options()).await,
    );
    let first = tokio::spawn({
        let a = a.clone();
        async move { a.try_acquire("job").await.map(|_| ()) }
    });
    world.waiting(&holder, "job", 1).await;
    let second = tokio::spawn(async move { b.try_acquire("job").await.unwrap().unwrap() });
    world.waiting(&holder, "job", 2).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    world.waiting(&holder, "job", 1).await;
    let token = guard.token();
    guard.release().await;
    let second = second.await.unwrap();
    // No other lease was given meanwhile.
    assert_eq!(second.token().get(), token.get() + 1);
    assert_eq!(a.stats().elected, 0);
}

/// kubernetes: the lease is released before the cancelled work has drained.
pub(crate) async fn the_lease_is_kept_until_cancelled_work_is_at_rest(world: &World) {
    let (a, b) = (
        world.elector("a", world.options().auto_extend(true)).await,
        world.candidate("b").await,
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let (told, is_told) = oneshot::channel();
    let run = a.run_if_leader("job", |leader| async move {
        tokio::spawn(async move {
            told.send(leader.lost().await).unwrap();
            stopped.await.unwrap();
            drop(leader);
        });
        std::future::pending::<()>().await;
    });
    assert!(timeout(world.unit, run).await.is_err());
    assert_eq!(is_told.await.unwrap(), NotLeader::Cancelled);
    let started = Instant::now();
    while started.elapsed() < 15 * world.unit {
        assert!(b.try_acquire("job").await.unwrap().is_none());
        sleep(world.unit).await;
    }
    stop.send(()).unwrap();
    world.is_free(&b, "job").await;
    world
        .until("it is told", async || a.stats().released == 1)
        .await;
}

pub(crate) async fn a_group_has_so_many_leaders_with_slots_and_fences_of_their_own(world: &World) {
    let mut guards = Vec::new();
    for node in ["a", "b", "c"] {
        let elector = world.group(node, 3).await;
        guards.push(elector.try_acquire("pool").await.unwrap().unwrap());
    }
    let late = world.group("d", 3).await;
    assert!(late.try_acquire("pool").await.unwrap().is_none());
    let slots: BTreeSet<_> = guards.iter().map(|guard| guard.slot().unwrap()).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    let mut keys = BTreeSet::new();
    for guard in &guards {
        let fence = guard.fence();
        let key = format!("pool {}", guard.slot().unwrap());
        assert_eq!(fence.marks()[0].key.as_bytes(), key.as_bytes());
        assert_eq!(fence.marks()[0].token, guard.token());
        assert!(keys.insert(key));
    }
    let state = late.state("pool").await.unwrap();
    assert_eq!((state.slots.unwrap().get(), state.holders.len()), (3, 3));
    let freed = guards.remove(0);
    let (slot, token) = (freed.slot(), freed.token());
    freed.release().await;
    let next = late.try_acquire("pool").await.unwrap().unwrap();
    assert_eq!(next.slot(), slot);
    assert!(next.token() > token);
}

pub(crate) async fn another_number_of_slots_is_refused_and_no_contention(world: &World) {
    let two = world.group("a", 2).await;
    let guard = two.try_acquire("pool").await.unwrap().unwrap();
    let three = world.group("b", 3).await;
    let error = three.try_acquire("pool").await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    let single = world.candidate("c").await;
    for policy in [FailurePolicy::Skip, FailurePolicy::FailOpen] {
        let run = single.run_with_policy("pool", policy, |_| async { Ok::<(), ()>(()) });
        assert!(run.await.is_err(), "no policy has a say in it");
    }
    drop(guard);
}

pub(crate) async fn a_state_tells_who_leads_who_waits_and_what_is_retained(world: &World) {
    let options = world.options().min_lease(15 * world.unit);
    let a = world.elector("a", options).await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    assert!(a.state("job").await.unwrap().is_free());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let waiting = tokio::spawn(async move { b.try_acquire("job").await.unwrap().is_some() });
    world.waiting(&a, "job", 1).await;
    let state = a.state("job").await.unwrap();
    let holder = &state.holders[0];
    assert_eq!(
        (holder.token, holder.slot, state.slots),
        (guard.token(), None, None)
    );
    assert_eq!(holder.node.as_ref().unwrap().as_str(), "a");
    match holder.standing {
        Standing::Held { remaining } => {
            assert!(remaining <= 20 * world.unit && !remaining.is_zero())
        }
        other => panic!("{other:?}"),
    }
    let token = guard.token();
    guard.release().await;
    let state = a.state("job").await.unwrap();
    assert_eq!((state.holders[0].token, state.waiting), (token, 1));
    assert!(
        matches!(state.holders[0].standing, Standing::Retained { .. }),
        "{state:?}"
    );
    assert!(waiting.await.unwrap());
}

/// spring-cloud-kubernetes: a missed event leaves a phantom leader.
pub(crate) async fn events_and_levels_tell_of_each_term_once(world: &World) {
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let mut events = a.subscribe();
    let mut level = a.watch("job").unwrap();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    level.changed().await;
    assert_eq!(level.leading()[0].token, guard.token());
    world
        .until("it was extended", async || a.stats().extended >= 1)
        .await;
    world.force_release("job").await;
    timeout(PATIENCE, level.changed()).await.unwrap();
    assert!(!level.is_leader());
    guard.release().await;
    a.run_if_leader("job", |_| async {}).await.unwrap();
    assert!(!level.is_leader());
    let mut seen = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        let event = event.unwrap();
        assert_eq!((event.name.as_str(), event.node.as_str()), ("job", "a"));
        match event.what {
            Occurrence::Elected { .. } => seen.push("elected"),
            Occurrence::Extended { .. } if seen.last() == Some(&"extended") => {}
            Occurrence::Extended { .. } => seen.push("extended"),
            Occurrence::Revoked { .. } => seen.push("revoked"),
            Occurrence::Ended {
                end: LeaseEnd::Released,
                outcome: TermOutcome::Completed,
                ..
            } => {
                seen.push("ended");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["elected", "extended", "revoked", "elected", "ended"]);
}

pub(crate) async fn a_schedule_survives_errors_and_elects_with_higher_tokens(world: &World) {
    let a = world.candidate("a").await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let schedule = a.schedule("job", world.unit / 10, {
        let tokens = Arc::clone(&tokens);
        move |leader| {
            let runs = {
                let mut tokens = tokens.lock().unwrap();
                tokens.push(leader.token().unwrap());
                tokens.len()
            };
            async move {
                match runs {
                    1 => Err("an error"),
                    2 => panic!("on purpose"),
                    // Until its lease is lost.
                    3 => std::future::pending().await,
                    _ => Ok(()),
                }
            }
        }
    });
    let schedule = schedule.unwrap();
    world
        .until("it ran five times", async || {
            tokens.lock().unwrap().len() >= 5
        })
        .await;
    schedule.stop().await;
    let runs = tokens.lock().unwrap().len();
    assert!(tokens.lock().unwrap().is_sorted_by(|one, next| one < next));
    world.is_free(&a, "job").await;
    assert_eq!(tokens.lock().unwrap().len(), runs);
    let stats = a.stats();
    assert_eq!(
        (stats.actions_failed, stats.panicked, stats.revoked),
        (1, 1, 1)
    );
}

pub(crate) async fn a_campaign_goes_on_after_a_loss_with_a_higher_token(world: &World) {
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let campaign = tokio::spawn({
        let (a, tokens) = (a.clone(), Arc::clone(&tokens));
        async move {
            a.campaign("job", |leader| {
                let terms = {
                    let mut tokens = tokens.lock().unwrap();
                    tokens.push(leader.token().unwrap());
                    tokens.len()
                };
                async move {
                    if terms == 1 {
                        std::future::pending::<()>().await;
                    }
                    terms
                }
            })
            .await
        }
    });
    world
        .until("it leads", async || !tokens.lock().unwrap().is_empty())
        .await;
    world.force_release("job").await;
    assert_eq!(
        timeout(PATIENCE, campaign).await.unwrap().unwrap().unwrap(),
        2
    );
    let tokens = tokens.lock().unwrap();
    assert!(tokens[1] > tokens[0]);
}

/// Counts for ever.
struct Counting(u32);

impl Stream for Counting {
    type Item = Result<u32, &'static str>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        Poll::Ready(Some(Ok(self.0)))
    }
}

pub(crate) async fn a_stream_leads_as_long_as_it_lives(world: &World) {
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let stream = a
        .stream_if_leader("job", StreamLease::AutoExtend, |_| Counting(0))
        .await;
    let mut stream = stream.unwrap().unwrap();
    world
        .until("it was extended", async || {
            assert!(matches!(stream.next().await, Some(Ok(_))));
            assert!(b.try_acquire("job").await.unwrap().is_none());
            a.stats().extended >= 3
        })
        .await;
    drop(stream);
    world.is_free(&b, "job").await;
    // A bounded one is ended by its lease.
    let stream = a
        .stream_if_leader("job", StreamLease::Bounded, |_| Counting(0))
        .await;
    let mut stream = stream.unwrap().unwrap();
    let started = Instant::now();
    while let Some(Ok(_)) = stream.next().await {
        assert!(started.elapsed() < 21 * world.unit, "it does not end");
        sleep(world.unit / 10).await;
    }
    assert!(stream.next().await.is_none());
    world.is_free(&b, "job").await;
}

pub(crate) async fn tenants_do_not_meet(world: &World) {
    let a = world.candidate("a").await;
    let (acme, other) = (
        a.for_tenant("acme").unwrap(),
        a.for_tenant("other").unwrap(),
    );
    let guards = (
        a.try_acquire("job").await.unwrap().unwrap(),
        acme.try_acquire("job").await.unwrap().unwrap(),
        other.try_acquire("job").await.unwrap().unwrap(),
    );
    assert_eq!(guards.1.fence().marks()[0].key.as_bytes(), b"acme/job");
    assert!(acme.try_acquire("job").await.unwrap().is_none());
    assert_eq!(
        a.state("acme/job").await.unwrap().holders[0].token,
        guards.1.token()
    );
}

/// curator: after a new connection the old leader still takes itself for one.
pub(crate) async fn a_service_that_starts_anew_ends_the_old_leadership_and_the_candidacies(
    world: &World,
) {
    let options = || world.options().lease(3_000 * world.unit).auto_extend(true);
    let a = world.elector("a", options()).await;
    let old = a.try_acquire("job").await.unwrap().unwrap();
    let b = world.elector("b", options().wait(3_000 * world.unit)).await;
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.try_acquire("job").await }
    });
    world.waiting(&a, "job", 1).await;
    world.restart().await;
    let lost = timeout(PATIENCE, old.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::DomainChanged));
    assert!(!a.watch("job").unwrap().is_leader());
    // It is told in any case, and never left waiting. Who asks again is elected.
    let waited = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    let new = match waited {
        Ok(guard) => guard.unwrap(),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            elected(&b).await
        }
    };
    assert_ne!(new.fence().domain(), old.fence().domain());
    assert!(old.extend(world.unit).await.is_err());
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(new.check(), Ok(()));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

async fn elected(elector: &LeaderElector) -> highwater_client::leader::LeaderGuard {
    let started = Instant::now();
    loop {
        match elector.try_acquire("job").await {
            Ok(guard) => return guard.unwrap(),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        assert!(started.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}

/// redisson: a renewal outlives the unlock.
pub(crate) async fn nothing_is_held_or_extended_after_many_acquires_cancels_and_releases(
    world: &World,
) {
    let options = world.options().wait(600 * world.unit);
    let a = world.elector("a", options.auto_extend(true)).await;
    let rounds = if world.is_virtual() { 10_000 } else { 1_000 };
    for round in 0..rounds {
        match round % 4 {
            0 => {
                let guard = a.try_acquire("job").await.unwrap().unwrap();
                guard.release().await;
            }
            1 => drop(a.try_acquire("job").await.unwrap().unwrap()),
            2 => {
                // Dropped at some moment between the request and the answer, or later.
                let acquire = a.try_acquire("job");
                let moment = Duration::from_micros(round % 997);
                drop(timeout(moment, acquire).await);
            }
            _ => {
                let run = a.run_if_leader("job", |leader| async move {
                    leader.extend(Duration::from_secs(600)).await
                });
                assert!(run.await.unwrap().unwrap().is_ok());
            }
        }
    }
    world.is_free(&a, "job").await;
    world
        .until("all terms are over", async || {
            let stats = a.stats();
            stats.elected == stats.released + stats.revoked
        })
        .await;
    let extended = a.stats().extended;
    // Two times what is between extensions.
    world.pass(14).await;
    assert_eq!(a.stats().extended, extended);
    assert_eq!(a.stats().extensions_failed, 0);
}
