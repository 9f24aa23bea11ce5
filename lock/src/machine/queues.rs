//! How requests come into the queues and leave them.
//!
//! Everything that removes a waiter or frees a key ends in [`Machine::hand_over`], so that no
//! grantable waiter ever sleeps on.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::Machine;
use super::names::Kind;
use super::slab::Id;
use super::waiters::{Newcomer, Ticket, Waiter};
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
        let is_open = match self.check_acquire(&request) {
            Ok(is_open) => is_open,
            Err(reply) => return reply,
        };
        let lease_micros = micros_rounded_up(request.lease);
        if is_open {
            let token = self.take_token().expect("there is a token");
            let Request {
                waiter, keys, kind, ..
            } = request;
            return Reply::Granted(self.grant(waiter, keys, kind, lease_micros, token));
        }
        let deadline = self.now.saturating_add(request.wait);
        self.enqueue(Newcomer {
            id: request.waiter,
            keys: self.names.shared(request.keys),
            kind: request.kind,
            deadline,
            lease_micros,
        });
        Reply::Queued
    }

    /// Whether a request is granted at once or queued; or the answer that changes nothing.
    pub(super) fn check_acquire(&self, request: &Request) -> Result<bool, Reply> {
        self.check_request(request).map_err(Reply::Rejected)?;
        let survey = self.names.survey(&request.keys, request.kind);
        if let Some(conflict) = survey.conflict {
            return Err(Reply::Rejected(conflict));
        }
        if self.next_token.is_none() {
            return Err(Reply::Rejected(Rejection::TokensExhausted));
        }
        if !survey.open && request.wait.is_zero() {
            return Err(Reply::TimedOut);
        }
        if self.names.in_use() + survey.new_keys > u64::from(self.limits.keys) {
            return Err(Reply::Busy(Busy::Keys));
        }
        if survey.open {
            return Ok(true);
        }
        match self.full_queue(request.waiter.connection, survey.longest_queue) {
            Some(busy) => Err(Reply::Busy(busy)),
            None => Ok(false),
        }
    }

    /// Puts a request at the end of the queues of all its keys.
    pub(super) fn enqueue(&mut self, newcomer: Newcomer) {
        let (keys, kind) = (newcomer.keys.clone(), newcomer.kind);
        let id = self.waiters.insert(newcomer);
        self.names.enqueue(&keys, kind, id, &mut self.waiters);
    }

    fn check_request(&self, request: &Request) -> Result<(), Rejection> {
        if self.waiters.find(request.waiter).is_some() {
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
        } else if reached(
            self.waiters.count_of(connection),
            self.limits.waiters_per_connection,
        ) {
            Some(Busy::WaitersPerConnection)
        } else {
            None
        }
    }

    pub(super) fn cancel(&mut self, waiter: WaiterId, events: &mut Vec<Event>) -> Reply {
        let Some(id) = self.waiters.find(waiter) else {
            return Reply::NotQueued;
        };
        let mut headed = Vec::new();
        self.leave(id, Some(&mut headed));
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
        while let Some(id) = self.waiters.any_of(connection) {
            self.leave(id, Some(&mut headed));
            waiters += 1;
        }
        self.hand_over(&headed, events);
        Reply::Disconnected { waiters }
    }

    /// Removes every waiter: a new epoch begins. Nothing can be handed over without a queue.
    pub(super) fn drop_waiters(&mut self, events: &mut Vec<Event>) {
        let waiters = self.waiters.in_order();
        let waiters: Vec<Id> = waiters.iter().map(|(id, _)| *id).collect();
        for id in waiters {
            let waiter = self.leave(id, None);
            events.push(Event::Dropped(waiter.id));
        }
    }

    /// Removes every waiter whose wait is over, and only then looks who is next: none of those
    /// that it removes may be granted by the removal of another.
    pub(super) fn time_out_waiters(&mut self, events: &mut Vec<Event>) {
        let mut headed = Vec::new();
        while let Some(id) = self.waiters.first_due(self.now) {
            let waiter = self.leave(id, Some(&mut headed));
            events.push(Event::TimedOut(waiter.id));
        }
        self.hand_over(&headed, events);
    }

    /// Grants to the heads of these queues all that can be granted, first come, first served.
    pub(super) fn hand_over(&mut self, keys: &[Key], events: &mut Vec<Event>) {
        if self.waiters.len() == 0 {
            return;
        }
        let heads = keys.iter().filter_map(|key| self.head(key));
        let mut heads: BTreeSet<(Ticket, Id)> = heads.collect();
        while let Some((_, id)) = heads.pop_first() {
            let waiter = self.waiters.get(id).expect("a queue holds waiters");
            if !self.names.is_grantable(&waiter.keys, id) {
                continue;
            }
            let (request, keys) = (waiter.id, waiter.keys.clone());
            let (kind, lease_micros) = (waiter.kind, waiter.lease_micros);
            // Without a token the waiter stays until its wait is over.
            let Some(token) = self.take_token() else {
                return;
            };
            let grant = self.grant(request, keys, kind, lease_micros, token);
            self.leave(id, None);
            if matches!(kind, Kind::Slots(_)) {
                // Another slot may be free for the next one.
                heads.extend(grant.keys.iter().filter_map(|name| self.head(name)));
            }
            events.push(Event::Granted(grant));
        }
    }

    fn head(&self, key: &Key) -> Option<(Ticket, Id)> {
        let id = self.names.head(key)?;
        let waiter = self.waiters.get(id).expect("a queue holds waiters");
        Some((waiter.ticket, id))
    }

    fn leave(&mut self, id: Id, headed: Option<&mut Vec<Key>>) -> Waiter {
        let waiter = self.waiters.get(id).expect("who leaves is there");
        let keys = waiter.keys.clone();
        self.names.dequeue(&keys, id, &mut self.waiters, headed);
        self.waiters.remove(id)
    }
}
