//! Campaigns for a leadership that goes on, for as long as it takes.

use std::time::Duration;

use super::context::LeaderContext;
use super::elector::{Elector, Kind};
use super::run::{self, Ran, Value};
use super::{BackendError, LeaderError, LeaderOptions, TermOutcome};
use crate::keeper::Backoff;

impl<K: Kind> Elector<K> {
    /// Campaigns until the action was run to its end under a good lease, and gives its value.
    ///
    /// It waits for as long as it takes: an hour in the queue of candidates, then again, at the end of
    /// the queue; a minute at a service that refuses to let anybody wait for an hour. Each of these
    /// candidacies that elected nobody is told and counted as skipped. When the lease is lost, it
    /// campaigns again and runs the action again, with a higher token. While the lock service fails,
    /// or turns it away at once, it tries again after 0.1 s to 5 s; subscribers are told.
    ///
    /// It ends only so, or when its future is dropped.
    ///
    /// # Errors
    /// The name is none, or the lock service refuses this for good or was closed on this side.
    pub async fn campaign<T, F, Fut>(
        &self,
        name: impl AsRef<str>,
        mut action: F,
    ) -> Result<T, LeaderError>
    where
        F: FnMut(LeaderContext) -> Fut,
        Fut: Future<Output = T>,
    {
        let (key, mut campaign) = (self.key(name)?, Campaign::new(self));
        loop {
            campaign.stands();
            let core = campaign.elector.core();
            let pause = match core.acquire(&key, &core.options).await {
                Ok(Some(guard)) => {
                    let judge = |_: &T| TermOutcome::Completed;
                    let ran = run::run(guard, core.options.on_loss, judge, &mut action).await;
                    if let Ran {
                        value: Value::Returned(value),
                        lost: None,
                        ..
                    } = run::or_unwind(ran)
                    {
                        return Ok(value);
                    }
                    campaign.led();
                    continue;
                }
                Ok(None) => campaign.skipped(),
                Err(error) => campaign.failed(error)?,
            };
            campaign.elector.core().clock.sleep(pause).await;
        }
    }
}

/// How a campaign goes on after each of its candidacies.
pub(super) struct Campaign<K: Kind> {
    /// Stands with the wait of the campaign.
    pub(super) elector: Elector<K>,
    is_patient: bool,
    began: Duration,
    pauses: Backoff,
}

impl<K: Kind> Campaign<K> {
    pub(super) fn new(elector: &Elector<K>) -> Self {
        Self {
            elector: waiting(elector, LONG_WAIT),
            is_patient: true,
            began: Duration::ZERO,
            pauses: pauses(),
        }
    }

    /// A candidacy begins.
    pub(super) fn stands(&mut self) {
        self.began = self.elector.core().clock.elapsed();
    }

    /// It was elected, and has lost its lease.
    pub(super) fn led(&mut self) {
        self.pauses = pauses();
    }

    /// It was not elected: the pause until the next one. A service that does not let it wait must not
    /// be asked without end.
    pub(super) fn skipped(&mut self) -> Duration {
        let waited = self.elector.core().clock.elapsed();
        if waited.saturating_sub(self.began) < LONGEST_PAUSE {
            return self.pauses.next();
        }
        self.pauses = pauses();
        Duration::ZERO
    }

    /// It failed: the pause until the next one, if there shall be one.
    pub(super) fn failed(&mut self, error: LeaderError) -> Result<Duration, LeaderError> {
        match error {
            error if error.is_transient() => Ok(self.pauses.next()),
            // Perhaps only because of the wait.
            LeaderError::Backend(BackendError::Rejected(_)) if self.is_patient => {
                self.is_patient = false;
                self.elector = waiting(&self.elector, SHORT_WAIT);
                Ok(Duration::ZERO)
            }
            error => Err(error),
        }
    }
}

fn waiting<K: Kind>(elector: &Elector<K>, wait: Duration) -> Elector<K> {
    let options = LeaderOptions {
        wait,
        ..elector.options().clone()
    };
    elector.with_wait(options)
}

fn pauses() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

/// How long one candidacy waits: as long as a wait can be.
const LONG_WAIT: Duration = Duration::from_secs(3_600);
/// And at a service that refuses that.
const SHORT_WAIT: Duration = Duration::from_secs(60);
/// The first pause after a failure of the lock service; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
