//! Sees every driver error of a fenced transaction, and remembers the first.
//!
//! After an error some databases have ended the transaction and some have not; the rule here is the
//! same for all: only a rollback is left.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::sqlx::Error;
use ::sqlx::error::{DatabaseError, ErrorKind};
use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;

use super::dialect::Dialect;
use crate::sql::Class;

/// Whether the transaction may go on.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failure: Option<FirstFailure>,
}

#[derive(Debug)]
struct FirstFailure {
    text: String,
    transient: bool,
    /// A statement was dropped before its answer came: what the next answer belongs to is unsure.
    abandoned: bool,
}

impl Health {
    /// The error for the next statement, if there was a failure.
    pub(crate) fn refuse(&self) -> Option<Error> {
        let failure = self.failure.as_ref()?;
        let poisoned = Poisoned {
            first: failure.text.clone(),
        };
        Some(Error::Database(Box::new(poisoned)))
    }

    /// The first failure, as text.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| &*failure.text)
    }

    /// Whether the transaction may succeed if it is run again as a whole.
    pub(crate) fn is_transient(&self) -> bool {
        (self.failure.as_ref()).is_some_and(|failure| failure.transient)
    }

    /// Whether the connection itself can no longer be trusted.
    pub(crate) fn is_abandoned(&self) -> bool {
        (self.failure.as_ref()).is_some_and(|failure| failure.abandoned)
    }

    fn note<Db: Dialect>(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| FirstFailure {
            text: error.to_string(),
            transient: Db::class(error) == Class::Transient,
            abandoned: false,
        });
    }

    fn note_abandoned(&mut self) {
        let failure = self.failure.get_or_insert_with(|| FirstFailure {
            text: "a statement was abandoned before its answer came".to_owned(),
            transient: false,
            abandoned: true,
        });
        failure.abandoned = true;
    }
}

/// A statement was refused because an earlier one of the same fenced transaction failed.
///
/// It comes inside [`sqlx::Error::Database`](::sqlx::Error) with the SQLSTATE `25P02`, the one that
/// PostgreSQL itself uses. Roll back; retrying the statement cannot succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    first: String,
}

impl Poisoned {
    /// The first failure, as text.
    pub fn first(&self) -> &str {
        &self.first
    }
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the fenced transaction can only be rolled back, because a statement failed: {}",
            self.first
        )
    }
}

impl std::error::Error for Poisoned {}

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
            self.health.note::<Db>(error);
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
