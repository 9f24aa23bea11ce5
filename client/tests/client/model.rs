//! A server that answers by itself, keeps the books of who holds what, and errs on order.
//!
//! It grants whatever is asked for, so a lock that is held at the end is one that was leaked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::{Builder, Client, KeyState, KeyStatus};
use highwater_protocol::{Reply, Request};
use tokio::time::sleep;

use crate::fake::{Door, Event, Fake, Manners, Peer};
use crate::{acquired, domain, granted, released};

/// What is answered in another way than it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// To which requests: the opcode.
    pub(crate) to: Kind,
    /// So many bytes of the answer are sent.
    pub(crate) bytes: usize,
    /// Then the connection is closed, or nothing more is said on it.
    pub(crate) closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire,
    Release,
    Extend,
    Cancel,
    Query,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    /// What is held, by token.
    pub(crate) held: BTreeMap<u64, String>,
    /// How many requests of each kind came.
    pub(crate) acquires: usize,
    pub(crate) releases: usize,
    /// Those of them with a minimum hold.
    pub(crate) retains: usize,
    pub(crate) extends: usize,
    pub(crate) cancels: usize,
    pub(crate) queries: usize,
    pub(crate) open: usize,
    fault: Option<Fault>,
    /// Connections on which nothing more is said.
    silent: BTreeSet<usize>,
    /// Whether extensions find nothing to extend.
    forgetful: bool,
}

#[derive(Clone)]
pub(crate) struct Model {
    books: Arc<Mutex<Books>>,
    builder: Builder,
    #[cfg_attr(not(feature = "blocking"), expect(dead_code))]
    door: Door,
}

impl Model {
    /// Answers after so long.
    pub(crate) async fn start(manners: Manners, delay: Duration) -> Self {
        let mut fake = Fake::start(manners).await;
        let model = Self {
            books: Arc::default(),
            builder: fake.builder(),
            door: fake.door(),
        };
        let books = Arc::clone(&model.books);
        tokio::spawn(async move {
            while let Some(event) = fake.any_event().await {
                match event {
                    Event::Opened(_) => books.lock().unwrap().open += 1,
                    Event::Closed(_) => books.lock().unwrap().open -= 1,
                    Event::Request(peer, request) => {
                        let books = Arc::clone(&books);
                        tokio::spawn(async move {
                            if !delay.is_zero() {
                                sleep(delay).await;
                            }
                            answer(&mut books.lock().unwrap(), &peer, &request);
                        });
                    }
                }
            }
        });
        model
    }

    /// With everything that there is.
    pub(crate) async fn full() -> Self {
        Self::start(Manners::Full(domain(1)), Duration::ZERO).await
    }

    /// Counts in seconds.
    pub(crate) async fn polite() -> Self {
        Self::start(Manners::Polite(domain(1)), Duration::ZERO).await
    }

    pub(crate) fn builder(&self) -> Builder {
        self.builder.clone()
    }

    /// For other builders.
    #[cfg(feature = "blocking")]
    pub(crate) fn door(&self) -> Door {
        self.door.clone()
    }

    pub(crate) async fn client(&self) -> Client {
        self.builder().connect().await.unwrap()
    }

    pub(crate) fn books<T>(&self, read: impl FnOnce(&Books) -> T) -> T {
        read(&self.books.lock().unwrap())
    }

    pub(crate) fn errs(&self, fault: Option<Fault>) {
        self.books.lock().unwrap().fault = fault;
    }

    pub(crate) fn forgets(&self) {
        self.books.lock().unwrap().forgetful = true;
    }
}

fn answer(books: &mut Books, peer: &Peer, request: &Request) {
    let id = request.id();
    let (kind, reply) = match request {
        Request::Acquire { .. } | Request::AcquireTimed { .. } | Request::AcquireSlot { .. } => {
            books.acquires += 1;
            let token = books.acquires as u64;
            books.held.insert(token, acquired(request));
            (Kind::Acquire, granted(request, token))
        }
        Request::Release { token, .. } | Request::Retain { token, .. } => {
            books.releases += 1;
            books.retains += usize::from(matches!(request, Request::Retain { .. }));
            let reply = match books.held.remove(&token.get()) {
                Some(_) => released(request),
                None => Reply::NotHeld { id },
            };
            (Kind::Release, reply)
        }
        Request::Extend { token, lease, .. } => {
            books.extends += 1;
            let is_held = books.held.contains_key(&token.get()) && !books.forgetful;
            let remaining_ms = lease.get();
            let reply = if is_held {
                Reply::Extended { id, remaining_ms }
            } else {
                Reply::NotHeld { id }
            };
            (Kind::Extend, reply)
        }
        Request::Query { .. } => {
            books.queries += 1;
            let status = KeyStatus {
                state: KeyState::Free,
                waiters: 3,
                slots: None,
                taken: 0,
            };
            (Kind::Query, Reply::Status { id, status })
        }
        Request::Cancel { .. } => {
            books.cancels += 1;
            let was_queued = false;
            (Kind::Cancel, Reply::Cancelled { id, was_queued })
        }
        Request::Domain { .. } => panic!("the fake answers it"),
    };
    if books.silent.contains(&peer.number) {
        return;
    }
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    let fault = books.fault.filter(|fault| fault.to == kind);
    if let Some(fault) = fault {
        bytes.truncate(fault.bytes);
        books.silent.insert(peer.number);
    }
    peer.send(bytes);
    if fault.is_some_and(|fault| fault.closes) {
        peer.close();
    }
}
