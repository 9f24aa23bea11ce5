//! Leader election at a Highwater server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::Key;
use highwater_protocol::{ErrorCode, Extensions, KeyState};

use super::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Grant, Holder, LeaderState, Lease,
    NotLeader, RenewError, Standing,
};
use crate::{
    AcquireError, AcquireOptions, Client, ExtendError, Lost, QueryError, Release, ReleaseError,
    Ticket,
};

/// Leader election at a Highwater server, over a [`Client`].
///
/// It needs a server with extensions for groups, minimum leases and extensions of leases; one without
/// them gives [`BackendError::Rejected`].
#[derive(Clone, Debug)]
pub struct Highwater(Client);

impl Highwater {
    /// Elects over the connections of this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }
}

impl From<Client> for Highwater {
    fn from(client: Client) -> Self {
        Self(client)
    }
}

#[cfg(feature = "blocking")]
impl From<&crate::blocking::Client> for Highwater {
    /// The connections live in the thread of the blocking client.
    fn from(client: &crate::blocking::Client) -> Self {
        Self(client.inner().clone())
    }
}

impl Backend for Highwater {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let client = self.0.clone();
        Box::pin(async move {
            if candidacy.auto_extend && cannot_extend(&client) {
                return Err(not_acquired(AcquireError::Unsupported));
            }
            let options = AcquireOptions::new()
                .wait(candidacy.wait)
                .lease(candidacy.lease)
                .min_hold(candidacy.min_lease)
                // A grant that arrives with less is extended or given back.
                .min_work(candidacy.lease / 3);
            let ticket = match candidacy.slots {
                None => client.acquire(&candidacy.name, options).await,
                Some(slots) => client.acquire_slot(&candidacy.name, slots, options).await,
            };
            match ticket {
                // It was not connected when it was asked before.
                Ok(ticket) if candidacy.auto_extend && cannot_extend(&client) => {
                    drop(ticket.unused());
                    Err(not_acquired(AcquireError::Unsupported))
                }
                Ok(ticket) => Ok(Some(
                    Arc::new(Held::new(candidacy.name, ticket)) as Arc<dyn Lease>
                )),
                Err(AcquireError::TimedOut) => Ok(None),
                Err(error) => Err(not_acquired(error)),
            }
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        let client = self.0.clone();
        Box::pin(async move { state(&client, name).await.map_err(not_told) })
    }
}

/// Whether the server is known to lack the extension of leases.
fn cannot_extend(client: &Client) -> bool {
    let has = client.extensions();
    has.is_some_and(|has| !has.contains(Extensions::EXTEND))
}

/// Walks over the slots that are taken.
async fn state(client: &Client, name: Key) -> Result<LeaderState, QueryError> {
    let mut status = client.query(&name).await?;
    let (slots, waiting) = (status.slots, status.waiters);
    let mut holders = Vec::new();
    loop {
        let (token, slot, standing) = match status.state {
            KeyState::Free => break,
            KeyState::Held {
                token,
                slot,
                remaining_ms,
            } => {
                let remaining = Duration::from_millis(remaining_ms.into());
                (token, slot, Standing::Held { remaining })
            }
            KeyState::Retained {
                token,
                slot,
                remaining_ms,
            } => {
                let remaining = Duration::from_millis(remaining_ms.into());
                (token, slot, Standing::Retained { remaining })
            }
        };
        holders.push(Holder {
            token,
            slot: slots.is_some().then_some(slot),
            standing,
            node: None,
        });
        let (Some(_), Some(next)) = (slots, slot.checked_add(1)) else {
            break;
        };
        status = client.query_slots(&name, next).await?;
    }
    Ok(LeaderState {
        name,
        slots,
        holders,
        waiting,
    })
}

/// A ticket, until it is given back.
struct Held {
    grant: Grant,
    ticket: Mutex<Option<Ticket>>,
}

impl Held {
    fn new(name: Key, ticket: Ticket) -> Self {
        let grant = Grant {
            name,
            slot: ticket.slot(),
            token: ticket.token(),
            domain: ticket.domain(),
        };
        Self {
            grant,
            ticket: Mutex::new(Some(ticket)),
        }
    }

