//! Which connections are open, and to which domain.
//!
//! Holds the ends where calls go in; who opens and runs the connections is in `keeper` and
//! `session`. Everybody who waits for a connection waits here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater_lock::Domain;
use highwater_protocol::Extensions;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::call::{Call, Control};
use crate::setup::{Progress, SetupError, Stage};

/// An open connection, for those who make calls.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) domain: Domain,
    /// `None` for a server of the base protocol.
    pub(crate) extensions: Option<Extensions>,
    pub(crate) acquires: mpsc::Sender<Call>,
    pub(crate) controls: mpsc::Sender<Control>,
}

impl Session {
    /// Whether the server has all of these.
    pub(crate) fn has(&self, extensions: Extensions) -> bool {
        self.extensions.unwrap_or_default().contains(extensions)
    }

    /// The connection may have ended before the pool heard of it.
    fn is_open(&self) -> bool {
        !self.controls.is_closed()
    }
}

/// What one connection is doing.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// It is being opened, for the last of these reasons.
    Down(Option<Arc<SetupError>>),
    Open(Arc<Session>),
}

impl Link {
    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Open(session) if session.is_open() => Some(session),
            _ => None,
        }
    }
}

/// All connections of a client.
#[derive(Debug)]
pub(crate) struct Pool {
    links: watch::Sender<Vec<Link>>,
    /// How far the attempt at each link that is down has come.
    progress: Vec<Progress>,
    next: AtomicUsize,
    /// Which connection leads to the leader of a cluster, as far as is known.
    leader: watch::Sender<Option<usize>>,
}

/// See [`Pool::naming`].
#[derive(Debug)]
pub(crate) struct Naming(watch::Receiver<Option<usize>>);

impl Naming {
    /// Completes when somebody has newly said that the node behind this connection leads.
    pub(crate) async fn names(&mut self, index: usize) {
        loop {
            if self.0.changed().await.is_err() {
                // Nobody is left to say anything.
                return std::future::pending().await;
            }
            if *self.0.borrow_and_update() == Some(index) {
                return;
            }
        }
    }
}

/// Why there is no connection to make a call on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSession {
    /// None opened in time.
    InTime,
    /// The server refuses the client token on all of them.
    Unauthenticated,
    /// There are some, but to another domain.
    OtherDomain,
}

impl Pool {
    pub(crate) fn new(links: usize) -> Self {
        Self {
            links: watch::Sender::new(vec![Link::Down(None); links]),
            progress: (0..links).map(|_| Progress::default()).collect(),
            next: AtomicUsize::new(0),
            leader: watch::Sender::new(None),
        }
    }

    /// What the node behind this connection says of who leads.
    pub(crate) fn led_by(&self, index: usize, leader: Option<usize>) {
        self.leader.send_if_modified(|known| match leader {
            Some(_) if *known != leader => {
                *known = leader;
                true
            }
            // It may only know that it does not lead itself.
            None if *known == Some(index) => {
                *known = None;
                true
            }
            _ => false,
        });
    }

    /// The connection to the leader, if both are there.
    fn to_leader(&self) -> Option<Arc<Session>> {
        let index = (*self.leader.borrow())?;
        let links = self.links.borrow();
        links.get(index)?.session().cloned()
    }

    /// Completes when there is a connection to the leader: another one than that on which somebody has
    /// just asked, or, once something new is said of who leads, any.
    pub(crate) async fn leader_ready(&self, asked: &Session) {
        let (mut leader, mut links) = (self.leader.subscribe(), self.links.subscribe());
        let mut is_news = false;
        loop {
            let session = self.to_leader();
            if session.is_some_and(|session| is_news || !std::ptr::eq(&*session, asked)) {
                return;
            }
            let changed = tokio::select! {
                changed = leader.changed() => {
                    is_news = true;
                    changed
                }
                changed = links.changed() => changed,
            };
            changed.expect("the pool holds the sender");
        }
    }

    /// For whoever opens a connection: tells from now on when its node is said to lead.
    pub(crate) fn naming(&self) -> Naming {
        Naming(self.leader.subscribe())
    }

    pub(crate) fn set(&self, index: usize, link: Link) {
        self.links.send_modify(|links| links[index] = link);
    }

    pub(crate) fn progress(&self, index: usize) -> &Progress {
        &self.progress[index]
    }

