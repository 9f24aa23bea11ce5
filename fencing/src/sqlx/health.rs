//! Sees every driver error of a fenced transaction and notes it in its record.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::sqlx::Error;
use ::sqlx::error::{DatabaseError, ErrorKind};
use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;

use super::dialect::Dialect;
use crate::health::{Health, Poisoned};
use crate::sql::Class;

/// The answer to a statement after a failure: a [`Poisoned`] in the clothes of a database error.
pub(crate) fn refuse(health: &Health) -> Option<Error> {
    Some(Error::Database(Box::new(health.refuse()?)))
}

/// As it comes inside [`sqlx::Error::Database`](::sqlx::Error): with the SQLSTATE `25P02`, the one
/// that PostgreSQL itself uses.
impl DatabaseError for Poisoned {
    fn message(&self) -> &str {
        "the fenced transaction can only be rolled back, because a statement failed"
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed("25P02"))
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

/// Between the first poll of a statement and its answer. Dropped in between, it poisons.
struct Watch<'e> {
    health: &'e mut Health,
    waiting: bool,
}

impl Watch<'_> {
    fn answered<Db: Dialect>(&mut self, error: Option<&Error>) {
        self.waiting = false;
        if let Some(error) = error {
            self.health
                .note(error, Db::class(error) == Class::Transient);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.health.note_abandoned();
        }
    }
}

/// Runs a statement that gives one answer, and notes its error.
pub(crate) fn tap_future<'e, Db: Dialect, T: Send + 'e>(
    statement: BoxFuture<'e, Result<T, Error>>,
    health: &'e mut Health,
) -> BoxFuture<'e, Result<T, Error>> {
    Box::pin(async move {
        let mut watch = Watch {
            health,
            waiting: true,
        };
        let result = statement.await;
        watch.answered::<Db>(result.as_ref().err());
        result
    })
}

/// A statement that gives a stream of answers, and whose errors are noted.
///
/// Dropping it between two answers is usual and harmless: the driver skips the rest. Dropping it
/// while it waits for one is not, since what ran until then, and with what result, is unsure.
pub(crate) struct TappedStream<'e, Db, T> {
    // Before the watch, because it borrows the connection and fields drop in order.
    answers: BoxStream<'e, Result<T, Error>>,
    watch: Watch<'e>,
    database: std::marker::PhantomData<fn() -> Db>,
}

impl<'e, Db: Dialect, T> TappedStream<'e, Db, T> {
    pub(crate) fn new(answers: BoxStream<'e, Result<T, Error>>, health: &'e mut Health) -> Self {
        let watch = Watch {
            health,
            waiting: false,
        };
        Self {
            answers,
            watch,
            database: std::marker::PhantomData,
        }
    }
}

impl<Db: Dialect, T> Stream for TappedStream<'_, Db, T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.watch.waiting = true;
        let answer = std::task::ready!(this.answers.as_mut().poll_next(cx));
        let error = answer.as_ref().and_then(|answer| answer.as_ref().err());
        this.watch.answered::<Db>(error);
        Poll::Ready(answer)
    }
}
