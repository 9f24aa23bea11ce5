//! Brings what the machine decided to the connections of this node.

use highwater_lock::{
    ConnectionId, FencingToken, Grant, KeySet, Operation, Reply as Outcome, Timestamp, WaiterId,
};
use highwater_protocol::{ErrorCode, Reply, RequestNumber};

use super::reign::{Reign, Then};
use super::{Away, State, decisions};
use crate::outbox::UnsentGrant;
use crate::translate::{self, Asked, Misfit};

impl State {
    /// Asks for an operation of a client, or turns it away.
    pub(super) fn admit(&mut self, now: Timestamp, operation: Operation, then: Then) {
        let acquires = matches!(
            operation,
            Operation::Acquire { .. } | Operation::AcquireSlot { .. }
        );
        let away = match self.elsewhere_unless_leading() {
            None if (self.draining || self.distrusts_clock) && acquires => Some(Away::NotActive),
            away => away,
        };
        let full = self.reign.as_ref().is_some_and(Reign::is_full);
        match (away, then.client()) {
            (Some(away), Some((connection, id))) => {
                self.turn_away(connection, id, away);
            }
            (None, Some((connection, id))) if full && acquires => {
                self.reply(connection, id, &Reply::Busy { id }, None);
            }
            (None, Some((connection, id))) if full => {
                self.turn_away(connection, id, Away::NotActive);
            }
            _ => self.ask(now, operation, then),
        }
    }

    /// Asks for an operation in this node's reign; the proposer takes it from here.
    pub(super) fn ask(&mut self, now: Timestamp, operation: Operation, then: Then) {
        if let Some(reign) = &mut self.reign {
            reign.ask(now, operation, then);
        }
    }

    pub(super) fn turn_away(&mut self, connection: ConnectionId, id: RequestNumber, away: Away) {
        let reply = away.reply(id);
        if let Reply::Error { code, .. } = reply {
            self.tally.error(code);
        }
        self.reply(connection, id, &reply, None);
    }

    /// Answers a request that is open; says whether there was somebody to answer.
    pub(super) fn reply(
        &mut self,
        connection: ConnectionId,
        id: RequestNumber,
        reply: &Reply,
        grant: Option<UnsentGrant>,
    ) -> bool {
        let Some(link) = self.connections.get_mut(&connection) else {
            return false;
        };
        if link.open.remove(&id).is_none() {
            return false;
        }
        link.outbox.deliver(reply, grant);
        if let Some(reign) = &mut self.reign {
            reign.company.answered();
        }
        true
    }

    /// A command of this node was decided.
    pub(super) fn decided(&mut self, now: Timestamp, then: Then, outcome: Outcome) {
        match then {
            Then::Nothing => {}
            Then::Ticked => {
                if let Some(reign) = &mut self.reign {
                    reign.ticked();
                }
            }
            Then::Forgotten { waiter } => match outcome {
                Outcome::Granted(grant) => self.give_back(now, grant.keys, grant.token),
                Outcome::Queued => self.take_out(now, waiter),
                _ => {
                    let reign = self.reign.as_mut();
                    reign.map(|reign| reign.left(waiter));
                }
            },
            Then::SentAway { waiter } => {
                if outcome == Outcome::Cancelled {
                    let code = ErrorCode::NotActive;
                    self.tally.error(code);
                    self.waiter_ended(waiter, |id| Reply::Error { id, code });
                }
            }
            Then::Forced { order } => self.forced(order, outcome),
            Then::Answer { connection, asked } => self.answer(now, connection, asked, outcome),
            Then::Cancelled {
                connection,
                asked,
                acquire,
            } => {
                self.tally.decided(asked.kind, &outcome);
                if outcome == Outcome::Cancelled {
                    self.waiter_ended(acquire, |id| Reply::TimedOut { id });
                }
                if let Ok(Some(reply)) = translate::reply(asked, &outcome, self.machine.now()) {
                    self.reply(connection, asked.id, &reply, None);
                }
            }
            Then::Tell {
                connection,
                asked,
                key,
                from_slot,
            } => {
                let status = self.machine.status(&key, from_slot);
                let reply = translate::status(asked.id, status, self.machine.now());
                self.reply(connection, asked.id, &reply, None);
            }
        }
    }

    fn answer(&mut self, now: Timestamp, connection: ConnectionId, asked: Asked, outcome: Outcome) {
        self.tally.decided(asked.kind, &outcome);
        let reply = match translate::reply(asked, &outcome, self.machine.now()) {
            // The answer comes later. If its connection has gone, it leaves the queue after this.
            Ok(None) => return,
            Ok(Some(reply)) => reply,
            Err(Misfit) => {
                tracing::error!(?asked, "the machine gave an answer that fits no request");
                Reply::Indeterminate { id: asked.id }
            }
        };
        if let Reply::Error { code, .. } = reply {
            self.tally.error(code);
        }
        let granted = match outcome {
            Outcome::Granted(grant) => Some(grant),
            _ => None,
        };
        let told = !matches!(reply, Reply::Indeterminate { .. });
        let unsent = granted.clone().map(|grant| unsent(grant, None));
        let told = self.reply(connection, asked.id, &reply, unsent.filter(|_| told)) && told;
        match granted {
            Some(grant) if !told => self.give_back(now, grant.keys, grant.token),
            _ => {}
        }
    }

    /// A queued acquire of this node has its lock.
    pub(super) fn granted(&mut self, now: Timestamp, grant: Grant) {
        let waiter = grant.waiter;
        if self.reign.as_mut().is_some_and(|reign| reign.left(waiter)) {
            self.give_back(now, grant.keys, grant.token);
            return;
        }
        let link = self.connections.get(&waiter.connection);
        let id = RequestNumber::new(waiter.request.get());
        let asked = id.and_then(|id| link?.open.get(&id).copied());
        let reply = asked.map(|asked| (asked, translate::granted(asked, &grant)));
        match reply {
            Some((asked, Ok(reply))) => {
                self.tally
                    .handed_over(grant.granted_at.saturating_since(asked.at));
                let since = Some(grant.granted_at);
                self.reply(
                    waiter.connection,
                    asked.id,
                    &reply,
                    Some(unsent(grant, since)),
                );
            }
            Some((asked, Err(Misfit))) => {
                let id = asked.id;
                self.reply(waiter.connection, id, &Reply::Indeterminate { id }, None);
                self.give_back(now, grant.keys, grant.token);
            }
            None => self.give_back(now, grant.keys, grant.token),
        }
    }

    /// Releases a lock that was granted in this reign and of which its client never heard. One that
    /// an earlier leader granted may have been told to its client, and is left alone.
    pub(super) fn give_back(&mut self, now: Timestamp, keys: KeySet, token: FencingToken) {
        let own = self.reign.as_ref();
        if let Some(reign) = own.filter(|reign| reign.may_have_granted(token)) {
            decisions::gave_back(reign.term(), token);
            self.tally.undelivered += 1;
            self.ask(now, translate::give_back(keys, token), Then::Nothing);
        }
    }

    /// Takes an acquire out of the queue whose client has been told that nobody knows.
    fn take_out(&mut self, now: Timestamp, waiter: WaiterId) {
        if let Some(reign) = &mut self.reign {
            reign.forget(waiter);
        }
        let then = Then::Forgotten { waiter };
        self.ask(now, Operation::Cancel { waiter }, then);
    }
}

fn unsent(grant: Grant, handed_over: Option<Timestamp>) -> UnsentGrant {
    UnsentGrant {
        keys: grant.keys,
        token: grant.token,
        handed_over,
    }
}
