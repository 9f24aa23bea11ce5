//! A backend that answers releases and does not do them. Its leases run out, and the contract must not take
//! that for giving them back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_client::leader::contract::{self, Memory, Service};
use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Clock, Grant, LeaderState, Lease, NotLeader,
    RenewError,
};
use highwater_client::{Key, Lost, Release};

use crate::table::Table;

/// Which releases are done.
#[derive(Clone, Copy, Debug)]
enum Done {
    None,
    /// Those whose futures somebody polls to their end.
    Polled,
    All,
}

struct Forgetful(Table, Done);

impl Service for Forgetful {
    fn unit(&self) -> Duration {
        self.0.unit()
    }

    fn is_virtual(&self) -> bool {
        true
    }

    async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        let inner = self.0.backend(node).await;
        Arc::new(ForgetfulBackend(inner, self.1))
    }

    async fn force_release(&self, name: &Key) {
        self.0.force_release(name).await;
    }

    async fn restart(&self) -> Memory {
        self.0.restart().await
    }

    async fn outage(&self, lasts: bool) {
        self.0.outage(lasts).await;
    }
}

struct ForgetfulBackend(Arc<dyn Backend>, Done);

impl Backend for ForgetfulBackend {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let (acquire, done) = (self.0.acquire(candidacy), self.1);
        Box::pin(async move {
            let lease = acquire.await?.map(|inner| {
                let is_over = AtomicBool::new(false);
                Arc::new(ForgetfulLease(inner, done, is_over)) as Arc<dyn Lease>
            });
            Ok(lease)
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        self.0.state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

struct ForgetfulLease(Arc<dyn Lease>, Done, AtomicBool);

impl Lease for ForgetfulLease {
    fn grant(&self) -> &Grant {
        self.0.grant()
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        match self.2.load(Ordering::SeqCst) {
            true => Err(Lost::NotHeld),
            false => self.0.remaining(),
        }
    }

    fn lost(&self) -> BoxFuture<Lost> {
        self.0.lost()
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        match self.2.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(NotLeader::Ended.into()) }),
            false => self.0.extend(lease),
        }
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.2.store(true, Ordering::SeqCst);
        let inner = Arc::clone(&self.0);
        match self.1 {
            Done::None => Box::pin(async { Ok(Release::Released) }),
            Done::Polled => Box::pin(async move { inner.release().await }),
            Done::All => inner.release(),
        }
    }
}

/// Whether this case of the contract finds fault with the backend.
fn fails<F: Future<Output = ()>>(case: impl FnOnce(Forgetful) -> F, done: Done) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let played = || runtime.block_on(case(Forgetful(Table::default(), done)));
    catch_unwind(AssertUnwindSafe(played)).is_err()
}

/// Those of these cases that find no fault, and all of them.
macro_rules! fooled {
    ($done:expr, $($case:ident)*) => {{
        let mut fooled = Vec::new();
        $(if !fails(contract::$case, $done) {
            fooled.push(stringify!($case));
        })*
        (fooled, [$(stringify!($case)),*])
    }};
}

#[test]
fn a_lease_that_only_runs_out_is_not_given_back() {
    // Those that pass where all is done fail for no other reason.
    for done in [Done::None, Done::All] {
        let (fooled, cases) = fooled! {
            done,
            one_leads_at_a_time_and_tokens_grow
            an_action_that_fails_gives_its_error_and_the_lease_back
            candidates_are_elected_in_the_order_of_their_coming
            the_lock_is_not_reentrant_also_for_an_elector_made_anew
            a_dropped_candidacy_is_never_elected
            a_minimum_lease_keeps_everybody_out_however_its_action_ends
            a_release_that_comes_late_touches_no_later_term_of_the_same_process
            a_lease_that_is_given_back_is_over_from_the_call_on
            a_retained_lease_is_extended_by_nobody
            a_grant_that_came_too_late_leads_nobody_and_is_given_back
            a_dropped_run_gives_its_lease_back
            a_panic_gives_its_lease_back
            the_lease_is_kept_until_cancelled_work_is_at_rest
            nothing_is_held_or_extended_after_many_acquires_cancels_and_releases
            what_is_dropped_at_any_step_leaves_nothing_behind
            a_stream_leads_as_long_as_it_lives
        };
        match done {
            Done::All => assert_eq!(fooled, cases),
            _ => assert!(fooled.is_empty(), "{fooled:?}"),
        }
    }
}

#[test]
fn the_call_alone_has_to_be_enough_for_a_release() {
    let case = contract::a_lease_that_is_given_back_is_over_from_the_call_on;
    assert!(fails(case, Done::Polled));
    // It has no other fault.
    let case = contract::an_action_that_fails_gives_its_error_and_the_lease_back;
    assert!(!fails(case, Done::Polled));
}
