//! A client that speaks the bytes: it cancels, vanishes, abandons, comes late, and repeats nothing
//! without saying so.

use std::sync::Arc;
use std::time::Duration;

use highwater_history::{Answer, CallId, Request as Call};
use highwater_protocol::{
    ErrorCode, FencingToken, Key, KeySet, LeaseMillis, Reply, Request, RequestNumber, SpanMillis,
};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::connection::{Access, Connection, Leader};
use crate::database::Rows;
use crate::random::Random;
use crate::record::{Recorder, micros};
use crate::workload::{LONGEST_LEASE, Times, WIRE_KEYS, WIRE_SLOTS};

/// See the module's description.
pub(crate) struct WireWorker {
    access: Access,
    recorder: Arc<Recorder>,
    random: Random,
    rows: Option<Rows>,
    leader: Arc<Leader>,
    connection: Option<(u8, Connection)>,
}

/// What is held.
struct Held {
    keys: Vec<String>,
    token: FencingToken,
    slot: Option<u32>,
}

impl WireWorker {
    pub(crate) fn new(access: Access, recorder: Arc<Recorder>, random: Random, rows: Rows) -> Self {
        Self {
            access,
            recorder,
            random,
            rows: Some(rows),
            leader: Arc::default(),
            connection: None,
        }
    }

    /// Works until the run comes to its end.
    pub(crate) async fn work(mut self) {
        while !self.recorder.has_ended() {
            if let Some(held) = self.acquire().await {
                self.hold(held).await;
            }
        }
    }

    /// A connection to whoever leads, as far as it is known.
    async fn connection(&mut self) -> Option<&mut Connection> {
        let leader = self.leader.get();
        let usable = self
            .connection
            .as_ref()
            .is_some_and(|(slot, connection)| *slot == leader && connection.is_open());
        if !usable {
            self.connection = None;
            let opened = Connection::open(&self.access, leader, &self.leader, &self.recorder);
            match opened.await {
                Ok(connection) => self.connection = Some((leader, connection)),
                Err(_) => {
                    self.ask_the_next(leader);
                    sleep(PAUSE).await;
                }
            }
        }
        self.connection.as_mut().map(|(_, connection)| connection)
    }

    fn ask_the_next(&mut self, slot: u8) {
        let count = u8::try_from(self.access.addresses.len()).unwrap_or(u8::MAX);
        self.leader.set((slot + 1) % count);
    }

    async fn acquire(&mut self) -> Option<Held> {
        let call = self.recorder.number();
        let times = Times::of(call, &mut self.random);
        let slots = self.random.percent(15).then_some(WIRE_SLOTS.1);
        let mut keys = vec![(*self.random.choose(&WIRE_KEYS)).to_owned()];
        if slots.is_some() {
            keys = vec![WIRE_SLOTS.0.to_owned()];
        } else if self.random.percent(15) {
            keys.push((*self.random.choose(&WIRE_KEYS)).to_owned());
            keys.sort_unstable();
            keys.dedup();
        }
        let recorder = Arc::clone(&self.recorder);
        let connection = self.connection().await?;
        let asked = Call::Acquire {
            keys: keys.clone(),
            slots,
            wait: micros(times.wait),
            lease: micros(times.lease),
        };
        recorder.begin(call, connection.number, asked);
        let (wait, lease) = (span(times.wait), lease(times.lease));
        let set = key_set(&keys);
        let (id, mut answer) = connection
            .send(|id| match slots {
                Some(slots) => Request::AcquireSlot {
                    id,
                    name: set.keys()[0].clone(),
                    slots: slots.try_into().expect("not zero"),
                    wait,
                    lease,
                },
                None => Request::AcquireTimed {
                    id,
                    keys: set,
                    wait,
                    lease,
                },
            })
            .await;
        let chance = self.random.number(0..100);
        let early = self.random.millis(0..400);
        if chance < 20
            && let Ok(answered) = timeout(early, &mut answer).await
        {
            // Too early to give up: it is answered.
            return self.acquired(call, keys, answered.ok()).await;
        }
        if chance < 8 {
            // Gone while it waits: nobody may be granted in its place.
            recorder.answer(call, Answer::Unknown);
            self.connection = None;
            return None;
        }
        if chance < 20 {
            self.cancel(call, id).await;
        }
        let answered = timeout(times.wait + GRACE, answer).await;
        self.acquired(call, keys, answered.ok().and_then(Result::ok))
            .await
    }

