//! Jobs and campaigns for programs without async.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Elector, LeaderContext};
use crate::keeper::Backoff;
use crate::leader::schedule::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::leader::{Kind, LeaderError, OptionsError};

/// A job that runs in a thread of its own until this is stopped or dropped.
///
/// Dropping it lets a run that is under way come to its end, and does not wait for that.
#[derive(Debug)]
#[must_use = "the job ends when its schedule is dropped"]
pub struct Schedule {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Schedule {
    /// Stops it, and waits until a run that is under way has come to its end.
    pub fn stop(self) {
        let Self { stop, thread } = self;
        drop(stop);
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
        let (stop, stopped) = mpsc::channel::<()>();
        let work = move || {
            loop {
                // Who subscribes is told of whatever comes of it, panics too.
                let run = || drop(elector.run_if_leader_result(&name, &mut action));
                let _ = catch_unwind(AssertUnwindSafe(run));
                // Nothing is ever sent.
                if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("highwater-job".into())
            .spawn(work);
        let thread = thread.map_err(ScheduleError::Thread)?;
        Ok(Schedule { stop, thread })
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
        let patient = Self {
            inner: self.inner.patient(),
            runtime: self.runtime.clone(),
        };
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match patient.run_if_leader(&name, &mut action) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) | Err(LeaderError::LeaseLost { .. }) => {
                    pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
                }
                Err(error) if error.is_transient() => thread::sleep(pauses.next()),
                Err(error) => return Err(error),
            }
        }
    }
}
