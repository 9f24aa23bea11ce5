//! Every queued request, found by who asks, and the order in which their waits end.
//!
//! A ticket is a place in the order of arrival, across all keys. Which queues there are, and whose
//! turn it is, stands in [`names`](super::names); the links of a queue stand here, in its members.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::list::{List, Place};
use super::names::Kind;
use super::rows::Rows;
use super::slab::{Id, Slab};
use super::timers::{Due, Links, Timed, Timers};
use crate::{ConnectionId, HashSeed, Key, KeySet, RequestId, Timestamp, WaiterId};

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
    pub(super) ticket: Ticket,
    queues: Queues,
    links: Links,
}

/// The places in the queues of all keys, in the order of the keys.
#[derive(Clone, Debug)]
enum Queues {
    One(Place),
    Several(Box<[Place]>),
}

impl Waiter {
    /// Its place in the queue of a key, if it asks for that.
    fn place(&self, key: &Key) -> Option<&Place> {
        match &self.queues {
            Queues::One(place) => Some(place).filter(|_| self.keys.contains(key)),
            Queues::Several(places) => places.get(self.keys.binary_search(key).ok()?),
        }
    }

    fn place_mut(&mut self, key: &Key) -> &mut Place {
        match &mut self.queues {
            Queues::One(place) => place,
            Queues::Several(places) => {
                let index = self.keys.binary_search(key);
                &mut places[index.expect("a queue holds those who ask for its key")]
            }
        }
    }
}

impl Timed for Waiter {
    fn due(&self) -> Due {
        Due {
            at: self.deadline,
            order: self.ticket.0,
        }
    }

    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn links_ref(&self) -> Links {
        self.links
    }
}

/// The waiters of one connection that has any.
#[derive(Clone, Debug, Default)]
struct Mates {
    /// Most connections have one, which needs no map.
    one: Option<(RequestId, Id)>,
    others: BTreeMap<RequestId, Id>,
}

impl Mates {
    fn len(&self) -> usize {
        self.others.len() + usize::from(self.one.is_some())
    }

    fn find(&self, request: RequestId) -> Option<Id> {
        match self.one {
            Some((one, id)) if one == request => Some(id),
            _ => self.others.get(&request).copied(),
        }
    }

    fn any(&self) -> Option<Id> {
        let one = self.one.map(|(_, id)| id);
        one.or_else(|| self.others.values().next().copied())
    }

    fn insert(&mut self, request: RequestId, id: Id) {
        match self.one {
            None => self.one = Some((request, id)),
            Some(_) => {
                self.others.insert(request, id);
            }
        }
    }

    fn remove(&mut self, request: RequestId) -> Option<Id> {
        match self.one {
            Some((one, id)) if one == request => {
                self.one = None;
                Some(id)
            }
            _ => self.others.remove(&request),
        }
    }
}

/// A request that is about to queue.
pub(super) struct Newcomer {
    pub(super) id: WaiterId,
    pub(super) keys: KeySet,
    pub(super) kind: Kind,
    pub(super) deadline: Timestamp,
    pub(super) lease_micros: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Waiters {
    waiters: Slab<Waiter>,
    mates: Slab<Mates>,
    by_connection: Rows,
    timers: Timers,
    next_ticket: u64,
}

impl Waiters {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            waiters: Slab::default(),
            mates: Slab::default(),
            by_connection: Rows::new(seed),
            timers: Timers::default(),
            next_ticket: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn get(&self, id: Id) -> Option<&Waiter> {
        self.waiters.get(id)
    }

    pub(super) fn find(&self, id: WaiterId) -> Option<Id> {
        self.of(id.connection)?.find(id.request)
    }

    /// All of them, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &Waiter)> {
        self.waiters.iter()
    }

