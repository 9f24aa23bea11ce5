//! What every [`Backend`] has to show, to be run against yours: the feature `leader-contract`.
//!
//! Implement [`Service`] for what starts and breaks your lock service in a test, and name it in
//! [`leader_contract`](crate::leader_contract), which writes one test for each case:
//!
//! ```
//! # mod tests {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use highwater_client::Key;
//! use highwater_client::leader::contract::{Memory, Service};
//! use highwater_client::leader::{Backend, InProcess};
//!
//! struct Mine(InProcess);
//!
//! impl Service for Mine {
//!     fn unit(&self) -> Duration {
//!         Duration::from_secs(1) // of virtual time
//!     }
//!
//!     fn is_virtual(&self) -> bool {
//!         true
//!     }
//!
//!     async fn backend(&self, _node: &str) -> Arc<dyn Backend> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     async fn force_release(&self, name: &Key) {
//!         self.0.force_release(name);
//!     }
//!
//!     async fn restart(&self) -> Memory {
//!         self.0.restart();
//!         Memory::Lost
//!     }
//!
//!     async fn outage(&self, _lasts: bool) {
//!         todo!("let nobody reach it")
//!     }
//! }
//!
//! highwater_client::leader_contract! {
//!     #[tokio::test(start_paused = true)] =>
//!     Mine(InProcess::new())
//! }
//! # }
//! ```
//!
//! A whole backend that is no more than this contract asks for, and its tests, are in
//! `client/tests/contract` of the repository.
//!
//! A case fails by a panic that says what is wrong. It reaches the service through electors, and in a
//! few cases through the [`Lease`](super::Lease) itself. It uses names of its own choice, so give each a
//! service in which nothing is held.
#![expect(
    missing_docs,
    clippy::unwrap_used,
    reason = "each case is a test: its name is what it shows, and it may panic"
)]

mod comebacks;
mod elections;
mod endings;
mod faulty;
mod grants;
mod leases;
mod policies;
mod steps;
mod views;
mod world;

use std::sync::Arc;
use std::time::Duration;

use super::Backend;
use crate::Key;

pub use comebacks::*;
pub use elections::*;
pub use endings::*;
pub use grants::*;
pub use leases::*;
pub use policies::*;
pub use steps::*;
pub use views::*;

/// A lock service under test, and what a test can do to it.
pub trait Service: Send + Sync {
    /// A short time in which the service answers with certainty. Leases last from 5 of them up, and are
    /// lost a twentieth before their end; so with real time a tenth of a second is about the least.
    /// The longest leases, of which a name has to be free long before their end, last for a quarter of an
    /// hour; in virtual time for 1,000 of them.
    fn unit(&self) -> Duration;

    /// Whether Tokio's time is paused, so that cases may be exact. Else they allow for a machine that is
    /// busy.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Whether trouble of its own on a busy machine may leave a lease to its end, as a cluster does that changes
    /// its leader under a request. Then the cases wait for that end where time is real, and cannot tell a
    /// lease that was given back late from one that ran out.
    fn may_leave_leases(&self) -> bool {
        false
    }

    /// How many leaders come and go in the case that looks for what they leave behind.
    fn rounds(&self) -> u32 {
        10_000
    }

    /// A backend for this node, with connections of its own, or those it had before.
    fn backend(&self, node: &str) -> impl Future<Output = Arc<dyn Backend>>;

    /// Ends whatever holds this name, as an operator does.
    fn force_release(&self, name: &Key) -> impl Future<Output = ()>;

    /// Ends the service as a crash does and starts it again; what it remembers then.
    fn restart(&self) -> impl Future<Output = Memory>;

    /// While an outage lasts, nobody reaches the service: it neither takes requests nor answers. When it
    /// is over, backends reach it again by themselves.
    fn outage(&self, lasts: bool) -> impl Future<Output = ()>;
}

/// What a service knows after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nothing: its tokens are of another domain, and all leases are over.
    Lost,
    /// All leases that were not over, and the last token.
    Kept,
}

