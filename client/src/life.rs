//! How long a ticket is worth something: one value that its holder reads and its extension moves.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::Lost;
use crate::system::Moment;

/// The validity of one ticket. Its end is final: nothing makes a ticket valid again.
///
/// Every acquire makes one, and few are ever waited for.
#[derive(Debug)]
pub(crate) struct Life {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    valid_before: Moment,
    ended: Option<Lost>,
}

impl State {
    fn lost(&self) -> Option<Lost> {
        let expired = || self.valid_before.is_over().then_some(Lost::Expired);
        self.ended.or_else(expired)
    }
}

impl Life {
    pub(crate) fn new(valid_before: Moment) -> Self {
        let state = State {
            valid_before,
            ended: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(crate) fn valid_before(&self) -> Moment {
        self.state().valid_before
    }

    /// Why it is over, if it is.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.state().lost()
    }

    /// Moves the end, never to an earlier moment.
    ///
    /// # Errors
    /// It is over.
    pub(crate) fn lengthen(&self, valid_before: Moment) -> Result<(), Lost> {
        let mut state = self.state();
        if let Some(lost) = state.lost() {
            // Kept, so that a moment which was found to be over stays over.
            state.ended = Some(lost);
            return Err(lost);
        }
        if valid_before > state.valid_before {
            state.valid_before = valid_before;
            drop(state);
            self.changed.notify_waiters();
        }
        Ok(())
    }

    /// Ends it before its time. The first reason counts.
    pub(crate) fn end(&self, reason: Lost) {
        let mut state = self.state();
        let before = state.lost();
        state.ended = before.or(Some(reason));
        drop(state);
        if before.is_none() {
            self.changed.notify_waiters();
        }
    }

    /// Completes when it is over.
    pub(crate) async fn over(&self) -> Lost {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let state = *self.state();
            if let Some(lost) = state.lost() {
                return lost;
            }
            tokio::select! {
                () = state.valid_before.reached() => {}
                () = changed => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::system;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_end_moves_only_to_later_moments() {
        let start = Moment::now();
        let life = Life::new(start.plus(10 * SECOND));
        assert_eq!(life.lengthen(start.plus(5 * SECOND)), Ok(()));
        assert_eq!(life.valid_before(), start.plus(10 * SECOND));
        assert_eq!(life.lengthen(start.plus(15 * SECOND)), Ok(()));
        assert_eq!(life.valid_before(), start.plus(15 * SECOND));
        let started = system::now();
        assert_eq!(life.over().await, Lost::Expired);
        assert_eq!(started.elapsed(), 15 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_end_follows_it() {
        let life = std::sync::Arc::new(Life::new(Moment::now().plus(2 * SECOND)));
        let started = system::now();
        let waiting = tokio::spawn({
            let life = life.clone();
            async move { life.over().await }
        });
        tokio::time::sleep(SECOND).await;
        life.lengthen(Moment::now().plus(4 * SECOND)).unwrap();
        tokio::time::sleep(SECOND * 2).await;
        assert!(!waiting.is_finished());
        life.end(Lost::NotHeld);
        assert_eq!(waiting.await.unwrap(), Lost::NotHeld);
        assert_eq!(started.elapsed(), 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_revives_what_is_over() {
        let life = Life::new(Moment::now().plus(SECOND));
        tokio::time::sleep(SECOND).await;
        let later = Moment::now().plus(SECOND);
        assert_eq!(life.lengthen(later), Err(Lost::Expired));
        assert_eq!(life.lost(), Some(Lost::Expired));
        // The first reason stays.
        life.end(Lost::NotHeld);
        assert_eq!(life.over().await, Lost::Expired);
        let life = Life::new(later);
        life.end(Lost::DomainChanged);
        life.end(Lost::NotHeld);
        assert_eq!(life.lengthen(later.plus(SECOND)), Err(Lost::DomainChanged));
    }
    #[tokio::test(start_paused = true)]
    async fn a_suspend_of_the_machine_ends_it_although_the_timers_stood_still() {
        let life = std::sync::Arc::new(Life::new(Moment::now().plus(30 * SECOND)));
        let waiting = tokio::spawn({
            let life = life.clone();
            async move { life.over().await }
        });
        tokio::time::sleep(SECOND).await;
        assert_eq!(life.lost(), None);
        system::suspend(29 * SECOND);
        assert_eq!(life.lost(), Some(Lost::Expired));
        // An answer that comes after it is too late.
        let later = Moment::now().plus(30 * SECOND);
        assert_eq!(life.lengthen(later), Err(Lost::Expired));
        let resumed = system::now();
        assert_eq!(waiting.await.unwrap(), Lost::Expired);
        assert!(resumed.elapsed() <= system::SUSPEND_CHECK);
    }
}
