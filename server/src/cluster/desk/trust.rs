//! What a leader does whose clock cannot be relied on: lease time stands still, and nothing is granted.
//!
//! Releases and extensions go on: what they do to a lease makes it longer or ends it by its holder's
//! own will. Whoever waits for a lock is sent away, so that a release hands it to nobody here.

use highwater_lock::{Operation, Timestamp};

use super::reign::Then;
use super::{Away, Desk, Role, State};
use crate::desk::waiter;

impl Desk {
    /// Takes note of whether this node's clock can be relied on from now on.
    pub(in crate::cluster) fn trust_clock(&self, trusted: bool) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.trust_clock(now, trusted);
        self.after_change(&state);
    }
}

impl State {
    fn trust_clock(&mut self, now: Timestamp, trusted: bool) {
        if self.distrusts_clock != trusted {
            return;
        }
        self.distrusts_clock = !trusted;
        if let Some(reign) = &mut self.reign {
            match trusted {
                true => reign.let_time_go_on(now),
                false => reign.stop_time(),
            }
        }
        if !trusted && matches!(self.role, Role::Leading { .. }) {
            self.send_acquires_away(now);
        }
    }

    /// Turns away those that were not proposed, and takes the others out of the queues as soon as the log
    /// allows it. What the log decides before that stands.
    pub(super) fn send_acquires_away(&mut self, now: Timestamp) {
        self.give_up(Away::NotActive, |wish| wish.is_acquire());
        let open = self.connections.iter().flat_map(|(connection, link)| {
            let acquires = link.open.values().filter(|asked| asked.kind.is_acquire());
            acquires.map(|asked| waiter(*connection, asked.id))
        });
        let open: Vec<_> = open.collect();
        for waiter in open {
            let then = Then::SentAway { waiter };
            self.ask(now, Operation::Cancel { waiter }, then);
        }
    }
}
