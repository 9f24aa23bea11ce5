//! A third backend, as an example of one: a lock service that is a table, as it might lie in a database,
//! and candidates who look at it again and again. It is no more than the contract asks for.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_client::leader::contract::{Memory, Service};
use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, Grant, Holder, LeaderState, Lease,
    NodeId, NotLeader, RenewError, Standing, TokioClock,
};
use highwater_client::{Domain, FencingToken, Key, Lost, Release};

/// The table. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Table {
    rows: Arc<Mutex<Rows>>,
    clock: TokioClock,
}

/// Everything is decided while this is locked: one step, as a transaction would be.
struct Rows {
    /// Another one after each start without a memory: the tokens begin anew.
    domain: Domain,
    away: bool,
    last_token: u64,
    last_place: u64,
    names: BTreeMap<Key, Name>,
}

#[derive(Default)]
struct Name {
    slots: Option<NonZeroU32>,
    leaders: Vec<Row>,
    /// Places, and when their candidates have looked.
    queue: VecDeque<(u64, Duration)>,
}

struct Row {
    token: FencingToken,
    slot: u32,
    node: NodeId,
    ends: Duration,
    /// Nobody else before this, whatever becomes of the lease.
    kept_until: Duration,
    released: bool,
}

/// How often a candidate looks.
const LOOK: Duration = Duration::from_millis(20);
/// One who does not look for so long is left out, so that a candidate whose future is kept and not polled
/// keeps nobody out. If it looks again, it stands behind the others.
const GONE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(3_600);

impl Default for Table {
    fn default() -> Self {
        Self {
            rows: Arc::new(Mutex::new(Rows::of(1))),
            clock: TokioClock::new(),
        }
    }
}

impl Rows {
    fn of(domain: u8) -> Self {
        Self {
            domain: Domain::from_bytes([domain; 32]),
            away: false,
            last_token: 0,
            last_place: 0,
            names: BTreeMap::new(),
        }
    }

    fn is_reached(&self) -> Result<(), BackendError> {
        match self.away {
            false => Ok(()),
            true => Err(BackendError::Unavailable(Cause::new("out of reach"))),
        }
    }

    /// A name without what is over.
    fn name(&mut self, name: &Key, now: Duration) -> &mut Name {
        let entry = self.names.entry(name.clone()).or_default();
        entry.leaders.retain(|row| match row.released {
            true => row.kept_until > now,
            false => row.ends > now,
        });
        entry.queue.retain(|(_, looked)| *looked + GONE > now);
        if entry.leaders.is_empty() && entry.queue.is_empty() {
            entry.slots = None;
        }
        entry
    }

    /// A lease that is good.
    fn row(&mut self, grant: &Grant, now: Duration) -> Result<&mut Row, Lost> {
        if self.domain != grant.domain {
            return Err(Lost::DomainChanged);
        }
        let leaders = &mut self.name(&grant.name, now).leaders;
        let row = leaders.iter_mut().find(|row| row.token == grant.token);
        row.filter(|row| !row.released).ok_or(Lost::NotHeld)
    }
}

impl Table {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets into the queue.
    fn queue(&self, candidacy: &Candidacy) -> Result<Place, BackendError> {
        let mut rows = self.rows();
        rows.is_reached()?;
        rows.last_place += 1;
        let (number, domain) = (rows.last_place, rows.domain);
        let name = rows.name(&candidacy.name, self.clock.elapsed());
        let in_use = !name.leaders.is_empty() || !name.queue.is_empty();
        if in_use && name.slots != candidacy.slots {
            let cause = "in use with another number of slots";
            return Err(BackendError::Rejected(Cause::new(cause)));
        }
        name.slots = candidacy.slots;
        name.queue.push_back((number, self.clock.elapsed()));
        Ok(Place {
            table: self.clone(),
            name: candidacy.name.clone(),
            domain,
            number,
        })
    }
}

/// A place in the queue, given up when it is dropped.
struct Place {
    table: Table,
    name: Key,
    domain: Domain,
    number: u64,
}

