//! One request on its way: from the caller, through a connection, back to the caller.
//!
//! Both sides agree without a lock on the one question that matters: may the server have seen
//! it? A call that was withdrawn before it was sent is certain to have done nothing.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use highwater_protocol::{
    FencingToken, Key, KeySet, LeaseMillis, Reply, RequestNumber, SpanMillis,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::options::Terms;
use crate::pool::Session;
use crate::ticket::Held;

/// What a caller wants. The connection makes the request of it at the moment of sending, because
/// what is left of a wait is only known then.
#[derive(Debug)]
pub(crate) enum Ask {
    Acquire {
        keys: KeySet,
        /// One of so many slots of the only key.
        slots: Option<NonZeroU32>,
        /// `None` is one try.
        until: Option<Instant>,
        terms: Terms,
    },
    Release {
        keys: KeySet,
        token: FencingToken,
        min_hold: SpanMillis,
    },
    Extend {
        keys: KeySet,
        token: FencingToken,
        lease: LeaseMillis,
    },
    Query {
        key: Key,
        from_slot: u32,
    },
}

/// A call as the connection sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: RequestNumber,
    pub(crate) ask: Ask,
    pub(crate) progress: Arc<Progress>,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Releases itself when nobody takes it.
    Granted(Held),
    /// The connection ended while the request still stood in its buffer.
    NotSent,
    Other(Reply),
}

/// How a call ended for its caller.
#[derive(Debug)]
pub(crate) enum Ended {
    Granted(Held),
    Replied(Reply),
    /// It certainly did nothing, and may be made again.
    NeverSent,
    /// It may have been done.
    Lost,
}

/// Whether the server may have seen the call.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Progress {
    /// For the connection: from now on the server may see it. `false`: it was withdrawn.
    pub(crate) fn send(&self) -> bool {
        self.settle(SENT)
    }

    /// For the caller: it shall not be sent any more. `false`: too late.
    fn withdraw(&self) -> bool {
        self.settle(WITHDRAWN)
    }

    fn settle(&self, state: u8) -> bool {
        self.0
            .compare_exchange(QUEUED, state, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// What a connection must do at once, ahead of new acquires.
#[derive(Debug)]
pub(crate) enum Control {
    /// A call that is not a wait for a lock.
    Call(Call),
    /// The caller of this acquire no longer wants it.
    Cancel(RequestNumber),
}

/// A call as its caller sees it. Dropped before it has ended, it is withdrawn or, if it is too
/// late for that, cancelled at the server; a grant that comes all the same is released.
#[derive(Debug)]
pub(crate) struct Waiting {
    id: RequestNumber,
    progress: Arc<Progress>,
    answer: oneshot::Receiver<Answer>,
    /// Where to ask for a cancel, if this call can be cancelled.
    session: Option<Arc<Session>>,
    ended: bool,
}

impl Waiting {
    /// A call and its two ends.
    pub(crate) fn new(id: RequestNumber, ask: Ask, session: Option<Arc<Session>>) -> (Call, Self) {
        let (sender, answer) = oneshot::channel();
        let progress = Arc::new(Progress::default());
        let call = Call {
            id,
            ask,
            progress: Arc::clone(&progress),
            answer: sender,
        };
        let waiting = Self {
            id,
            progress,
            answer,
            session,
            ended: false,
        };
        (call, waiting)
    }

    /// Waits for the answer; when `impatient` completes before, withdraws or cancels the call and
    /// gives the answer `grace` more.
    pub(crate) async fn finish(
        mut self,
        impatient: impl Future<Output = ()>,
        grace: impl FnOnce() -> Instant,
    ) -> Ended {
        tokio::select! {
            biased;
            ended = self.answered() => return ended,
            () = impatient => {}
        }
        if self.progress.withdraw() {
            return Ended::NeverSent;
        }
        self.ask_to_cancel();
        match timeout_at(grace(), self.answered()).await {
            Ok(ended) => ended,
            Err(_) => Ended::Lost,
        }
    }

    async fn answered(&mut self) -> Ended {
        let answer = (&mut self.answer).await;
        self.ended = true;
        match answer {
            Ok(Answer::Granted(held)) => Ended::Granted(held),
            Ok(Answer::Other(reply)) => Ended::Replied(reply),
            Ok(Answer::NotSent) => Ended::NeverSent,
            // The connection is gone; what it had not taken up, it has not sent.
            Err(_) if self.progress.withdraw() => Ended::NeverSent,
            Err(_) => Ended::Lost,
        }
    }

    fn ask_to_cancel(&mut self) {
        if let Some(session) = self.session.take() {
            // When the queue is full the place in the server's queue lives on until the grant,
            // which is released, or the end of its wait.
            let _ = session.controls.try_send(Control::Cancel(self.id));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended && !self.progress.withdraw() {
            self.ask_to_cancel();
        }
    }
}
