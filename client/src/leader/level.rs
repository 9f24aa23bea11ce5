//! What is so now: whether this elector leads a name.
//!
//! A level cannot be missed as an event can. It looks at the clock when it is read, so it never shows
//! a leader whose time is over.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::FencingToken;
use tokio::sync::watch;

use super::hub::Hub;
use super::term::Term;

/// The level of one name: whether this elector leads it now.
#[derive(Clone)]
pub struct LeaderWatch {
    pub(super) level: watch::Receiver<Vec<Arc<Term>>>,
    // The level lives as long as somebody may look at it.
    pub(super) _hub: Arc<Hub>,
}

/// One leadership of this elector, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Its token.
    pub token: FencingToken,
    /// Which slot, for a group.
    pub slot: Option<u32>,
    /// What is left until it is over, if it is not extended.
    pub remaining: Duration,
}

impl LeaderWatch {
    /// The leaderships of this elector that are good at this moment; in a group it can have several.
    pub fn leading(&self) -> Vec<Leading> {
        let terms = self.level.borrow().clone();
        terms.iter().filter_map(|term| term.leading()).collect()
    }

    /// Whether this elector leads the name at this moment.
    pub fn is_leader(&self) -> bool {
        !self.leading().is_empty()
    }

    /// Completes when a leadership began or ended since the last call. Several changes may be told
    /// as one. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        let changed = self.level.changed().await;
        changed.expect("a level lives as long as somebody watches it");
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaderWatch").field(&self.leading()).finish()
    }
}
