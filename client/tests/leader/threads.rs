//! Leader election without async.
#![cfg(feature = "blocking")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use highwater_client::leader::blocking::{
    LeaderElector, LeaderGroupElector, ScheduleError, StrategicElector,
};
use highwater_client::leader::{
    Candidates, FailurePolicy, Fifo, InProcess, LeaderError, LeaderGroupOptions, LeaderResult,
    LeaseEnd, NotLeader, PolicyResult, RenewError,
};
use highwater_client::{Key, Lost};

use crate::faulty::{Fault, Faulty};
use crate::moody::Moody;
use crate::{Bomb, SECOND, options};

fn elector(service: &InProcess, node: &str) -> LeaderElector {
    let options = options(node).build().unwrap();
    LeaderElector::new(service.clone(), options).unwrap()
}

#[test]
fn the_action_runs_in_the_calling_thread_and_its_lease_is_given_back() {
    let service = InProcess::new();
    let (a, b) = (elector(&service, "a"), elector(&service, "b"));
    let here = std::thread::current().id();
    let ran = a.run_if_leader("job", |leader| {
        assert_eq!(leader.check(), Ok(()));
        assert!(leader.fence().is_some() && leader.slot().is_none());
        leader.extend(60 * SECOND).unwrap();
        assert!(leader.remaining() > 50 * SECOND);
        assert_eq!(leader.lost(Duration::from_millis(10)), None);
        assert_eq!(b.run_if_leader("job", |_| ()).unwrap(), None);
        std::thread::current().id()
    });
    assert_eq!(ran.unwrap(), Some(here));
    let ran = b.run_if_leader_result("job", |_| Err::<(), _>("no"));
    assert!(matches!(
        ran.unwrap(),
        LeaderResult::ActionFailed { cause: "no", .. }
    ));
    let guard = a.try_acquire("job").unwrap().unwrap();
    assert_eq!(a.state("job").unwrap().holders[0].token, guard.token());
    assert_eq!(guard.release().end, LeaseEnd::Released);
    assert!(a.state("job").unwrap().is_free());
    assert_eq!((a.stats().elected, b.stats().skipped), (2, 1));
}

#[test]
fn a_panic_gives_the_lease_back_and_goes_on() {
    let service = InProcess::new();
    let a = elector(&service, "a");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        a.run_if_leader("job", |_| panic!("on purpose"))
    }));
    assert!(caught.is_err());
    assert!(a.state("job").unwrap().is_free());
    assert_eq!(a.stats().panicked, 1);
}

#[test]
fn a_lease_is_extended_while_the_action_computes() {
    let service = InProcess::new();
    let lease = Duration::from_secs(1);
    let options = options("a").lease(lease).auto_extend(true).build().unwrap();
    let a = LeaderElector::new(service, options).unwrap();
    let ran = a.run_if_leader_result("job", |leader| {
        std::thread::sleep(lease * 2);
        leader.check()
    });
    let LeaderResult::Elected { term, .. } = ran.unwrap() else {
        panic!("it was extended");
    };
    assert!(term.extensions >= 2);
}

#[test]
fn a_lost_lease_is_told_at_the_end_and_to_who_asks() {
    let service = InProcess::new();
    let lease = Duration::from_millis(200);
    let options = options("a").lease(lease).build().unwrap();
    let a = LeaderElector::new(service.clone(), options).unwrap();
    let ran = a.run_if_leader_result("job", |leader| {
        let lost = leader.lost(20 * SECOND);
        assert_eq!(lost, Some(NotLeader::Lost(Lost::Expired)));
        assert!(matches!(
            leader.extend(SECOND),
            Err(RenewError::NotLeader(_))
        ));
        Ok::<_, ()>(7)
    });
    let ran = ran.unwrap();
    assert!(
        matches!(
            ran,
            LeaderResult::LeaseLost {
                reason: Lost::Expired,
                outcome: Some(Ok(7)),
                ..
            }
        ),
        "{ran:?}"
    );
    assert!(
        a.run_if_leader("job", |_| service.force_release(&Key::new("job").unwrap()))
            .is_err()
    );
}

#[test]
fn a_dropped_guard_gives_its_lease_back_although_its_elector_is_gone() {
    let service = InProcess::new();
    let a = elector(&service, "a").for_tenant("acme").unwrap();
    let guard = a.try_acquire("job").unwrap().unwrap();
    assert_eq!(guard.name().as_str(), "acme/job");
    drop(a);
    assert_eq!(guard.check(), Ok(()));
    drop(guard);
    let b = elector(&service, "b").for_tenant("acme").unwrap();
    assert!(b.state("job").unwrap().is_free());
    let group = LeaderGroupElector::new(service, LeaderGroupOptions::default()).unwrap();
    let guards = (
        group.try_acquire("pool").unwrap().unwrap(),
        group.try_acquire("pool").unwrap().unwrap(),
    );
    assert_eq!((guards.0.slot(), guards.1.slot()), (Some(0), Some(1)));
}

