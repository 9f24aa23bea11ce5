//! Every queued request by its ticket, and the order in which their waits end.
//!
//! A ticket is a place in the order of arrival, across all keys. The queues themselves stand in
//! [`names`](super::names).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::names::Kind;
use crate::{ConnectionId, KeySet, RequestId, Timestamp, WaiterId};

/// A place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) id: WaiterId,
    pub(super) keys: KeySet,
    pub(super) kind: Kind,
    pub(super) deadline: Timestamp,
    pub(super) lease_micros: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Waiters {
    by_ticket: BTreeMap<Ticket, Waiter>,
    by_id: BTreeMap<WaiterId, Ticket>,
    deadlines: BTreeSet<(Timestamp, Ticket)>,
    /// How many of each connection that has any.
    connections: BTreeMap<ConnectionId, u32>,
    next_ticket: u64,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.by_ticket.get(&ticket)
    }

    pub(super) fn ticket(&self, id: WaiterId) -> Option<Ticket> {
        self.by_id.get(&id).copied()
    }

    /// All of them in order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.by_ticket
            .iter()
            .map(|(ticket, waiter)| (*ticket, waiter))
    }

    pub(super) fn of_connection(&self, connection: ConnectionId) -> Vec<Ticket> {
        let first = WaiterId::new(connection, RequestId::new(0));
        let last = WaiterId::new(connection, RequestId::new(u64::MAX));
        let tickets = self.by_id.range(first..=last);
        tickets.map(|(_, ticket)| *ticket).collect()
    }

    pub(super) fn count_of(&self, connection: ConnectionId) -> u32 {
        self.connections.get(&connection).copied().unwrap_or(0)
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The waiter whose wait ends first, if its end has come.
    pub(super) fn first_due(&self, now: Timestamp) -> Option<Ticket> {
        let (deadline, ticket) = self.deadlines.first()?;
        (*deadline <= now).then_some(*ticket)
    }

    /// Adds a waiter behind all others.
    pub(super) fn insert(&mut self, waiter: Waiter) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let twin = self.by_id.insert(waiter.id, ticket);
        assert!(twin.is_none(), "a request is queued once");
        self.deadlines.insert((waiter.deadline, ticket));
        *self.connections.entry(waiter.id.connection).or_insert(0) += 1;
        self.by_ticket.insert(ticket, waiter);
        ticket
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Waiter {
        let waiter = self
            .by_ticket
            .remove(&ticket)
            .expect("the ticket is queued");
        self.by_id.remove(&waiter.id);
        self.deadlines.remove(&(waiter.deadline, ticket));
        let connection = waiter.id.connection;
        let count = self
            .connections
            .get_mut(&connection)
            .expect("a waiter's connection is counted");
        *count -= 1;
        if *count == 0 {
            self.connections.remove(&connection);
        }
        waiter
    }

    pub(super) fn check(&self, now: Timestamp) -> Result<(), &'static str> {
        let mut counts: BTreeMap<ConnectionId, u32> = BTreeMap::new();
        for (ticket, waiter) in &self.by_ticket {
            if self.by_id.get(&waiter.id) != Some(ticket)
                || !self.deadlines.contains(&(waiter.deadline, *ticket))
            {
                return Err("every waiter is in the indices");
            }
            if waiter.deadline <= now {
                return Err("no waiter outlives its wait");
            }
            *counts.entry(waiter.id.connection).or_insert(0) += 1;
        }
        if self.by_id.len() != self.by_ticket.len() || self.deadlines.len() != self.by_ticket.len()
        {
            return Err("the indices hold exactly the waiters");
        }
        if counts != self.connections {
            return Err("the waiters of each connection are counted");
        }
        Ok(())
    }
}
