//! The recorder: one clock, one order.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use highwater_history::{Answer, CallId, Event, History, Request};

/// Writes down what happens, with the moment. Shared by all clients.
#[derive(Debug)]
pub(crate) struct Recorder {
    begun: Instant,
    history: Mutex<History>,
    calls: AtomicU64,
    connections: AtomicU64,
    grants: AtomicU64,
    /// The keys that nobody has been granted since the cluster was whole, once that is so.
    /// Only calls with a higher number count.
    healing: Mutex<Option<(u64, BTreeSet<String>)>>,
    /// Whether the clients should come to an end.
    ended: AtomicBool,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            history: Mutex::new(History::default()),
            calls: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            grants: AtomicU64::new(0),
            healing: Mutex::new(None),
            ended: AtomicBool::new(false),
        }
    }

    /// The moment, in microseconds since the recorder began.
    pub(crate) fn now(&self) -> u64 {
        micros(self.begun.elapsed())
    }

    /// Notes an event now.
    pub(crate) fn push(&self, event: Event) {
        let mut history = self.history.lock().expect("nobody panics here");
        // Under the lock, so that the order is that of the moments.
        history.push(self.now(), event);
    }

    /// Notes that a request is about to be sent. Its number is needed to make it.
    pub(crate) fn call(&self, connection: u64, request: Request) -> CallId {
        let call = self.number();
        self.begin(call, connection, request);
        call
    }

    /// A number for a call that is to begin.
    pub(crate) fn number(&self) -> CallId {
        CallId(self.calls.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Notes that the request with this number is about to be sent.
    pub(crate) fn begin(&self, call: CallId, connection: u64, request: Request) {
        self.push(Event::Called {
            call,
            connection,
            request,
        });
    }

    /// Notes an answer.
    pub(crate) fn answer(&self, call: CallId, answer: Answer) {
        self.push(Event::Answered { call, answer });
    }

    /// Notes a grant of these keys.
    pub(crate) fn granted(&self, call: CallId, keys: &[String], token: u64, slot: Option<u32>) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let answer = Answer::Granted {
            token,
            slot,
            epoch: None,
        };
        self.answer(call, answer);
        if let Some((last, left)) = &mut *self.healing.lock().expect("nobody panics here")
            && call.0 > *last
        {
            left.retain(|key| !keys.contains(key));
        }
    }

    /// Notes that from now on nothing is broken, and that each of these keys has to be granted again.
    pub(crate) fn heal(&self, keys: impl IntoIterator<Item = &'static str>) {
        self.push(Event::Healed);
        let keys = keys.into_iter().map(str::to_owned).collect();
        let last = self.calls.load(Ordering::Relaxed);
        *self.healing.lock().expect("nobody panics here") = Some((last, keys));
    }

    /// Whether a key has not been granted again.
    pub(crate) fn is_healing(&self) -> bool {
        let healing = self.healing.lock().expect("nobody panics here");
        healing.as_ref().is_none_or(|(_, left)| !left.is_empty())
    }

    /// A number for a new connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many grants clients have been told of.
    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Has the clients come to an end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Everything that was noted.
    pub(crate) fn history(&self) -> History {
        self.history.lock().expect("nobody panics here").clone()
    }
}

/// A span in microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