    /// All of them, in order of arrival.
    pub(super) fn in_order(&self) -> Vec<(Id, &Waiter)> {
        let mut waiters: Vec<(Id, &Waiter)> = self.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(_, waiter)| waiter.ticket);
        waiters
    }

    fn of(&self, connection: ConnectionId) -> Option<&Mates> {
        let mates = self.by_connection.get(connection.get())?;
        Some(&self.mates[mates])
    }

    /// A waiter of this connection, as long as it has any.
    pub(super) fn any_of(&self, connection: ConnectionId) -> Option<Id> {
        self.of(connection)?.any()
    }

    pub(super) fn count_of(&self, connection: ConnectionId) -> usize {
        self.of(connection).map_or(0, Mates::len)
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first()
    }

    /// The waiter whose wait ends first, if its end has come.
    pub(super) fn first_due(&self, now: Timestamp) -> Option<Id> {
        self.timers.first_due(now)
    }

    /// Adds a waiter behind all others. It stands in no queue yet.
    pub(super) fn insert(&mut self, newcomer: Newcomer) -> Id {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let Newcomer {
            id: request,
            keys,
            kind,
            deadline,
            lease_micros,
        } = newcomer;
        let queues = match keys.len() {
            1 => Queues::One(Place::default()),
            count => Queues::Several(alloc::vec![Place::default(); count].into()),
        };
        let id = self.waiters.insert(Waiter {
            id: request,
            keys,
            kind,
            deadline,
            lease_micros,
            ticket,
            queues,
            links: Links::default(),
        });
        self.timers.insert(&mut self.waiters, id);
        let connection = request.connection.get();
        let mates = self.by_connection.get(connection).unwrap_or_else(|| {
            let mates = self.mates.insert(Mates::default());
            self.by_connection.insert(connection, mates);
            mates
        });
        self.mates[mates].insert(request.request, id);
        id
    }

    /// Takes a waiter out, which must have left all queues.
    pub(super) fn remove(&mut self, id: Id) -> Waiter {
        self.timers.remove(&mut self.waiters, id);
        let waiter = self.waiters.remove(id);
        let connection = waiter.id.connection.get();
        let at = self.by_connection.get(connection);
        let at = at.expect("a waiter's connection is known");
        let mates = &mut self.mates[at];
        let known = mates.remove(waiter.id.request);
        assert_eq!(known, Some(id), "a waiter is found by its request");
        if mates.len() == 0 {
            self.mates.remove(at);
            self.by_connection.remove(connection);
        }
        waiter
    }

    /// Puts a waiter at the end of a key's queue.
    pub(super) fn enter(&mut self, queue: &mut List, key: &Key, id: Id) {
        queue.append(&mut self.waiters, id, |waiter| waiter.place_mut(key));
    }

    /// Takes a waiter out of a key's queue.
    pub(super) fn quit(&mut self, queue: &mut List, key: &Key, id: Id) {
        queue.remove(&mut self.waiters, id, |waiter| waiter.place_mut(key));
    }

    pub(super) fn check(&self, now: Timestamp) -> Result<(), &'static str> {
        self.waiters.check()?;
        self.timers.check(&self.waiters)?;
        self.mates.check()?;
        self.by_connection.check()?;
        for (id, waiter) in self.waiters.iter() {
            if self.find(waiter.id) != Some(id) {
                return Err("a waiter is found by its request");
            }
            if waiter.deadline <= now {
                return Err("no waiter outlives its wait");
            }
            if waiter.ticket.0 >= self.next_ticket {
                return Err("every ticket in use was given out");
            }
        }
        let mates = self.mates.iter().map(|(_, mates)| mates.len());
        let mates: Vec<usize> = mates.collect();
        if mates.contains(&0)
            || mates.iter().sum::<usize>() != self.waiters.len()
            || self.by_connection.len() != self.mates.len()
        {
            return Err("the waiters of each connection are known");
        }
        Ok(())
    }

    /// That a queue is linked both ways, in order of arrival, and holds only who asks for the key.
    pub(super) fn check_queue(&self, key: &Key, queue: &List) -> Result<(), &'static str> {
        queue.check(&self.waiters, |waiter| waiter.place(key))?;
        let place = |waiter| Waiter::place(waiter, key).expect("just looked at");
        let tickets = queue.iter(&self.waiters, place);
        let in_order = tickets.is_sorted_by(|(_, one), (_, next)| one.ticket < next.ticket);
        if !in_order {
            return Err("a queue is in order of arrival");
        }
        Ok(())
    }
}