#[test]
fn a_schedule_survives_errors_and_panics_and_stops_after_its_run() {
    let service = InProcess::new();
    let a = elector(&service, "a");
    let (sender, runs) = mpsc::channel();
    let mut count = 0;
    let schedule = a.schedule("job", Duration::from_millis(5), move |leader| {
        count += 1;
        sender.send(leader.token().unwrap()).unwrap();
        match count {
            1 => Err("no"),
            2 => panic!("on purpose"),
            _ => Ok(()),
        }
    });
    let schedule = schedule.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(runs.recv_timeout(20 * SECOND).unwrap());
    }
    schedule.stop();
    assert!(tokens.is_sorted_by(|one, next| one < next));
    // Those that ran before it stopped, and then the sender is gone.
    while runs.try_recv().is_ok() {}
    assert_eq!(runs.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    assert!(a.state("job").unwrap().is_free());
    let stats = a.stats();
    assert_eq!((stats.actions_failed, stats.panicked), (1, 1));
    let never = a.schedule("job", Duration::ZERO, |_| Ok::<_, ()>(()));
    assert!(matches!(never, Err(ScheduleError::Leader(_))));
}

#[test]
fn a_campaign_waits_for_its_turn_and_goes_on_after_a_loss() {
    let service = InProcess::new();
    let (a, b) = (elector(&service, "a"), elector(&service, "b"));
    let holder = b.try_acquire("job").unwrap().unwrap();
    let campaign = std::thread::spawn({
        let (a, service) = (a.clone(), service.clone());
        move || {
            let mut tokens = Vec::new();
            a.campaign("job", |leader| {
                tokens.push(leader.token().unwrap());
                if tokens.len() == 1 {
                    service.force_release(&Key::new("job").unwrap());
                }
                tokens.len()
            })
            .map(|runs| (runs, tokens))
        }
    });
    let started = Instant::now();
    while a.state("job").unwrap().waiting == 0 {
        assert!(started.elapsed() < 20 * SECOND);
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = holder.token();
    holder.release();
    let (runs, tokens) = campaign.join().unwrap().unwrap();
    assert_eq!(runs, 2);
    assert!(before < tokens[0] && tokens[0] < tokens[1]);
    assert!(a.campaign("not a name", |_| ()).is_err());
}

#[test]
fn a_schedule_that_is_stopped_or_dropped_gives_its_candidacy_up_and_begins_nothing() {
    for stops in [true, false] {
        let service = InProcess::new();
        let patient = options("a").wait(3_600 * SECOND).build().unwrap();
        let a = LeaderElector::new(service.clone(), patient).unwrap();
        let held = elector(&service, "b").try_acquire("job").unwrap().unwrap();
        let ran = Arc::new(AtomicBool::new(false));
        let schedule = a.schedule("job", SECOND, {
            let ran = Arc::clone(&ran);
            move |_| {
                ran.store(true, Ordering::SeqCst);
                Ok::<_, ()>(())
            }
        });
        let schedule = schedule.unwrap();
        eventually(|| a.state("job").unwrap().waiting == 1);
        let ended = std::thread::spawn(move || match stops {
            true => schedule.stop(),
            false => drop(schedule),
        });
        eventually(|| a.state("job").unwrap().waiting == 0);
        ended.join().unwrap();
        assert_eq!(held.release().end, LeaseEnd::Released);
        assert!(a.state("job").unwrap().is_free());
        assert!(!ran.load(Ordering::SeqCst));
    }
}

#[test]
fn a_schedule_survives_panics_of_destructors() {
    let a = elector(&InProcess::new(), "a");
    let runs = Arc::new(AtomicU32::new(0));
    let schedule = a.schedule("job", Duration::from_millis(1), {
        let runs = Arc::clone(&runs);
        move |_| match runs.fetch_add(1, Ordering::SeqCst) {
            0 => std::panic::panic_any(Bomb),
            1 => Ok(Some(Bomb)),
            2 => Err(Some(Bomb)),
            _ => Ok(None),
        }
    });
    let schedule = schedule.unwrap();
    eventually(|| runs.load(Ordering::SeqCst) > 3 || schedule.is_finished());
    assert!(!schedule.is_finished());
    schedule.stop();
    assert!(a.state("job").unwrap().is_free());
}

#[test]
fn a_campaign_rests_when_its_candidacies_end_at_once() {
    let candidacies = Arc::new(AtomicU32::new(0));
    let moody = Moody {
        service: InProcess::new(),
        mood: {
            let candidacies = Arc::clone(&candidacies);
            move |_: &_| Ok(candidacies.fetch_add(1, Ordering::Relaxed) == 3)
        },
    };
    let a = LeaderElector::new(moody, options("a").build().unwrap()).unwrap();
    let started = Instant::now();
    assert_eq!(a.campaign("job", |_| 7).unwrap(), 7);
    assert_eq!(candidacies.load(Ordering::Relaxed), 4);
    // 0.1 s, 0.2 s and 0.4 s, less a half by chance.
    assert!(started.elapsed() >= Duration::from_millis(350));
}

#[track_caller]
#[test]
fn a_policy_decides_what_is_done_without_a_lock_service() {
    let service = InProcess::new();
    let faulty = Faulty::new(service.clone());
    let a = LeaderElector::new(faulty.clone(), options("a").build().unwrap()).unwrap();
    let policies = [
        FailurePolicy::Error,
        FailurePolicy::Skip,
        FailurePolicy::FailOpen,
    ];
    for policy in policies {
        let mut runs = 0;
        faulty.acquire(Fault::None);
        let run = a.run_with_policy("job", policy, |leader| {
            runs += 1;
            leader.token().ok_or("no token")
        });
        let result = run.unwrap();
        assert!(
            matches!(&result, PolicyResult::Held(LeaderResult::Elected { value, term })
                if *value == term.token),
            "{result:?}"
        );
        let rival = elector(&service, "b").try_acquire("job").unwrap().unwrap();
        let skipped = a.run_with_policy("job", policy, |_| Err::<(), _>("it must not run"));
        let held = PolicyResult::Held(LeaderResult::Skipped);
        assert_eq!(skipped.unwrap(), held);
        drop(rival);
        faulty.acquire(Fault::Fails);
        let run = a.run_with_policy("job", policy, |leader| {
            runs += 1;
            assert_eq!((leader.fence(), leader.check()), (None, Ok(())));
            assert_eq!(leader.lost(Duration::from_millis(5)), None);
            assert!(matches!(
                leader.extend(SECOND),
                Err(RenewError::Unprotected)
            ));
            Err::<(), _>("its own")
        });
        match (policy, run) {
            (FailurePolicy::Error, Err(LeaderError::Backend(error))) if error.is_outage() => {}
            (FailurePolicy::Skip, Ok(PolicyResult::SkippedByFailure { .. })) => {}
            (FailurePolicy::FailOpen, Ok(PolicyResult::Unprotected { outcome, .. })) => {
                assert_eq!(outcome, Err("its own"));
            }
            (policy, other) => panic!("{policy:?}: {other:?}"),
        }
        assert_eq!(
            runs,
            if policy == FailurePolicy::FailOpen {
                2
            } else {
                1
            }
        );
    }
    assert!(
        a.run_with_policy("not a name", policies[2], |_| Ok::<(), ()>(()))
            .is_err()
    );
    assert_eq!((a.stats().unprotected, a.stats().elected), (1, 3));
}

#[test]
fn only_who_is_chosen_stands_and_its_turn_is_over_also_after_a_panic() {
    let service = InProcess::new();
    let registry = Candidates::new(600 * SECOND);
    let [a, b] = ["a", "b"]
        .map(|node| StrategicElector::new(elector(&service, node), registry.clone(), Fifo));
    let ran = |of: &StrategicElector| {
        let result = of.run_if_leader_result("job", |leader| leader.check());
        matches!(result.unwrap(), LeaderResult::Elected { .. })
    };
    assert!(ran(&a));
    // Now it stands behind the other one, as soon as that one is there.
    assert!(!ran(&b), "a was there first");
    assert!(ran(&a));
    assert!(!ran(&a));
    let panics = std::panic::AssertUnwindSafe(|| {
        b.run_if_leader_result("job", |_| -> Result<(), ()> { panic!("on purpose") })
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    eventually(|| ran(&a));
    // Who is chosen still has to take the lock.
    b.withdraw("job").unwrap();
    let outsider = elector(&service, "c").try_acquire("job").unwrap().unwrap();
    assert!(!ran(&a));
    outsider.release();
    assert!(ran(&a));
    assert!(
        b.run_if_leader_result("not a name", |_| Ok::<(), ()>(()))
            .is_err()
    );
    assert_eq!(b.elector().stats().panicked, 1);
    assert!(ran(&a.clone().with_score(7)));
}

fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + 10 * SECOND;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What panics in the elector's thread is a fault of a program and no outage: nothing runs unprotected.
#[test]
fn a_backend_that_panics_is_told_by_its_panic_under_every_policy() {
    for fault in [Fault::Panics, Fault::PanicsLater] {
        for policy in [
            FailurePolicy::Error,
            FailurePolicy::Skip,
            FailurePolicy::FailOpen,
        ] {
            let backend = Faulty::new(InProcess::new());
            backend.acquire(fault);
            let options = options("a").build().unwrap();
            let elector = LeaderElector::new(backend.clone(), options).unwrap();
            let run = || elector.run_with_policy("job", policy, |_| Ok::<_, ()>(()));
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(ran.is_err(), "{fault:?} {policy:?}: {ran:?}");
            backend.acquire(Fault::None);
            assert_eq!(elector.run_if_leader("job", |_| 7).unwrap(), Some(7));
        }
    }
}
