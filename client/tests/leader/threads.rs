//! Leader election without async.
#![cfg(feature = "blocking")]

use std::time::Duration;

use highwater_client::leader::blocking::{LeaderElector, LeaderGroupElector};
use highwater_client::leader::{
    InProcess, LeaderGroupOptions, LeaderResult, LeaseEnd, NotLeader, RenewError,
};
use highwater_client::{Key, Lost};

use crate::{SECOND, options};

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
