//! Runs a job again and again, each time as the leader or not at all; and campaigns for a leadership
//! that goes on.

use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Key;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::context::LeaderContext;
use super::elector::{Core, Elector, Kind, judge};
use super::run::{self, Ran, Value};
use super::{LeaderError, LeaderOptions, OptionsError, TermOutcome};
use crate::keeper::Backoff;

/// A job that runs by itself until this is stopped or dropped.
///
/// Dropping it drops the action that is running, and gives its lease back in the background.
#[derive(Debug)]
#[must_use = "the job ends when its schedule is dropped"]
pub struct Schedule {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Schedule {
    /// Stops it: a candidacy is given up, an action that is running comes to its end and its lease is
    /// given back. Dropping the future drops the action.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // An error is the end of the runtime, and with it of the job.
        let _ = (&mut self.task).await;
    }

    /// Whether the job has ended, because it was stopped or its runtime has.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K: Kind> Elector<K> {
    /// Runs the action in the background, now and each time `period` has passed since the end of the
    /// last run; each time only if this candidate is elected.
    ///
    /// The job goes on after anything: contention, a failing lock service, an error or a panic of the
    /// action, a lost lease. All of it is told to those who [`subscribe`](Elector::subscribe). A new
    /// run has a new, higher token.
    ///
    /// # Errors
    /// The name is none, or the period is zero.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn schedule<T, E, F, Fut>(
        &self,
        name: impl AsRef<str>,
        period: Duration,
        action: F,
    ) -> Result<Schedule, LeaderError>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnMut(LeaderContext) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        if period.is_zero() {
            return Err(LeaderError::Options(OptionsError::Period));
        }
        let (key, core) = (self.key(name)?, Arc::clone(self.core()));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(repeat(core, key, period, stopped, action));
        Ok(Schedule { task, stop })
    }

    /// Campaigns until the action was run to its end under a good lease, and gives its value.
    ///
    /// It waits in the queue of candidates for as long as it takes. When the lease is lost, it
    /// campaigns again and runs the action again, with a higher token. While the lock service fails
    /// it tries again, after 0.1 s to 5 s; subscribers are told.
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
        let (key, patient) = (self.key(name)?, self.patient());
        let core = patient.core();
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let guard = match core.acquire(&key, &core.options).await {
                Ok(Some(guard)) => guard,
                Ok(None) => continue,
                Err(error) if error.is_transient() => {
                    core.clock.sleep(pauses.next()).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
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
        }
    }

    /// The same candidate, which waits for long.
    pub(super) fn patient(&self) -> Self {
        let options = LeaderOptions {
            wait: CAMPAIGN_WAIT,
            ..self.options().clone()
        };
        self.with_wait(options)
    }
}

async fn repeat<T, E, F, Fut>(
    core: Arc<Core>,
    key: Key,
    period: Duration,
    mut stopped: watch::Receiver<bool>,
    mut action: F,
) where
    F: FnMut(LeaderContext) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    loop {
        let guard = tokio::select! {
            biased;
            () = is_stopped(&mut stopped) => return,
            // Who listens is told of contention and errors.
            guard = core.acquire(&key, &core.options) => guard.ok().flatten(),
        };
        if let Some(guard) = guard {
            // A panic is told too, and ends this run only.
            let _ = run::run(guard, core.options.on_loss, judge, &mut action).await;
        }
        tokio::select! {
            biased;
            () = is_stopped(&mut stopped) => return,
            () = core.clock.sleep(period) => {}
        }
    }
}

async fn is_stopped(stopped: &mut watch::Receiver<bool>) {
    // Without a schedule it is stopped too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// How long one candidacy of a campaign waits.
const CAMPAIGN_WAIT: Duration = Duration::from_secs(60);
/// The first pause after a failure of the lock service; it doubles with each further one.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
