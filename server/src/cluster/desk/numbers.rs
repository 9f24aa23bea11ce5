//! What is counted of leading, under the desk's mutex.

use super::{Desk, Role, State};
use crate::metrics::Histogram;

/// Counts since the start.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct Numbers {
    /// How often another node, or this one, was found to lead.
    pub(in crate::cluster) leaders: u64,
    /// How often this node began to lead.
    pub(in crate::cluster) reigns: u64,
    /// How many commands its batches had.
    pub(in crate::cluster) commands: Histogram,
    /// Who led last, as far as it is known.
    last: Option<Role>,
}

/// [`Numbers`], and what there is now.
#[derive(Debug)]
pub(in crate::cluster) struct Leading {
    pub(in crate::cluster) numbers: Numbers,
    /// Requests that wait for the proposer.
    pub(in crate::cluster) asked: usize,
    /// Batches that were proposed and have no outcome yet.
    pub(in crate::cluster) proposed: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            leaders: 0,
            reigns: 0,
            commands: Histogram::new(COMMANDS),
            last: None,
        }
    }
}

impl Numbers {
    /// Takes note of who leads from now on.
    pub(super) fn led_by(&mut self, role: Role) {
        if role == Role::Leaderless || self.last == Some(role) {
            return;
        }
        self.last = Some(role);
        self.leaders += 1;
        if matches!(role, Role::Leading { .. }) {
            self.reigns += 1;
        }
    }
}

impl Desk {
    pub(in crate::cluster) fn leading(&self) -> Leading {
        let state = self.state();
        let (asked, proposed) = state.under_way();
        Leading {
            numbers: state.numbers.clone(),
            asked,
            proposed,
        }
    }
}

impl State {
    fn under_way(&self) -> (usize, usize) {
        let reign = self.reign.as_ref();
        reign.map_or((0, 0), super::reign::Reign::under_way)
    }
}

const COMMANDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];
