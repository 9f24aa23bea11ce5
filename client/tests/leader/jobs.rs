//! Schedules and campaigns.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::Key;
use highwater_client::leader::{
    BackendError, Cause, InProcess, LeaderElector, LeaderError, OptionsError,
};
use tokio::time::{Instant, sleep, timeout};

use crate::faulty::{Fault, Faulty};
use crate::moody::Moody;
use crate::{Bomb, SECOND, candidate, elector, options};

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

#[tokio::test(start_paused = true)]
async fn a_campaign_does_not_take_the_value_of_a_run_whose_lease_was_lost() {
    let service = InProcess::new();
    let a = candidate(&service, "a");
    let runs = AtomicU32::new(0);
    let campaign = a.campaign("job", |_| async {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        if run == 0 {
            // Noticed by the release, after the value is there.
            service.force_release(&Key::new("job").unwrap());
        }
        run
    });
    assert_eq!(campaign.await.unwrap(), 1);
    assert_eq!(a.stats().revoked, 1);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_survives_panics_of_destructors_and_of_the_backend() {
    let candidacies = AtomicU32::new(0);
    let moody = Moody {
        service: InProcess::new(),
        mood: move |_: &_| {
            let candidacy = candidacies.fetch_add(1, Ordering::Relaxed);
            assert_ne!(candidacy, 0, "in the backend, on purpose");
            Ok(true)
        },
    };
    let a = LeaderElector::new(moody, options("a").build().unwrap());
    let runs = Arc::new(AtomicU32::new(0));
    let schedule = a.schedule("job", SECOND, {
        let runs = Arc::clone(&runs);
        move |_| {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            async move {
                match run {
                    // Its lease ends: it is cut off.
                    0 => {
                        let _bomb = Bomb;
                        std::future::pending().await
                    }
                    1 => std::panic::panic_any(Bomb),
                    2 => Ok(Some(Bomb)),
                    3 => Err(Some(Bomb)),
                    _ => Ok(None),
                }
            }
        }
    });
    let schedule = schedule.unwrap();
    sleep(100 * SECOND).await;
    assert!(!schedule.is_finished());
    assert!(runs.load(Ordering::Relaxed) > 10);
    assert_eq!((a.stats().actions_failed, a.stats().panicked), (1, 1));
    schedule.stop().await;
    assert!(a.state("job").await.unwrap().is_free());
}

#[tokio::test(start_paused = true)]
async fn a_campaign_rests_when_its_candidacies_end_at_once() {
    let candidacies = Arc::new(AtomicU32::new(0));
    let moody = Moody {
        service: InProcess::new(),
        mood: {
            let candidacies = Arc::clone(&candidacies);
            // It must not be asked without end, or the test has none.
            move |_: &_| Ok(candidacies.fetch_add(1, Ordering::Relaxed) > 1_000)
        },
    };
    let a = LeaderElector::new(moody, options("a").build().unwrap());
    assert!(
        timeout(100 * SECOND, a.campaign("job", |_| async {}))
            .await
            .is_err()
    );
    // 0.1 s, twice as long each time, at most 5 s; less a half by chance.
    let candidacies = candidacies.load(Ordering::Relaxed);
    assert!((20..=50).contains(&candidacies), "{candidacies}");
}

#[tokio::test(start_paused = true)]
async fn a_campaign_keeps_its_place_before_those_who_come_later() {
    let service = InProcess::new();
    let holder = elector(&service, options("holder").auto_extend(true));
    let held = holder.try_acquire("job").await.unwrap().unwrap();
    let led = Arc::new(Mutex::new(Vec::new()));
    let a = candidate(&service, "a");
    let campaign = tokio::spawn({
        let (a, led) = (a.clone(), Arc::clone(&led));
        async move {
            a.campaign("job", |_| async { led.lock().unwrap().push("a") })
                .await
        }
    });
    sleep(30 * SECOND).await;
    let b = elector(&service, options("b").wait(3_600 * SECOND));
    let run = tokio::spawn({
        let led = Arc::clone(&led);
        async move {
            b.run_if_leader("job", |_| async { led.lock().unwrap().push("b") })
                .await
        }
    });
    sleep(3_000 * SECOND).await;
    held.release().await;
    campaign.await.unwrap().unwrap();
    assert_eq!(run.await.unwrap().unwrap(), Some(()));
    assert_eq!(*led.lock().unwrap(), ["a", "b"]);
    assert_eq!(a.stats().skipped, 0);
}

#[tokio::test(start_paused = true)]
async fn a_campaign_waits_for_less_where_so_long_a_wait_is_refused() {
    let refused = || BackendError::Rejected(Cause::new("a wait like that"));
    for (longest, is_elected) in [(60 * SECOND, true), (SECOND, false)] {
        let service = InProcess::new();
        let moody = Moody {
            service: service.clone(),
            mood: move |candidacy: &highwater_client::leader::Candidacy| {
                let refused = refused();
                (candidacy.wait <= longest).then_some(true).ok_or(refused)
            },
        };
        let a = LeaderElector::new(moody, options("a").build().unwrap());
        let held = candidate(&service, "b").try_acquire("job").await.unwrap();
        let campaign = a.campaign("job", |_| async { 7 }).await;
        drop(held);
        match campaign {
            Ok(value) => assert!(is_elected && value == 7),
            Err(error) => {
                let is_refusal =
                    matches!(&error, LeaderError::Backend(error) if *error == refused());
                assert!(!is_elected && is_refusal, "{error:?}");
            }
        }
    }
}
