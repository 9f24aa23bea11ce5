//! Options are checked when they are put together.

use std::time::Duration;

use highwater_client::leader::{
    LeaderGroupOptions, LeaderOptions, LossPolicy, NodeId, OptionsError,
};

use crate::SECOND;

#[test]
fn the_defaults_are_five_seconds_a_minute_nothing_and_two() {
    let options = LeaderOptions::builder().build().unwrap();
    assert_eq!(options, LeaderOptions::default());
    assert_eq!(options.wait(), 5 * SECOND);
    assert_eq!(options.lease(), 60 * SECOND);
    assert_eq!(options.min_lease(), Duration::ZERO);
    assert!(!options.auto_extend());
    assert_eq!(options.on_loss(), LossPolicy::Cancel);
    assert_eq!(options.node(), None);
    let group = LeaderGroupOptions::builder().build().unwrap();
    assert_eq!(group, LeaderGroupOptions::default());
    assert_eq!((group.slots().get(), group.each()), (2, &options));
}

#[test]
fn each_time_is_within_its_bounds() {
    let hour = Duration::from_secs(3_600);
    let more = hour + Duration::from_nanos(1);
    let build = |wait, lease, min_lease| {
        let options = LeaderOptions::builder().wait(wait).lease(lease);
        options.min_lease(min_lease).build().map(|_| ())
    };
    assert_eq!(build(Duration::ZERO, hour, hour), Ok(()));
    assert_eq!(build(hour, SECOND, SECOND), Ok(()));
    let wait = OptionsError::Wait { wait: more };
    assert_eq!(build(more, SECOND, SECOND), Err(wait));
    for lease in [Duration::ZERO, more] {
        let error = OptionsError::Lease { lease };
        assert_eq!(build(SECOND, lease, Duration::ZERO), Err(error));
    }
    let min_lease = SECOND + Duration::from_nanos(1);
    let error = OptionsError::MinLease {
        min_lease,
        lease: SECOND,
    };
    assert_eq!(build(SECOND, SECOND, min_lease), Err(error));
}

#[test]
fn a_lease_that_extends_itself_is_long_enough_to_be_extended_in_time() {
    let build = |lease, auto_extend| {
        let options = LeaderOptions::builder().lease(lease);
        options.auto_extend(auto_extend).build().map(|_| ())
    };
    let lease = Duration::from_millis(299);
    assert_eq!(build(lease, false), Ok(()));
    let error = OptionsError::TooShortToExtend { lease };
    assert_eq!(build(lease, true), Err(error));
    assert_eq!(build(Duration::from_millis(300), true), Ok(()));
}

#[test]
fn a_group_has_slots_and_a_node_a_name() {
    let none = LeaderGroupOptions::builder().slots(0).build();
    assert_eq!(none, Err(OptionsError::NoSlots));
    assert!(LeaderGroupOptions::builder().slots(1).build().is_ok());
    for blank in ["", " ", "\t\n", &"n".repeat(129)] {
        let built = LeaderOptions::builder().node(blank).build();
        assert_eq!(built, Err(OptionsError::Node), "{blank:?}");
        let built = LeaderGroupOptions::builder().node(blank).build();
        assert_eq!(built, Err(OptionsError::Node), "{blank:?}");
        assert_eq!(NodeId::new(blank), Err(OptionsError::Node));
    }
    let named = LeaderOptions::builder().node("n".repeat(128)).build();
    assert!(named.is_ok());
}