    /// An open connection to any domain.
    pub(crate) async fn any(&self, until: Instant) -> Result<Arc<Session>, NoSession> {
        self.wait(until, |links| {
            let session = self.rotate(links, |_| true);
            match session {
                Some(session) => Some(Ok(session)),
                None if refused(links) => Some(Err(NoSession::Unauthenticated)),
                None => None,
            }
        })
        .await
        .unwrap_or(Err(NoSession::InTime))
    }

    /// An open connection to this domain.
    pub(crate) async fn of(
        &self,
        domain: Domain,
        until: Instant,
    ) -> Result<Arc<Session>, NoSession> {
        self.wait(until, |links| {
            let session = self.rotate(links, |session| session.domain == domain);
            match session {
                Some(session) => Some(Ok(session)),
                None if moved_on(links, domain) => Some(Err(NoSession::OtherDomain)),
                None => None,
            }
        })
        .await
        .unwrap_or(Err(NoSession::InTime))
    }

    /// Completes when there are connections, but none to this domain.
    pub(crate) async fn domain_gone(&self, domain: Domain) {
        let mut links = self.links.subscribe();
        let gone = links.wait_for(|links| moved_on(links, domain)).await;
        gone.expect("the pool holds the sender");
    }

    /// Those of the server, if there is a connection to it.
    pub(crate) fn extensions(&self) -> Option<Extensions> {
        let links = self.links.borrow();
        let mut sessions = links.iter().filter_map(Link::session);
        let session = sessions.next()?;
        Some(session.extensions.unwrap_or_default())
    }

    /// Whether there are connections, but none to this domain.
    pub(crate) fn is_domain_gone(&self, domain: Domain) -> bool {
        moved_on(&self.links.borrow(), domain)
    }

    /// Waits until a connection is open or none can be had; for the start of a client.
    pub(crate) async fn first(&self, until: Instant) -> Result<(), Arc<SetupError>> {
        let outcome = self.wait(until, |links| {
            if links.iter().any(|link| link.session().is_some()) {
                return Some(Ok(()));
            }
            let fatal = links.iter().map(|link| match link {
                Link::Down(Some(error)) if error.is_fatal() => Some(Arc::clone(error)),
                _ => None,
            });
            let fatal: Option<Vec<_>> = fatal.collect();
            let error = fatal.and_then(|errors| errors.into_iter().next());
            error.map(Err)
        });
        match outcome.await {
            Some(outcome) => outcome,
            None => {
                let links = self.links.borrow();
                let last = links.iter().find_map(|link| match link {
                    Link::Down(error) => error.clone(),
                    Link::Open(_) => None,
                });
                Err(last.unwrap_or_else(|| Arc::new(SetupError::TimedOut(self.furthest()))))
            }
        }
    }

    /// The most that an attempt has come to which is still under way.
    fn furthest(&self) -> Stage {
        let stages = self.progress.iter().map(Progress::stage);
        stages.max().expect("there is a link")
    }

    /// Asks for a decision on every change.
    async fn wait<T>(
        &self,
        until: Instant,
        mut decide: impl FnMut(&[Link]) -> Option<T>,
    ) -> Option<T> {
        // Mostly there is nothing to wait for.
        let decision = decide(&self.links.borrow());
        if decision.is_some() {
            return decision;
        }
        let mut links = self.links.subscribe();
        loop {
            let decision = decide(&links.borrow_and_update());
            if decision.is_some() {
                return decision;
            }
            match timeout_at(until, links.changed()).await {
                Ok(changed) => changed.expect("the pool holds the sender"),
                Err(_) => return None,
            }
        }
    }

    /// That to the leader; else the next one of those that suit, so that calls spread over the
    /// connections.
    fn rotate(&self, links: &[Link], suits: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let leader = self
            .leader
            .borrow()
            .and_then(|index| links.get(index)?.session());
        if let Some(session) = leader.filter(|session| suits(session)) {
            return Some(Arc::clone(session));
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        (0..links.len())
            .filter_map(|offset| links[start.wrapping_add(offset) % links.len()].session())
            .find(|session| suits(session))
            .cloned()
    }
}

/// Whether the client token is refused wherever there is an answer at all.
fn refused(links: &[Link]) -> bool {
    let mut unauthenticated = links.iter().map(
        |link| matches!(link, Link::Down(Some(error)) if matches!(**error, SetupError::Rejected)),
    );
    unauthenticated.all(|refused| refused)
}

fn moved_on(links: &[Link], domain: Domain) -> bool {
    let mut domains = links.iter().filter_map(Link::session).map(|s| s.domain);
    match domains.next() {
        Some(first) => first != domain && domains.all(|other| other != domain),
        None => false,
    }
}
