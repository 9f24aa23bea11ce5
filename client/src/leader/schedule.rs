//! Runs a job again and again, each time as the leader or not at all.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use highwater_lock::Key;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::context::LeaderContext;
use super::elector::{Core, Elector, Kind, judge};
use super::run::{self, Panic};
use super::{LeaderError, OptionsError};

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
    /// action, a lost lease. All of it is told to those who [`subscribe`](Elector::subscribe); also a
    /// panic of something else (a destructor, a backend) ends the run only, and is told as far as a
    /// term ends by it. A new run has a new, higher token.
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
        let turn = async {
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
        };
        // Of a destructor, or of a backend.
        discard(caught(turn).await);
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

/// What the future gives, or throws.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}

/// What was thrown, if it is a text.
pub(crate) fn told(panic: Panic) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "something that is no text".to_owned(),
    };
    discard(Err(panic));
    text
}

/// Forgets a panic, also one that panics when it is dropped.
pub(crate) fn discard(outcome: Result<(), Panic>) {
    if let Err(panic) = outcome
        && let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic)))
    {
        std::mem::forget(again);
    }
}
