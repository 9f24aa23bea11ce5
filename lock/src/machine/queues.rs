//! How requests come into the queues and leave them.
//!
//! Everything that removes a waiter or frees a key ends in [`Machine::hand_over`], so that no
//! grantable waiter ever sleeps on.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::Machine;
use super::names::Kind;
use super::waiters::{Ticket, Waiter};
use crate::time::micros_rounded_up;
use crate::{Busy, ConnectionId, Event, Key, KeySet, Rejection, Reply, WaiterId};

/// An acquire of any kind.
pub(super) struct Request {
    pub(super) waiter: WaiterId,
    pub(super) keys: KeySet,
    pub(super) kind: Kind,
    pub(super) wait: Duration,
    pub(super) lease: Duration,
}

impl Machine {
    pub(super) fn acquire(&mut self, request: Request) -> Reply {
        if let Err(rejection) = self.check_request(&request) {
            return Reply::Rejected(rejection);
        }
        let survey = self.names.survey(&request.keys, request.kind);
        if let Some(conflict) = survey.conflict {
            return Reply::Rejected(conflict);
        }
        if self.next_token.is_none() {
            return Reply::Rejected(Rejection::TokensExhausted);
        }
        if !survey.open && request.wait.is_zero() {
            return Reply::TimedOut;
        }
        if self.names.in_use() + survey.new_keys > u64::from(self.limits.keys) {
            return Reply::Busy(Busy::Keys);
        }
        let lease_micros = micros_rounded_up(request.lease);
        if survey.open {
            let token = self.take_token().expect("there is a token");
            let Request {
                waiter, keys, kind, ..
            } = request;
            return Reply::Granted(self.grant(waiter, keys, kind, lease_micros, token));
        }
        if let Some(busy) = self.full_queue(request.waiter.connection, survey.longest_queue) {
            return Reply::Busy(busy);
        }
        let ticket = self.waiters.insert(Waiter {
            id: request.waiter,
            keys: request.keys.clone(),
            kind: request.kind,
            deadline: self.now.saturating_add(request.wait),
            lease_micros,
        });
        self.names.enqueue(&request.keys, request.kind, ticket);
        Reply::Queued
    }

    fn check_request(&self, request: &Request) -> Result<(), Rejection> {
        if self.waiters.ticket(request.waiter).is_some() {
            return Err(Rejection::DuplicateWaiter);
        }
        if let Kind::Slots(count) = request.kind
            && count.get() > self.limits.slots
        {
            let most = self.limits.slots;
            return Err(Rejection::Slots { most });
        }
        self.check_lease(request.lease)?;
        let longest = self.limits.longest_wait();
        if request.wait > longest {
            return Err(Rejection::Wait { longest });
        }
        Ok(())
    }

    fn full_queue(&self, connection: ConnectionId, longest_queue: usize) -> Option<Busy> {
        let reached = |count: usize, limit: u32| count >= limit as usize;
        if reached(self.waiters.len(), self.limits.waiters) {
            Some(Busy::Waiters)
        } else if reached(longest_queue, self.limits.waiters_per_key) {
            Some(Busy::WaitersPerKey)
        } else if self.waiters.count_of(connection) >= self.limits.waiters_per_connection {
            Some(Busy::WaitersPerConnection)
        } else {
            None
        }
    }

    pub(super) fn cancel(&mut self, waiter: WaiterId, events: &mut Vec<Event>) -> Reply {
        let Some(ticket) = self.waiters.ticket(waiter) else {
            return Reply::NotQueued;
        };
        let mut headed = Vec::new();
        self.leave(ticket, &mut headed);
        self.hand_over(&headed, events);
        Reply::Cancelled
    }

    pub(super) fn disconnect(
        &mut self,
        connection: ConnectionId,
        events: &mut Vec<Event>,
    ) -> Reply {
        let mut headed = Vec::new();
        let mut waiters = 0;
        for ticket in self.waiters.of_connection(connection) {
            self.leave(ticket, &mut headed);
            waiters += 1;
        }
        self.hand_over(&headed, events);
        Reply::Disconnected { waiters }
    }

    /// Removes every waiter: a new epoch begins. Nothing can be handed over without a queue.
    pub(super) fn drop_waiters(&mut self, events: &mut Vec<Event>) {
        let mut headed = Vec::new();
        let tickets: Vec<Ticket> = self.waiters.iter().map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            let waiter = self.leave(ticket, &mut headed);
            events.push(Event::Dropped(waiter.id));
        }
    }

    /// Removes every waiter whose wait is over, and only then looks who is next: none of those
    /// that it removes may be granted by the removal of another.
    pub(super) fn time_out_waiters(&mut self, events: &mut Vec<Event>) {
        let mut headed = Vec::new();
        while let Some(ticket) = self.waiters.first_due(self.now) {
            let waiter = self.leave(ticket, &mut headed);
            events.push(Event::TimedOut(waiter.id));
        }
        self.hand_over(&headed, events);
    }

    /// Grants to the heads of these queues all that can be granted, first come, first served.
    pub(super) fn hand_over(&mut self, keys: &[Key], events: &mut Vec<Event>) {
        let heads = keys.iter().filter_map(|key| self.names.head(key));
        let mut heads: BTreeSet<Ticket> = heads.collect();
        while let Some(ticket) = heads.pop_first() {
            let waiter = self.waiters.get(ticket).expect("a queue holds waiters");
            if !self.names.is_grantable(&waiter.keys, ticket) {
                continue;
            }
            let Waiter {
                id,
                keys,
                kind,
                lease_micros,
                ..
            } = waiter.clone();
            // Without a token the waiter stays until its wait is over.
            let Some(token) = self.take_token() else {
                return;
            };
            let grant = self.grant(id, keys, kind, lease_micros, token);
            self.leave(ticket, &mut Vec::new());
            if matches!(kind, Kind::Slots(_)) {
                // Another slot may be free for the next one.
                heads.extend(grant.keys.iter().filter_map(|name| self.names.head(name)));
            }
            events.push(Event::Granted(grant));
        }
    }

    fn leave(&mut self, ticket: Ticket, headed: &mut Vec<Key>) -> Waiter {
        let waiter = self.waiters.remove(ticket);
        self.names.dequeue(&waiter.keys, ticket, headed);
        waiter
    }
}
