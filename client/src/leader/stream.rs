//! A stream that is produced while leading.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::backend::BoxFuture;
use super::context::LeaderContext;
use super::elector::{Elector, Kind};
use super::guard::LeaderGuard;
use super::run::{self, Panic};
use super::schedule::discard;
use super::{LeaderError, LeaderOptions, NotLeader, TermOutcome};
use crate::Lost;

/// How long the leadership of a stream lasts. There is no third way: a stream without end under a
/// lease with an end would overlap with its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamLease {
    /// The lease is extended as long as the stream lives, whatever the options say.
    AutoExtend,
    /// The caller promises that the stream ends within one lease. One that does not is ended with
    /// [`StreamError::LeaseLost`].
    Bounded,
}

/// Why a stream ended before its time. Nothing comes after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError<E> {
    /// The stream itself gave an error.
    #[error("the stream failed")]
    Failed(#[source] E),
    /// The lease was lost: what came last may overlap with a successor.
    #[error("the leadership was lost while the stream ran: {0}")]
    LeaseLost(Lost),
}

impl<K: Kind> Elector<K> {
    /// Makes a stream if this candidate is elected within the wait, and leads as long as it lives.
    ///
    /// The lease is given back when the stream ends or gives its first error, before that is passed
    /// on; and in the background when it is dropped. A stream that is not polled still holds the
    /// lease. A panic of the stream gives the lease back and goes on, from the poll in which that is done.
    ///
    /// # Errors
    /// The election failed; or the lease is too short to be extended.
    pub async fn stream_if_leader<T, E, S, F>(
        &self,
        name: impl AsRef<str>,
        lease: StreamLease,
        make: F,
    ) -> Result<Option<LeaderStream<T, E>>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> S,
        S: Stream<Item = Result<T, E>> + Send + 'static,
    {
        let (key, core) = (self.key(name)?, self.core());
        let options = LeaderOptions {
            auto_extend: lease == StreamLease::AutoExtend,
            ..core.options.clone()
        };
        let options = options.check().map_err(LeaderError::Options)?;
        let Some(guard) = core.acquire(&key, &options).await? else {
            return Ok(None);
        };
        let context = guard.context();
        match catch_unwind(AssertUnwindSafe(|| make(context))) {
            Ok(stream) => Ok(Some(LeaderStream(Stage::Running {
                stream: Box::pin(stream),
                lost: Box::pin(guard.lost()),
                guard,
            }))),
            Err(panic) => {
                run::given_back(guard).await;
                resume_unwind(panic)
            }
        }
    }
}

/// A stream that is produced while leading; see [`Elector::stream_if_leader`].
#[must_use = "the leadership ends when the stream is dropped"]
pub struct LeaderStream<T, E>(Stage<T, E>);

type Item<T, E> = Result<T, StreamError<E>>;

enum Stage<T, E> {
    Running {
        // Dropped first: the work is at rest before its lease is given back.
        stream: Pin<Box<dyn Stream<Item = Result<T, E>> + Send>>,
        lost: BoxFuture<NotLeader>,
        guard: LeaderGuard,
    },
    /// Gives the lease back, then what came last.
    Ending {
        term: BoxFuture<Option<Lost>>,
        last: Last<E>,
    },
    Over,
}

/// What comes after the last item.
enum Last<E> {
    Nothing,
    Error(StreamError<E>),
    Panic(Panic),
}

impl<T, E> LeaderStream<T, E> {
    fn end(&mut self, outcome: TermOutcome, last: Last<E>) {
        let Stage::Running { stream, guard, .. } = std::mem::replace(&mut self.0, Stage::Over)
        else {
            return;
        };
        // A destructor can panic as well as the stream itself.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(stream)));
        let (outcome, last) = match (last, dropped) {
            (last, Ok(())) => (outcome, last),
            (Last::Panic(first), Err(second)) => {
                discard(Err(second));
                (outcome, Last::Panic(first))
            }
            (_, Err(panic)) => (TermOutcome::Panicked, Last::Panic(panic)),
        };
        let term = Arc::clone(guard.term());
        let term = Box::pin(async move {
            if outcome == TermOutcome::Panicked {
                run::given_back(guard).await;
            } else {
                guard.finish(outcome).await;
            }
            term.was_lost()
        });
        self.0 = Stage::Ending { term, last };
    }

    /// Why the stream must not go on, if so.
    fn lost(&mut self, context: &mut Context<'_>) -> Option<Lost> {
        let Stage::Running { lost, guard, .. } = &mut self.0 else {
            return None;
        };
        // Looks at the clock too: after a pause nothing may be produced any more.
        let told = match lost.as_mut().poll(context) {
            Poll::Ready(told) => Some(told),
            Poll::Pending => guard.check().err(),
        };
        told.map(|told| match told {
            NotLeader::Lost(lost) => lost,
            _ => Lost::Expired,
        })
    }
}

impl<T, E: Unpin> Stream for LeaderStream<T, E> {
    type Item = Item<T, E>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item<T, E>>> {
        let this = self.get_mut();
        loop {
            if let Some(lost) = this.lost(context) {
                this.end(TermOutcome::Lost, Last::Error(StreamError::LeaseLost(lost)));
            }
            match &mut this.0 {
                Stage::Running { stream, .. } => {
                    let next = AssertUnwindSafe(|| stream.as_mut().poll_next(context));
                    match catch_unwind(next) {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(Some(Ok(item)))) => return Poll::Ready(Some(Ok(item))),
                        Ok(Poll::Ready(Some(Err(error)))) => {
                            let last = Last::Error(StreamError::Failed(error));
                            this.end(TermOutcome::Failed, last);
                        }
                        Ok(Poll::Ready(None)) => this.end(TermOutcome::Completed, Last::Nothing),
                        Err(panic) => this.end(TermOutcome::Panicked, Last::Panic(panic)),
                    }
                }
                Stage::Ending { term, .. } => {
                    let Poll::Ready(lost) = term.as_mut().poll(context) else {
                        return Poll::Pending;
                    };
                    let Stage::Ending { last, .. } = std::mem::replace(&mut this.0, Stage::Over)
                    else {
                        return Poll::Ready(None);
                    };
                    return match last {
                        // That the stream failed says more than that its lease was lost at last.
                        Last::Error(error) => Poll::Ready(Some(Err(error))),
                        Last::Nothing => {
                            Poll::Ready(lost.map(|lost| Err(StreamError::LeaseLost(lost))))
                        }
                        Last::Panic(panic) => resume_unwind(panic),
                    };
                }
                Stage::Over => return Poll::Ready(None),
            }
        }
    }
}

impl<T, E> fmt::Debug for LeaderStream<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Stage::Running { .. } => "LeaderStream(running)",
            Stage::Ending { .. } => "LeaderStream(ending)",
            Stage::Over => "LeaderStream(over)",
        })
    }
}