impl Place {
    /// Takes a slot, if it is this one's turn and there is one.
    fn take(&self, candidacy: &Candidacy) -> Result<Option<Entry>, BackendError> {
        let (now, mut rows) = (self.table.clock.elapsed(), self.table.rows());
        rows.is_reached()?;
        if rows.domain != self.domain {
            let cause = "it started anew";
            return Err(BackendError::Indeterminate(Cause::new(cause)));
        }
        let token = FencingToken::new(rows.last_token + 1).unwrap();
        let name = rows.name(&self.name, now);
        let place = name.queue.iter_mut().find(|place| place.0 == self.number);
        match place {
            Some((_, looked)) => *looked = now,
            None => name.queue.push_back((self.number, now)),
        }
        let slots = name.slots.map_or(1, NonZeroU32::get);
        let slot = (0..slots).find(|slot| name.leaders.iter().all(|row| row.slot != *slot));
        let Some(slot) = slot.filter(|_| name.queue.front() == Some(&(self.number, now))) else {
            return Ok(None);
        };
        name.leaders.push(Row {
            token,
            slot,
            node: candidacy.node.clone(),
            ends: now + candidacy.lease,
            kept_until: now + candidacy.min_lease,
            released: false,
        });
        rows.last_token += 1;
        Ok(Some(Entry {
            table: self.table.clone(),
            grant: Grant {
                name: self.name.clone(),
                slot: candidacy.slots.map(|_| slot),
                token,
                domain: self.domain,
            },
            end: Mutex::new(Ok(now + candidacy.lease)),
        }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut rows = self.table.rows();
        if rows.domain == self.domain
            && let Some(name) = rows.names.get_mut(&self.name)
        {
            name.queue.retain(|(number, _)| *number != self.number);
        }
    }
}

impl Backend for Table {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let table = self.clone();
        Box::pin(async move {
            let until = table.clock.elapsed() + candidacy.wait;
            let place = table.queue(&candidacy)?;
            loop {
                if let Some(entry) = place.take(&candidacy)? {
                    return Ok(Some(Arc::new(entry) as Arc<dyn Lease>));
                }
                let left = until.saturating_sub(table.clock.elapsed());
                if left.is_zero() {
                    return Ok(None);
                }
                table.clock.sleep(left.min(LOOK)).await;
            }
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        let table = self.clone();
        Box::pin(async move {
            let (now, mut rows) = (table.clock.elapsed(), table.rows());
            rows.is_reached()?;
            let entry = rows.name(&name, now);
            let holders = entry.leaders.iter().map(|row| Holder {
                token: row.token,
                slot: entry.slots.map(|_| row.slot),
                standing: match row.released {
                    false => Standing::Held {
                        remaining: row.ends - now,
                    },
                    true => Standing::Retained {
                        remaining: row.kept_until - now,
                    },
                },
                node: Some(row.node.clone()),
            });
            Ok(LeaderState {
                holders: holders.collect(),
                slots: entry.slots,
                waiting: u32::try_from(entry.queue.len()).unwrap(),
                name,
            })
        })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }
}

/// A lease in the table.
struct Entry {
    table: Table,
    grant: Grant,
    end: Mutex<Result<Duration, Lost>>,
}

impl Entry {
    fn end(&self) -> MutexGuard<'_, Result<Duration, Lost>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lengthen(&self, lease: Duration) -> Result<(), RenewError> {
        if lease.is_zero() || lease > LONGEST {
            let cause = Cause::new("no time for a lease");
            return Err(BackendError::Rejected(cause).into());
        }
        let (now, mut rows) = (self.table.clock.elapsed(), self.table.rows());
        rows.is_reached()?;
        let mut end = self.end();
        let before = (*end).map_err(NotLeader::Lost)?;
        *end = rows.row(&self.grant, now).map(|row| {
            row.ends = row.ends.max(now + lease);
            row.ends.max(before)
        });
        Ok(end.map(drop).map_err(NotLeader::Lost)?)
    }

    fn give_back(&self) -> Result<Release, BackendError> {
        *self.end() = Err(Lost::NotHeld);
        let (now, mut rows) = (self.table.clock.elapsed(), self.table.rows());
        rows.is_reached()?;
        let released = rows.row(&self.grant, now).map(|row| row.released = true);
        Ok(match released {
            Ok(()) => Release::Released,
            Err(_) => Release::NotCurrent,
        })
    }
}

impl Lease for Entry {
    fn grant(&self) -> &Grant {
        &self.grant
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        let mut end = self.end();
        let left = (*end)?.saturating_sub(self.table.clock.elapsed());
        if left.is_zero() {
            *end = Err(Lost::Expired);
        }
        end.map(|_| left)
    }

    fn lost(&self) -> BoxFuture<Lost> {
        let (table, domain) = (self.table.clone(), self.grant.domain);
        Box::pin(async move {
            while table.rows().domain == domain {
                table.clock.sleep(LOOK).await;
            }
            Lost::DomainChanged
        })
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let lengthened = self.lengthen(lease);
        Box::pin(async { lengthened })
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        let released = self.give_back();
        Box::pin(async { released })
    }
}

impl Service for Table {
    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_virtual(&self) -> bool {
        true
    }

    async fn backend(&self, _node: &str) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    async fn force_release(&self, name: &Key) {
        let mut rows = self.rows();
        rows.last_token += 1; // It burns one.
        rows.names.get_mut(name).unwrap().leaders.clear();
    }

    async fn restart(&self) -> Memory {
        *self.rows() = Rows::of(2);
        Memory::Lost
    }

    async fn outage(&self, lasts: bool) {
        self.rows().away = lasts;
    }
}
