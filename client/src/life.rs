//! How long a ticket is worth something: one value that its holder reads and its extension moves.

use tokio::sync::watch;

use crate::Lost;
use crate::system::Moment;

/// The validity of one ticket. Its end is final: nothing makes a ticket valid again.
#[derive(Debug)]
pub(crate) struct Life(watch::Sender<State>);

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
        Self(watch::Sender::new(State {
            valid_before,
            ended: None,
        }))
    }

    pub(crate) fn valid_before(&self) -> Moment {
        self.0.borrow().valid_before
    }

    /// Why it is over, if it is.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.0.borrow().lost()
    }

    /// Moves the end, never to an earlier moment.
    ///
    /// # Errors
    /// It is over.
    pub(crate) fn lengthen(&self, valid_before: Moment) -> Result<(), Lost> {
        let mut outcome = Ok(());
        self.0.send_if_modified(|state| {
            if let Some(lost) = state.lost() {
                // Kept, so that a moment which was found to be over stays over.
                state.ended = Some(lost);
                outcome = Err(lost);
                return false;
            }
            let later = valid_before > state.valid_before;
            state.valid_before = valid_before.max(state.valid_before);
            later
        });
        outcome
    }

    /// Ends it before its time. The first reason counts.
    pub(crate) fn end(&self, reason: Lost) {
        self.0.send_if_modified(|state| {
            let first = state.lost().is_none();
            state.ended = state.lost().or(Some(reason));
            first
        });
    }

    /// Completes when it is over.
    pub(crate) async fn over(&self) -> Lost {
        let mut states = self.0.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if let Some(lost) = state.lost() {
                return lost;
            }
            tokio::select! {
                () = state.valid_before.reached() => {}
                changed = states.changed() => changed.expect("the sender is part of self"),
            }
        }
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
