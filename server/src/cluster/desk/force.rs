//! The end of a hold by order of an operator: asked for like everything else, and decided by the log.
//!
//! An operator who is turned away is told so, and nothing was done then. One whose answer does not
//! come is told that nobody knows.

use highwater_lock::{Key, Operation, Reply as Outcome};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::reign::{PATIENCE, Reign, Then};
use super::{Away, Desk, State};
use crate::desk::{Forced, NotForced};

/// Where the answer to an operator goes. Dropped without one, nobody knows.
pub(super) type Asker = oneshot::Sender<Result<Forced, NotForced>>;

impl Desk {
    /// Ends whatever holds a key and burns a token, by an entry in the log. Who waits gets the lock in the
    /// same step. Dropping the future does not take it back.
    pub(crate) async fn force_release(&self, key: Key) -> Result<Forced, NotForced> {
        let answer = {
            let mut state = self.state();
            let now = self.clock.timestamp();
            let answer = state.ask_to_force(now, key)?;
            self.after_change(&state);
            answer
        };
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            _ => Err(NotForced::Unknown),
        }
    }
}

impl State {
    fn ask_to_force(
        &mut self,
        now: highwater_lock::Timestamp,
        key: Key,
    ) -> Result<oneshot::Receiver<Result<Forced, NotForced>>, NotForced> {
        match self.elsewhere_unless_leading() {
            Some(away) => return Err(away.into()),
            None if self.reign.as_ref().is_some_and(Reign::is_full) => return Err(NotForced::Busy),
            None => {}
        }
        let (asker, answer) = oneshot::channel();
        self.orders += 1;
        let order = self.orders;
        self.operators.insert(order, asker);
        self.ask(now, Operation::ForceRelease { key }, Then::Forced { order });
        Ok(answer)
    }

    /// An order was decided.
    pub(super) fn forced(&mut self, order: u64, outcome: Outcome) {
        let answer = match outcome {
            Outcome::ForceReleased { burned, ended } => {
                self.tally.forced += 1;
                Ok(Forced { burned, ended })
            }
            _ => Err(NotForced::NoToken),
        };
        self.tell_operator(order, answer);
    }

    /// An order will certainly not come about.
    pub(super) fn turn_operator_away(&mut self, order: u64, away: Away) {
        self.tell_operator(order, Err(away.into()));
    }

    fn tell_operator(&mut self, order: u64, answer: Result<Forced, NotForced>) {
        if let Some(asker) = self.operators.remove(&order) {
            // Who has gone needs no answer.
            let _ = asker.send(answer);
        }
    }
}

impl From<Away> for NotForced {
    fn from(away: Away) -> Self {
        match away {
            Away::Moved(slot) => Self::Elsewhere { leader: slot.get() },
            Away::NoLeader | Away::NotActive => Self::NoLeader,
        }
    }
}
