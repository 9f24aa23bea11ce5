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
        // To others it makes no difference whether somebody leads.
        let asks = policy == FailurePolicy::FailOpen;
        let mut before = None;
        let mut unknown = None;
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut rest = wait;
        let failure = loop {
            // From the first request without an answer on, this candidate itself may be who holds the name.
            if asks && before.is_none() && unknown.is_none() {
                let within = rest.saturating_sub(wait / 2).min(QUESTIONS);
                before = self.leaders(name, within, QUESTION.min(wait / 4)).await;
                rest = left();
            }
            let options = LeaderOptions {
                // Zero would be one try, with a time of its own and without a place in the queue.
                wait: rest.max(SHORTEST),
                ..self.options.clone()
            };
            let error = match self.elect(name, &options).await {
                Ok(Some(guard)) => return Ok(Some(guard)),
                Ok(None) => break unknown,
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
            rest = left();
            if rest < FIRST_PAUSE {
                self.clock.sleep(rest).await;
                // Nothing is held only if that is certain for each attempt.
                break Some(unknown.unwrap_or(error));
            }
        };
        match failure {
            Some(failure) if !self.still_led(name, before).await => {
                Err(LeaderError::Backend(failure))
            }
            _ => {
                self.hub.skipped(name, &self.node);
                Ok(None)
            }
        }
    }

    /// Whether it is known who led before this candidate asked for anything, and that they still keep everybody
    /// out.
    async fn still_led(&self, name: &Key, before: Option<Vec<FencingToken>>) -> bool {
        let places = self.slots.map_or(1, std::num::NonZeroU32::get);
        let fills = |holders: usize| u32::try_from(holders).unwrap_or(u32::MAX) >= places;
        let Some(before) = before.filter(|before| fills(before.len())) else {
            return false;
        };
        let after = self.leaders(name, LAST_QUESTIONS, QUESTION).await;
        let after = after.unwrap_or_default();
        fills(after.iter().filter(|token| before.contains(token)).count())
    }

    /// The tokens of those who hold a name; `None` if the backend does not tell within this time. It is asked
    /// again when one question has no answer for `each`.
    async fn leaders(
        &self,
        name: &Key,
        within: Duration,
        each: Duration,
    ) -> Option<Vec<FencingToken>> {
        let until = self.clock.elapsed() + within;
        let left = || until.saturating_sub(self.clock.elapsed());
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let rest = left();
            if rest.is_zero() {
                return None;
            }
            let state = tokio::select! {
                biased;
                state = self.backend.state(name.clone()) => state,
                () = self.clock.sleep(each.max(SHORTEST).min(rest)) => continue,
            };
            match state {
                Ok(state) => {
                    let holders = state.holders.into_iter();
                    return Some(holders.map(|holder| holder.token).collect());
                }
                Err(error) if error.is_outage() => {
                    self.clock.sleep(pauses.next().min(left())).await;
                }
                Err(_) => return None,
            }
        }
    }
}

/// How long the answer to one question who leads is waited for, at most; there is time for two of them in half
/// of the wait.
const QUESTION: Duration = Duration::from_secs(1);
/// How long it is asked at most before a candidacy is sent. Half of the wait is kept for that in any case.
const QUESTIONS: Duration = Duration::from_secs(5);
/// How long it is asked at most behind the wait.
pub(super) const LAST_QUESTIONS: Duration = Duration::from_secs(2);
/// The least that is waited for anything.
const SHORTEST: Duration = Duration::from_millis(1);
/// The first pause before a candidacy is made again; it doubles with each further one. No candidacy is made again
/// with less than that left.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