/// Writes a test for each case of the [contract](crate::leader::contract), with these attributes, for
/// the service that the expression gives. It may `await`.
///
/// Each test is an `async fn` by the name of its case, so put them in a module of their own.
#[macro_export]
macro_rules! leader_contract {
    ($(#[$attribute:meta])+ => $service:expr) => {
        $crate::__leader_contract! {
            cases [$(#[$attribute])+] [$service]
            one_leads_at_a_time_and_tokens_grow
            contention_ends_after_the_wait_and_is_no_error
            a_value_that_is_none_is_still_elected
            an_action_that_fails_gives_its_error_and_the_lease_back
            candidates_are_elected_in_the_order_of_their_coming
            the_lock_is_not_reentrant_also_for_an_elector_made_anew
            a_dropped_candidacy_is_never_elected
            a_group_has_so_many_leaders_with_slots_and_fences_of_their_own
            another_number_of_slots_is_refused_and_no_contention
            tenants_do_not_meet
            a_lease_that_is_not_extended_is_lost_before_another_one_is_elected
            a_lease_that_extends_itself_outlives_its_time
            an_extension_by_hand_lengthens_the_lease
            a_minimum_lease_keeps_everybody_out_however_its_action_ends
            a_stale_token_touches_no_successor
            an_operator_ends_a_leadership_and_the_next_extension_notices
            an_operator_ends_a_leadership_and_the_release_notices
            a_service_that_starts_anew_keeps_its_leader_or_ends_it_and_leaves_no_candidate_waiting
            a_leader_that_comes_back_behind_its_successor_changes_nothing
            a_release_that_comes_late_touches_no_later_term_of_the_same_process
            a_lease_is_counted_from_before_it_was_asked_for_and_ends_for_good
            a_lease_that_is_given_back_is_over_from_the_call_on
            a_retained_lease_is_extended_by_nobody
            a_grant_that_came_too_late_leads_nobody_and_is_given_back
            extensions_that_fail_are_tried_again_and_end_in_a_loss_that_is_told
            a_dropped_run_gives_its_lease_back
            a_panic_gives_its_lease_back
            the_lease_is_kept_until_cancelled_work_is_at_rest
            nothing_is_held_or_extended_after_many_acquires_cancels_and_releases
            what_is_dropped_at_any_step_leaves_nothing_behind
            what_is_kept_and_not_polled_any_more_keeps_nobody_out_for_ever
            every_policy_against_everything_that_can_happen
            a_state_tells_who_leads_who_waits_and_what_is_retained
            events_and_levels_tell_of_each_term_once
            a_schedule_survives_errors_and_elects_with_higher_tokens
            a_campaign_goes_on_after_a_loss_with_a_higher_token
            a_stream_leads_as_long_as_it_lives
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __leader_contract {
    (cases $attributes:tt $service:tt $($case:ident)*) => {
        $($crate::__leader_contract! { case $case $attributes $service })*
    };
    (case $case:ident [$($attribute:tt)*] [$service:expr]) => {
        $($attribute)*
        async fn $case() {
            $crate::leader::contract::$case($service).await;
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_case_is_in_the_list() {
        let sources = [
            include_str!("comebacks.rs"),
            include_str!("elections.rs"),
            include_str!("endings.rs"),
            include_str!("grants.rs"),
            include_str!("leases.rs"),
            include_str!("policies.rs"),
            include_str!("steps.rs"),
            include_str!("views.rs"),
        ];
        let mut cases: Vec<&str> = Vec::new();
        for source in sources {
            let found = source.lines().filter_map(|line| {
                let name = line.strip_prefix("pub async fn ")?;
                name.split('(').next()
            });
            cases.extend(found);
        }
        let this = include_str!("mod.rs");
        let list = this.split("cases [$(#[$attribute])+] [$service]").nth(1);
        let list = list.and_then(|list| list.split('}').next()).unwrap();
        let mut listed: Vec<&str> = list.split_whitespace().collect();
        assert!(cases.len() > 30, "{cases:?}");
        cases.sort_unstable();
        listed.sort_unstable();
        assert_eq!(cases, listed);
    }
}