    fn take(&self) -> Option<Ticket> {
        let mut ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        ticket.take()
    }

    fn with<T>(&self, work: impl FnOnce(&Ticket) -> T) -> Option<T> {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        ticket.as_ref().map(work)
    }
}

impl Lease for Held {
    fn grant(&self) -> &Grant {
        &self.grant
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        let remaining = self.with(|ticket| match ticket.ended() {
            Some(lost) => Err(lost),
            None => Ok(ticket.remaining()),
        });
        remaining.unwrap_or(Err(Lost::NotHeld))
    }

    fn lost(&self) -> BoxFuture<Lost> {
        let lost = self.with(Ticket::lost);
        Box::pin(async move {
            match lost {
                Some(lost) => lost.await,
                None => Lost::NotHeld,
            }
        })
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let extending = self.with(|ticket| ticket.extending(lease));
        Box::pin(async move {
            let Some(extending) = extending else {
                return Err(NotLeader::Ended.into());
            };
            extending.await.map_err(|error| match error {
                ExtendError::Lost(lost) => NotLeader::Lost(lost).into(),
                error => RenewError::Backend(not_extended(error)),
            })
        })
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        begin(self.take())
    }

    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        begin(self.take().map(Ticket::unused))
    }
}

/// Releases in a task of the client: whoever has the future may keep it and never poll it.
fn begin(ticket: Option<Ticket>) -> BoxFuture<Result<Release, BackendError>> {
    let Some(ticket) = ticket else {
        return Box::pin(async { Ok(Release::NotCurrent) });
    };
    // A client that is closed before the task runs waits for it.
    let (runtime, busy) = (ticket.runtime(), ticket.busy());
    let releasing = runtime.spawn(async move {
        let released = release(ticket).await;
        drop(busy);
        released
    });
    Box::pin(async move {
        let gone = || BackendError::Indeterminate(Cause::new("the runtime of the client is gone"));
        releasing.await.unwrap_or_else(|_| Err(gone()))
    })
}

async fn release(ticket: Ticket) -> Result<Release, BackendError> {
    match ticket.release_counting().await {
        // Perhaps it was released by an attempt whose answer got lost.
        (1.., Ok(Release::NotCurrent)) => {
            let cause = "an earlier attempt to release had no answer";
            Err(BackendError::Indeterminate(Cause::new(cause)))
        }
        (_, outcome) => outcome.map_err(not_released),
    }
}

fn not_acquired(error: AcquireError) -> BackendError {
    match error {
        // Not sent: most likely this client waits for so many answers already, which a service that
        // is well gives when others are done.
        AcquireError::Busy | AcquireError::NotSent => BackendError::Busy(Cause::new(error)),
        AcquireError::NotConnected
        | AcquireError::Rejected(ErrorCode::NotActive | ErrorCode::NoLeader) => {
            BackendError::Unavailable(Cause::new(error))
        }
        AcquireError::Indeterminate => BackendError::Indeterminate(Cause::new(error)),
        AcquireError::TooShort { .. } => BackendError::TooLate,
        AcquireError::Closed => BackendError::Closed,
        _ => BackendError::Rejected(Cause::new(error)),
    }
}

fn not_extended(error: ExtendError) -> BackendError {
    match error {
        ExtendError::Unknown => BackendError::Indeterminate(Cause::new(error)),
        ExtendError::Closed => BackendError::Closed,
        _ => BackendError::Rejected(Cause::new(error)),
    }
}

fn not_released(error: ReleaseError) -> BackendError {
    match error {
        ReleaseError::Closed => BackendError::Closed,
        ReleaseError::Unknown => BackendError::Indeterminate(Cause::new(error)),
        _ => BackendError::Rejected(Cause::new(error)),
    }
}

fn not_told(error: QueryError) -> BackendError {
    match error {
        QueryError::NoAnswer => BackendError::Unavailable(Cause::new(error)),
        QueryError::Closed => BackendError::Closed,
        _ => BackendError::Rejected(Cause::new(error)),
    }
}
