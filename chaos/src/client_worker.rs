//! A client that is a `highwater-client`.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, ExtendError, Key, Release, Ticket};
use highwater_history::{Answer, Request};
use tokio::time::sleep;

use crate::database::Rows;
use crate::random::Random;
use crate::record::{Recorder, micros};
use crate::workload::{CLIENT_KEYS, LONGEST_LEASE, Times};

/// See the module's description.
pub(crate) struct ClientWorker {
    client: Client,
    recorder: Arc<Recorder>,
    random: Random,
    rows: Option<Rows>,
}

impl ClientWorker {
    pub(crate) fn new(client: Client, recorder: Arc<Recorder>, random: Random, rows: Rows) -> Self {
        Self {
            client,
            recorder,
            random,
            rows: Some(rows),
        }
    }

    /// Works until the run comes to its end.
    pub(crate) async fn work(mut self) {
        while !self.recorder.has_ended() {
            match self.acquire().await {
                Some((key, ticket)) => self.hold(&key, ticket).await,
                None => sleep(Duration::from_millis(10)).await,
            }
        }
        self.client.close().await;
    }

    async fn acquire(&mut self) -> Option<(String, Ticket)> {
        let call = self.recorder.number();
        let times = Times::of(call, &mut self.random);
        let key = (*self.random.choose(&CLIENT_KEYS)).to_owned();
        let request = Request::Acquire {
            keys: vec![key.clone()],
            slots: None,
            wait: micros(times.wait),
            lease: micros(times.lease),
        };
        self.recorder.begin(call, 0, request);
        let options = AcquireOptions::new().wait(times.wait).lease(times.lease);
        let name = Key::new(&key).expect("keys are short");
        let answer = match self.client.acquire(&name, options).await {
            Ok(ticket) => {
                let (token, keys) = (ticket.token().get(), [key]);
                self.recorder.granted(call, &keys, token, None);
                let [key] = keys;
                return Some((key, ticket));
            }
            Err(AcquireError::TimedOut) => Answer::TimedOut,
            Err(AcquireError::Busy) => Answer::Busy,
            Err(AcquireError::NotSent | AcquireError::NotConnected | AcquireError::Rejected(_)) => {
                Answer::NotTaken
            }
            Err(_) => Answer::Unknown,
        };
        self.recorder.answer(call, answer);
        None
    }

    async fn hold(&mut self, key: &str, ticket: Ticket) {
        sleep(self.random.millis(0..60)).await;
        self.write(key, &ticket).await;
        if self.random.percent(25) {
            self.extend(key, &ticket).await;
            self.write(key, &ticket).await;
        }
        match self.random.number(0..100) {
            0..6 => {
                // Paused for longer than any lease, then writes all the same.
                sleep(LONGEST_LEASE).await;
                self.write(key, &ticket).await;
                self.release(key, ticket, false).await;
            }
            6..20 => self.release(key, ticket, true).await,
            _ => self.release(key, ticket, false).await,
        }
    }

    async fn write(&mut self, key: &str, ticket: &Ticket) {
        let Some(mut rows) = self.rows.take() else {
            return;
        };
        let (recorder, token) = (Arc::clone(&self.recorder), ticket.token());
        let key = key.to_owned();
        let written = tokio::task::spawn_blocking(move || {
            rows.write(&recorder, &key, token);
            rows
        });
        self.rows = written.await.ok();
    }

    async fn extend(&mut self, key: &str, ticket: &Ticket) {
        let lease = self.random.millis(1_000..3_000);
        let request = Request::Extend {
            keys: vec![key.to_owned()],
            token: ticket.token().get(),
            lease: micros(lease),
        };
        let call = self.recorder.call(0, request);
        let answer = match ticket.extend(lease).await {
            Ok(()) => Answer::Extended,
            Err(ExtendError::Rejected(_) | ExtendError::Unsupported) => Answer::NotTaken,
            // A lost one may be one whose time is over here, of which nobody was asked.
            Err(_) => Answer::Unknown,
        };
        self.recorder.answer(call, answer);
    }

    /// Gives it back, or lets it fall, which leaves that to the client.
    async fn release(&mut self, key: &str, ticket: Ticket, let_fall: bool) {
        let request = Request::Release {
            keys: vec![key.to_owned()],
            token: ticket.token().get(),
            hold: 0,
        };
        let call = self.recorder.call(0, request);
        let answer = if let_fall {
            drop(ticket);
            Answer::Unknown
        } else {
            match ticket.release().await {
                Ok(Release::Released) => Answer::Released,
                // It repeats a release by itself, so an earlier one may have done it.
                _ => Answer::Unknown,
            }
        };
        self.recorder.answer(call, answer);
    }
}
