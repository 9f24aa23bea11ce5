//! Asks again while a failure may pass, before a policy decides what is done without the lock service.
//!
//! What must not happen is that an own request without an answer, whose lease may be held by nobody, is taken for
//! somebody who leads. So it is noted who leads before anything is asked for.

use std::time::Duration;

use highwater_lock::{FencingToken, Key};

use super::elector::Core;
use super::guard::LeaderGuard;
use super::{BackendError, FailurePolicy, LeaderError, LeaderOptions};
use crate::keeper::Backoff;

impl Core {
    /// A candidacy under this policy. Unless that is to tell of a failure at once, it is made again within
    /// the wait, as long as it fails in a way that may pass.
    pub(super) async fn acquire_under(
        &self,
        name: &Key,
        policy: FailurePolicy,
    ) -> Result<Option<LeaderGuard>, LeaderError> {
        let wait = self.options.wait;
        if policy == FailurePolicy::Error || wait.is_zero() {
            return self.acquire(name, &self.options).await;
        }
        let until = self.clock.elapsed() + wait;
        let left = || until.saturating_sub(self.clock.elapsed());
        let before = match policy {
            FailurePolicy::FailOpen => self.leaders(name, QUESTION.min(wait)).await,
            // It makes no difference whether somebody leads.
            _ => Vec::new(),
        };
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut unknown = None;
        loop {
            let options = LeaderOptions {
                wait: left(),
                ..self.options.clone()
            };
            let error = match self.elect(name, &options).await {
                Ok(Some(guard)) => return Ok(Some(guard)),
                Ok(None) => break,
                Err(error) => error,
            };
            self.hub.failed(name, &self.node, &error);
            if !error.is_outage() {
                return Err(LeaderError::Backend(error));
            }
            if matches!(error, BackendError::Indeterminate(_)) {
                unknown.get_or_insert_with(|| error.clone());
            }
            self.clock.sleep(pauses.next().min(left())).await;
            if left().is_zero() {
                // Nothing is held only if that is certain for each attempt.
                return Err(LeaderError::Backend(unknown.unwrap_or(error)));
            }
        }
        match unknown {
            Some(failure) if !self.still_led(name, &before).await => {
                Err(LeaderError::Backend(failure))
            }
            _ => {
                self.hub.skipped(name, &self.node);
                Ok(None)
            }
        }
    }

    /// Whether those who led before this candidate asked for anything still keep everybody out.
    async fn still_led(&self, name: &Key, before: &[FencingToken]) -> bool {
        let places = self.slots.map_or(1, std::num::NonZeroU32::get);
        if u32::try_from(before.len()).unwrap_or(u32::MAX) < places {
            return false;
        }
        let after = self.leaders(name, QUESTION).await;
        let still = after.iter().filter(|token| before.contains(token)).count();
        u32::try_from(still).unwrap_or(u32::MAX) >= places
    }

    /// The tokens of those who hold a name, as far as the backend tells it in so much time.
    async fn leaders(&self, name: &Key, within: Duration) -> Vec<FencingToken> {
        tokio::select! {
            biased;
            state = self.backend.state(name.clone()) => {
                let holders = state.map(|state| state.holders).unwrap_or_default();
                holders.into_iter().map(|holder| holder.token).collect()
            }
            () = self.clock.sleep(within) => Vec::new(),
        }
    }
}

/// How long the answer to the question who leads is waited for.
pub(super) const QUESTION: Duration = Duration::from_secs(1);
/// The first pause before a candidacy is made again; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