    async fn acquired(
        &mut self,
        call: CallId,
        keys: Vec<String>,
        reply: Option<Reply>,
    ) -> Option<Held> {
        let (token, slot) = match reply {
            Some(Reply::GrantedTimed { token, .. }) => (token, None),
            Some(Reply::GrantedSlot { token, slot, .. }) => (token, Some(slot)),
            other => {
                let answer = match other {
                    Some(Reply::TimedOut { .. }) => Answer::TimedOut,
                    Some(Reply::Busy { .. }) => Answer::Busy,
                    other => self.turned_away(other).await,
                };
                self.recorder.answer(call, answer);
                return None;
            }
        };
        self.recorder.granted(call, &keys, token.get(), slot);
        Some(Held { keys, token, slot })
    }

    /// What an answer means that decides nothing. Goes elsewhere with the next request.
    async fn turned_away(&mut self, reply: Option<Reply>) -> Answer {
        let asked = self.leader.get();
        match reply {
            Some(Reply::Moved { leader, .. }) => {
                match leader {
                    Some(slot) => self.leader.set(slot.get()),
                    None => self.ask_the_next(asked),
                }
                Answer::NotTaken
            }
            Some(Reply::Error {
                code: ErrorCode::NoLeader | ErrorCode::NotActive,
                ..
            }) => {
                self.ask_the_next(asked);
                sleep(PAUSE).await;
                Answer::NotTaken
            }
            Some(Reply::Error { .. }) => Answer::NotTaken,
            Some(Reply::Indeterminate { .. }) => Answer::Unknown,
            _ => {
                // No answer: this connection is of no use any more.
                self.connection = None;
                self.ask_the_next(asked);
                Answer::Unknown
            }
        }
    }

    async fn cancel(&mut self, acquire: CallId, acquire_id: RequestNumber) {
        let Some((_, connection)) = &mut self.connection else {
            return;
        };
        let number = connection.number;
        let call = self.recorder.call(number, Call::Cancel { other: acquire });
        let asked = connection.send(|id| Request::Cancel {
            id,
            acquire: acquire_id,
        });
        let (_, answer) = asked.await;
        let answer = match timeout(GRACE, answer).await {
            Ok(Ok(Reply::Cancelled {
                was_queued: true, ..
            })) => Answer::Cancelled,
            Ok(Ok(Reply::Cancelled { .. })) => Answer::NotQueued,
            Ok(Ok(Reply::Moved { .. } | Reply::Error { .. })) => Answer::NotTaken,
            _ => Answer::Unknown,
        };
        self.recorder.answer(call, answer);
    }

    /// Holds a lock in one of many ways.
    async fn hold(&mut self, held: Held) {
        let pause = self.random.millis(0..60);
        sleep(pause).await;
        self.write(&held).await;
        if self.random.percent(25) {
            let longer = self.random.millis(1_000..3_000);
            self.extend(&held, longer).await;
            self.write(&held).await;
        }
        match self.random.number(0..100) {
            // Kept in the hand and never given back: the lease ends it.
            0..8 => return,
            // Paused for longer than any lease, then writes: too late, if somebody was faster.
            8..12 => {
                sleep(LONGEST_LEASE).await;
                self.write(&held).await;
                self.extend(&held, Duration::from_secs(1)).await;
                return;
            }
            12..20 => {
                let minimum = self.random.millis(100..800);
                self.release(&held, minimum).await;
            }
            _ => self.release(&held, Duration::ZERO).await,
        }
        if self.random.percent(5) {
            // Given back already.
            self.release(&held, Duration::ZERO).await;
        }
    }

