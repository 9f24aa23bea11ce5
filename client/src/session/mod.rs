//! Runs one open connection: requests out, replies in, each matched by its number.
//!
//! A request that was sent stays registered until its reply, whether or not its caller is still
//! there: a grant that nobody takes is released at once. Whatever the server does against the
//! protocol ends this connection, and what was sent on it has an unknown outcome.

mod asked;
mod output;
mod pending;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Domain;
use highwater_protocol::handshake::Slot;
use highwater_protocol::{Extensions, FrameError, Reply, ReplyDecoder, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use self::asked::{asked, granted};
use self::output::Output;
use self::pending::{Entry, ExpectedGrant, Pending};
use crate::call::{Answer, Call, Control};
use crate::leader::{caught, told};
use crate::limits::{
    ANSWER_TIME, BATCH, GOODBYE_TIME, QUEUED_ACQUIRES, QUEUED_CONTROLS, SILENCE, STALL_TIME,
    UNANSWERED_ACQUIRES, WRITE_AHEAD_BYTES,
};
use crate::pool;
use crate::setup::{Opened, Stream};
use crate::shared::{Phase, Shared};
use crate::system;

/// One connection and everything that is under way on it.
pub(crate) struct Session {
    shared: Arc<Shared>,
    /// Which of the client's connections it is; in a cluster also the slot of the node.
    index: usize,
    domain: Domain,
    extensions: Option<Extensions>,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    acquires: mpsc::Receiver<Call>,
    controls: mpsc::Receiver<Control>,
    decoder: ReplyDecoder,
    output: Output,
    pending: Pending,
    /// When the last bytes came.
    heard: Instant,
}

impl Session {
    /// The session, and the ends where calls go in.
    pub(crate) fn new(shared: Arc<Shared>, index: usize, opened: Opened) -> (Self, pool::Session) {
        let (acquire_sender, acquires) = mpsc::channel(QUEUED_ACQUIRES);
        let (control_sender, controls) = mpsc::channel(QUEUED_CONTROLS);
        let (reader, writer) = tokio::io::split(opened.stream);
        let ends = pool::Session {
            domain: opened.domain,
            extensions: opened.extensions,
            acquires: acquire_sender,
            controls: control_sender,
        };
        let session = Self {
            shared,
            index,
            domain: opened.domain,
            extensions: opened.extensions,
            reader,
            writer,
            acquires,
            controls,
            decoder: opened.decoder,
            output: Output::default(),
            pending: Pending::default(),
            heard: system::now(),
        };
        (session, ends)
    }

    /// Works until the connection ends, and answers everybody who can be answered.
    pub(crate) async fn run(mut self) -> End {
        // The stream may be the code of others.
        let end = caught(self.work()).await;
        let end = end.unwrap_or_else(|panic| End::Panicked(told(panic)));
        // From here on nothing more is taken up; what waits in the queues was never sent.
        self.controls.close();
        self.acquires.close();
        // A stream that panics may have passed on what it never said that it took.
        let written = match end {
            End::Panicked(_) => self.output.end(),
            _ => self.output.written,
        };
        self.pending.give_up(written);
        // A call that has its place in a queue and is only now put there would be left there, with a
        // caller who waits for it to the end, if the queue were just dropped.
        while self.controls.recv().await.is_some() {}
        while self.acquires.recv().await.is_some() {}
        if matches!(end, End::Closed) {
            let _ = timeout(GOODBYE_TIME, self.writer.shutdown()).await;
        }
        end
    }

    async fn work(&mut self) -> End {
        let shared = Arc::clone(&self.shared);
        let mut closed = Box::pin(shared.reached(Phase::Closed));
        // Set to the next deadline or to an earlier one, as most deadlines are met and only move away.
        let mut timer = pin!(sleep_until(self.deadline()));
        let mut buffer = [0; 4096];
        loop {
            let room = self.output.bytes.len() < WRITE_AHEAD_BYTES;
            let waits = self.pending.acquires < UNANSWERED_ACQUIRES;
            let deadline = self.deadline();
            if timer.is_elapsed() || deadline < timer.deadline() {
                timer.as_mut().reset(deadline);
            }
            let end = tokio::select! {
                // In this order: after a pause of the whole process, what has arrived meanwhile
                // counts, before anything is found to be late.
                biased;
                read = self.reader.read(&mut buffer) => self.received(read, &buffer),
                moved = self.output.progress(&mut self.writer), if self.output.is_due() => moved,
                Some(control) = self.controls.recv(), if room => {
                    self.take_control(control);
                    self.take_more().await;
                    Ok(())
                }
                Some(call) = self.acquires.recv(), if room && waits => {
                    self.take_call(call);
                    self.take_more().await;
                    Ok(())
                }
                () = &mut timer => self.overdue(),
                () = &mut closed => Err(End::Closed),
            };
            if let Err(end) = end {
                return end;
            }
        }
    }

    fn received(&mut self, read: io::Result<usize>, buffer: &[u8]) -> Result<(), End> {
        let count = read?;
        if count == 0 {
            return Err(End::ByServer);
        }
        self.heard = system::now();
        let mut chunk = &buffer[..count];
        while let Some(reply) = self.decoder.next(&mut chunk)? {
            self.answered(reply)?;
        }
        Ok(())
    }

    fn answered(&mut self, reply: Reply) -> Result<(), End> {
        match reply {
            Reply::Leader { leader } => return self.led_by(leader, true),
            Reply::Moved { leader, .. } => self.led_by(leader, false)?,
            _ => {}
        }
        let entry = reply.id().and_then(|id| self.pending.remove(id));
        let entry = entry.ok_or(End::Misfit)?;
        if !reply.fits(entry.kind) {
            return Err(End::Misfit);
        }
        // Until the answer has found its caller, or has queued its own release.
        let mut busy = None;
        let answer = match (granted(&reply), entry.grant) {
            (Some(granted), Some(grant)) => {
                let held = grant.held(granted, &self.shared, self.domain);
                busy = Some(grant.busy);
                Answer::Granted(held)
            }
            _ => match reply {
                Reply::Domain { domain, .. } if domain != self.domain => return Err(End::Misfit),
                other => Answer::Other(other),
            },
        };
        if let Some(sender) = entry.answer {
            // A caller that is gone leaves the answer here, and a grant in it releases itself.
            let _ = sender.send(answer);
        }
        drop(busy);
        Ok(())
    }

    /// What the node says of who leads; a request that has moved never moved to the node itself.
    fn led_by(&self, leader: Option<Slot>, may_be_itself: bool) -> Result<(), End> {
        let leader = leader.map(|slot| usize::from(slot.get()));
        match (self.shared.nodes(), leader) {
            // A single server has no leader to name.
            (None, None) => {}
            (Some(nodes), Some(slot)) if slot >= nodes => return Err(End::Misfit),
            (Some(_), Some(slot)) if slot == self.index && !may_be_itself => {
                return Err(End::Misfit);
            }
            (Some(_), leader) => self.shared.pool.led_by(self.index, leader),
            (None, Some(_)) => return Err(End::Misfit),
        }
        Ok(())
    }

    /// Takes up what else is waiting, so that it is written together.
    ///
    /// Replies come together too, and each wakes a caller whose next call follows at once; they get
    /// their turn first. Who is alone on the connection does not wait for others.
    async fn take_more(&mut self) {
        if self.pending.is_shared() {
            yield_now().await;
        }
        for _ in 1..BATCH {
            if self.output.bytes.len() >= WRITE_AHEAD_BYTES {
                return;
            }
            if let Ok(control) = self.controls.try_recv() {
                self.take_control(control);
            } else if self.pending.acquires < UNANSWERED_ACQUIRES
                && let Ok(call) = self.acquires.try_recv()
            {
                self.take_call(call);
            } else {
                return;
            }
        }
    }

    fn take_control(&mut self, control: Control) {
        match control {
            Control::Call(call) => self.take_call(call),
            Control::Cancel(acquire) => {
                if self.has(Extensions::CANCEL) && self.pending.is_acquire(acquire) {
                    let id = self.shared.next_id();
                    self.send(&Request::Cancel { id, acquire }, None, ANSWER_TIME, None);
                }
            }
        }
    }

    fn take_call(&mut self, call: Call) {
        // The wait may be over; the caller withdraws at this moment.
        let asked = asked(call.id, call.ask, self.extensions.unwrap_or_default());
        let Some(asked) = asked else {
            return;
        };
        if call.progress.send() {
            let grant = asked.grant.map(|grant| ExpectedGrant {
                grant,
                busy: self.shared.busy(),
            });
            self.send(&asked.request, Some(call.answer), asked.answer_time, grant);
        }
    }

    fn has(&self, extensions: Extensions) -> bool {
        self.extensions.unwrap_or_default().contains(extensions)
    }

    fn send(
        &mut self,
        request: &Request,
        answer: Option<oneshot::Sender<Answer>>,
        answer_time: Duration,
        grant: Option<ExpectedGrant>,
    ) {
        let entry = Entry {
            kind: request.kind(),
            answer,
            answer_by: system::now() + answer_time,
            starts_at: self.output.end(),
            grant,
        };
        self.pending.insert(request.id(), entry);
        self.output.push(request);
    }

    /// The next moment at which something is too late or too quiet.
    fn deadline(&self) -> Instant {
        let stalls = [
            self.output.is_due().then(|| self.output.moved + STALL_TIME),
            self.decoder.is_mid_frame().then(|| self.heard + STALL_TIME),
            self.pending.first_deadline(),
        ];
        stalls
            .into_iter()
            .flatten()
            .fold(self.silent_at(), Instant::min)
    }

    /// When to ask whether the server is still there.
    fn silent_at(&self) -> Instant {
        // A base server cannot be asked; then this only makes the loop go round.
        let again = if self.extensions.is_some() { 1 } else { 6 };
        self.heard.max(self.output.moved) + SILENCE * again
    }

    fn overdue(&mut self) -> Result<(), End> {
        let now = system::now();
        if self.output.is_due() && now >= self.output.moved + STALL_TIME {
            return Err(End::WriteStalled);
        }
        if self.decoder.is_mid_frame() && now >= self.heard + STALL_TIME {
            return Err(End::ReadStalled);
        }
        if self.pending.first_deadline().is_some_and(|by| now >= by) {
            return Err(End::NoAnswer);
        }
        if now >= self.silent_at() {
            if self.extensions.is_some() {
                let id = self.shared.next_id();
                self.send(&Request::Domain { id }, None, ANSWER_TIME, None);
            } else {
                self.output.moved = now;
            }
        }
        Ok(())
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the client is closed")]
    Closed,
    #[error("the server closed it")]
    ByServer,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a reply fits no request")]
    Misfit,
    #[error("a reply was begun and not finished in time")]
    ReadStalled,
    #[error("the server takes no requests")]
    WriteStalled,
    #[error("a request was not answered in time")]
    NoAnswer,
    #[error("its stream panicked: {0}")]
    Panicked(String),
}
