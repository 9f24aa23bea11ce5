//! Jobs and campaigns for programs without async.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

use super::{Elector, LeaderContext};
use crate::leader::campaign::Campaign;
use crate::leader::elector::judge;
use crate::leader::schedule::discard;
use crate::leader::{Kind, LeaderError, OptionsError};

/// A job that runs in a thread of its own until this is stopped or dropped.
///
/// Dropping it gives a candidacy up, lets a run that is under way come to its end, and does not wait for
/// that. No run begins after it.
#[derive(Debug)]
#[must_use = "the job ends when its schedule is dropped"]
pub struct Schedule {
    /// Ends a pause when it is dropped.
    pause: mpsc::Sender<()>,
    /// Ends a candidacy when it is dropped.
    candidacy: watch::Sender<()>,
    thread: JoinHandle<()>,
}

impl Schedule {
    /// Stops it: a candidacy is given up, a run that is under way comes to its end. It waits for that.
    pub fn stop(self) {
        let Self {
            pause,
            candidacy,
            thread,
        } = self;
        drop((pause, candidacy));
        // The thread catches what its action throws.
        let _ = thread.join();
    }

    /// Whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Why there is no [`Schedule`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The name or the period is none. Correct it.
    #[error(transparent)]
    Leader(#[from] LeaderError),
    /// The system gave no thread. Free some, then try again.
    #[error("the job's thread could not be started")]
    Thread(#[source] io::Error),
}

impl<K: Kind> Elector<K> {
    /// Runs the action in a thread of its own, now and each time `period` has passed since the end of
    /// the last run; each time only if this candidate is elected. See
    /// [`leader::Elector::schedule`](crate::leader::Elector::schedule).
    ///
    /// # Errors
    /// The name is none, the period is zero, or there is no thread.
    pub fn schedule<T, E>(
        &self,
        name: impl AsRef<str>,
        period: Duration,
        mut action: impl FnMut(&LeaderContext) -> Result<T, E> + Send + 'static,
    ) -> Result<Schedule, ScheduleError> {
        if period.is_zero() {
            return Err(LeaderError::Options(OptionsError::Period).into());
        }
        let (elector, name) = (self.clone(), self.inner.untenanted(name)?);
        let (pause, stopped) = mpsc::channel::<()>();
        let candidacy = watch::Sender::new(());
        let gone = candidacy.subscribe();
        let work = move || {
            loop {
                let run = || {
                    let mut changes = gone.clone();
                    // Nothing is ever sent.
                    let stop = async move { drop(changes.changed().await) };
                    // Who subscribes is told of whatever comes of it, panics too.
                    let guard = elector.acquire_unless(&name, stop).ok().flatten();
                    // The elector's thread may have been faster than who stops.
                    if let Some(guard) = guard.filter(|_| gone.has_changed().is_ok()) {
                        let on_loss = elector.inner.options().on_loss();
                        drop(guard.run(on_loss, judge, &mut action));
                    }
                };
                discard(catch_unwind(AssertUnwindSafe(run)));
                if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("highwater-job".into())
            .spawn(work);
        let thread = thread.map_err(ScheduleError::Thread)?;
        Ok(Schedule {
            pause,
            candidacy,
            thread,
        })
    }

    /// Campaigns until the action was run to its end under a good lease, and gives its value. See
    /// [`leader::Elector::campaign`](crate::leader::Elector::campaign).
    ///
    /// # Errors
    /// The name is none, or the lock service refuses this for good or was closed on this side.
    pub fn campaign<T>(
        &self,
        name: impl AsRef<str>,
        mut action: impl FnMut(&LeaderContext) -> T,
    ) -> Result<T, LeaderError> {
        let mut campaign = Campaign::new(&self.inner);
        loop {
            campaign.stands();
            let candidate = Self {
                inner: campaign.elector.clone(),
                runtime: Arc::clone(&self.runtime),
            };
            let pause = match candidate.run_if_leader(&name, &mut action) {
                Ok(Some(value)) => return Ok(value),
                Err(LeaderError::LeaseLost { .. }) => {
                    campaign.led();
                    continue;
                }
                Ok(None) => campaign.skipped(),
                Err(error) => campaign.failed(error)?,
            };
            thread::sleep(pause);
        }
    }
}