    async fn write(&mut self, held: &Held) {
        let Some(mut rows) = self.rows.take().filter(|_| held.slot.is_none()) else {
            return;
        };
        let (recorder, token) = (Arc::clone(&self.recorder), held.token);
        let key = held.keys[0].clone();
        let written = tokio::task::spawn_blocking(move || {
            rows.write(&recorder, &key, token);
            rows
        });
        self.rows = written.await.ok();
    }

    async fn extend(&mut self, held: &Held, longer: Duration) {
        let (keys, token) = (held.keys.clone(), held.token);
        let request = Call::Extend {
            keys: keys.clone(),
            token: token.get(),
            lease: micros(longer),
        };
        let set = key_set(&keys);
        let lease = lease(longer);
        let make = move |id| Request::Extend {
            id,
            keys: set,
            token,
            lease,
        };
        let Some((call, reply)) = self.ask(request, make).await else {
            return;
        };
        let answer = match reply {
            Some(Reply::Extended { .. }) => Answer::Extended,
            Some(Reply::NotHeld { .. }) => Answer::NotHeld,
            other => self.turned_away(other).await,
        };
        self.recorder.answer(call, answer);
    }

    /// Asks until there is an answer that decides, or nobody knows.
    async fn release(&mut self, held: &Held, hold: Duration) {
        let (keys, token) = (held.keys.clone(), held.token);
        let request = Call::Release {
            keys: keys.clone(),
            token: token.get(),
            hold: micros(hold),
        };
        for _ in 0..RELEASES {
            let set = key_set(&keys);
            let minimum = span(hold);
            let make = move |id| match minimum == SpanMillis::ZERO {
                true => Request::Release {
                    id,
                    keys: set,
                    token,
                },
                false => Request::Retain {
                    id,
                    keys: set,
                    token,
                    minimum,
                },
            };
            let Some((call, reply)) = self.ask(request.clone(), make).await else {
                continue;
            };
            let answer = match reply {
                Some(Reply::Released { .. } | Reply::Retained { .. }) => Answer::Released,
                Some(Reply::NotHeld { .. }) => Answer::NotHeld,
                other => self.turned_away(other).await,
            };
            self.recorder.answer(call, answer);
            if answer != Answer::NotTaken {
                return;
            }
        }
    }

    /// One call and its answer. None if nothing was sent.
    async fn ask(
        &mut self,
        request: Call,
        make: impl FnOnce(RequestNumber) -> Request,
    ) -> Option<(CallId, Option<Reply>)> {
        let recorder = Arc::clone(&self.recorder);
        let connection = self.connection().await?;
        let call = recorder.call(connection.number, request);
        let answer: oneshot::Receiver<Reply> = connection.send(make).await.1;
        let reply = timeout(GRACE, answer).await;
        Some((call, reply.ok().and_then(Result::ok)))
    }
}

fn key_set(keys: &[String]) -> KeySet {
    let keys = keys
        .iter()
        .map(|key| Key::new(key).expect("keys are short"));
    KeySet::new(keys).expect("one or two different keys")
}

fn span(time: Duration) -> SpanMillis {
    let millis = u32::try_from(time.as_millis()).ok();
    millis.and_then(SpanMillis::new).expect("waits are short")
}

fn lease(time: Duration) -> LeaseMillis {
    let millis = u32::try_from(time.as_millis()).ok();
    millis.and_then(LeaseMillis::new).expect("leases are short")
}

/// How much longer than a wait to listen for an answer.
const GRACE: Duration = Duration::from_millis(2_500);
const PAUSE: Duration = Duration::from_millis(40);
/// How often a release is sent that nobody has taken.
const RELEASES: usize = 40;
