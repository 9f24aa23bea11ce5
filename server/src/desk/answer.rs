//! Brings what the machine decided to the connections it concerns.
//!
//! A grant that cannot be told to anybody is given back here, so nobody ever holds a lock without
//! having been told. What a reply looks like is decided in [`translate`](crate::translate).

use highwater_lock::{ConnectionId, Grant, Key, Operation, Reply as Outcome, Timestamp};
use highwater_protocol::{Reply, RequestNumber};

use super::{State, unsent, waiter};
use crate::outbox::UnsentGrant;
use crate::translate::{self, Asked, Misfit};

impl State {
    /// Answers a request, or notes that its answer comes later.
    pub(super) fn answer(&mut self, connection: ConnectionId, asked: Asked, outcome: Outcome) {
        self.tally.decided(asked.kind, &outcome);
        let reply = translate::reply(asked, &outcome, self.machine.now());
        let grant = match outcome {
            Outcome::Granted(grant) => Some(unsent(grant, None)),
            _ => None,
        };
        let Some(link) = self.connections.get_mut(&connection) else {
            return;
        };
        match reply {
            Ok(Some(reply)) => {
                if let Reply::Error { code, .. } = reply {
                    self.tally.error(code);
                }
                self.filled.push(&link.outbox, &reply, grant);
            }
            Ok(None) => {
                link.queued.insert(asked.id, asked);
            }
            Err(Misfit) => {
                tracing::error!(
                    ?asked,
                    "the lock machine gave an answer that fits no request"
                );
                let reply = Reply::Indeterminate { id: asked.id };
                self.filled.push(&link.outbox, &reply, None);
                if let Some(grant) = grant {
                    self.give_back(self.machine.now(), grant);
                }
            }
        }
    }

    /// Brings a grant out of the queue to its request.
    pub(super) fn granted(&mut self, grant: Grant, free_since: Timestamp) {
        if let Some((asked, outbox)) = self.dequeue(grant.waiter) {
            match translate::granted(asked, &grant) {
                Ok(reply) => {
                    let waited = grant.granted_at.saturating_since(asked.at);
                    let grant = unsent(grant, Some(free_since));
                    self.filled.push(&outbox, &reply, Some(grant));
                    self.tally.handed_over(waited);
                    return;
                }
                Err(Misfit) => {
                    let reply = Reply::Indeterminate { id: asked.id };
                    self.filled.push(&outbox, &reply, None);
                }
            }
        }
        // It cannot be told to anybody, so nobody may hold it. Everybody else goes on.
        tracing::error!(
            ?grant,
            "a lock was granted to a request that does not wait for it"
        );
        self.give_back(self.machine.now(), unsent(grant, None));
    }

    /// Takes a queued acquire out of the queue, and answers both requests.
    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        asked: Asked,
        acquire: RequestNumber,
    ) {
        let waiter = waiter(connection, acquire);
        let outcome = match self.parked.take_acquire(waiter) {
            Some(_) => Outcome::Cancelled,
            None => self.apply(now, Operation::Cancel { waiter }),
        };
        if outcome == Outcome::Cancelled {
            self.ungranted(waiter, |id| Reply::TimedOut { id });
        }
        self.answer(connection, asked, outcome);
    }

    /// Tells of a key what a client may ask.
    pub(super) fn tell(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: RequestNumber,
        key: &Key,
        from_slot: u32,
    ) {
        // What is over by now must not be told as if it were not.
        self.apply(now, Operation::Tick);
        let status = self.machine.status(key, from_slot);
        let reply = translate::status(id, status, self.machine.now());
        if let Some(link) = self.connections.get(&connection) {
            self.filled.push(&link.outbox, &reply, None);
        }
    }

    /// Releases a lock of which its client never heard.
    pub(super) fn give_back(&mut self, now: Timestamp, grant: UnsentGrant) {
        self.tally.undelivered += 1;
        self.apply(now, translate::give_back(grant.keys, grant.token));
    }
}
