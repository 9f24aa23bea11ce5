//! Runs a message of several statements and tells which of them were answered, and what an error
//! means.

use ::mysql_async::prelude::Queryable;
use ::mysql_async::{Error, Row};

use super::FenceError;
use crate::sql::{Class, Failed, Marker, StoredMark, mysql, refusal};
use crate::{Fence, FenceOptions};

/// The answers to one message.
pub(crate) struct Answers {
    /// How many statements were answered well.
    pub(crate) acknowledged: u32,
    /// The number of the marker came as the answer to a statement of this message, in its place. It
    /// ties the answers to the message: had an earlier statement been dropped before its answer
    /// came, that answer would come first.
    pub(crate) tied: bool,
    /// What came instead of an answer.
    pub(crate) error: Option<Error>,
}

impl Answers {
    /// Runs `message`, which has `statements` statements, and `SELECT {marker}` as the one at
    /// `tie`, counted from one.
    pub(crate) async fn of<Q: Queryable>(
        conn: &mut Q,
        message: &str,
        statements: u32,
        tie: u32,
        marker: Marker,
    ) -> Self {
        let mut answers = Self {
            acknowledged: 0,
            tied: false,
            error: None,
        };
        let mut results = match conn.query_iter(message).await {
            Ok(results) => results,
            Err(error) => {
                answers.error = Some(error);
                return answers;
            }
        };
        while answers.acknowledged < statements {
            match results.collect::<Row>().await {
                Ok(rows) => {
                    answers.acknowledged += 1;
                    if answers.acknowledged == tie {
                        let number = rows.first().and_then(|row| row.get_opt::<u64, _>(0));
                        answers.tied =
                            matches!(number, Some(Ok(number)) if number == marker.number());
                    }
                }
                Err(error) => {
                    answers.error = Some(error);
                    break;
                }
            }
        }
        answers
    }

    /// What the error means, or the missing tie. Only an answer of the server can mean "not
    /// committed".
    pub(crate) fn failure(self) -> (Failed, Error) {
        match self.error {
            Some(Error::Server(error)) => {
                let failed = mysql::failed(error.code, self.acknowledged);
                (failed, Error::Server(error))
            }
            Some(error) => (Failed::Unknown, error),
            None => (Failed::Unknown, out_of_step()),
        }
    }
}

/// The answers belong to another statement.
pub(crate) fn out_of_step() -> Error {
    Error::Other("the answers are out of step".into())
}

/// What a driver error means for the transaction.
pub(crate) fn class(error: &Error) -> Class {
    match error {
        Error::Server(error) => mysql::class(error.code),
        _ => Class::Other,
    }
}

/// What an error of the fence statement means. The transaction is still open after a refusal, and
/// the row that refused is locked, so what is read here is what refused.
pub(crate) async fn explain<Q: Queryable>(
    conn: &mut Q,
    fence: &Fence,
    options: &FenceOptions,
    error: Error,
) -> FenceError {
    let table = options.table_ref();
    match class(&error) {
        Class::Refused => {}
        Class::NoTable => {
            return FenceError::NotMigrated {
                table: table.clone(),
            };
        }
        _ => return FenceError::Database(error),
    }
    match conn.query::<Row, _>(mysql::read(table, fence)).await {
        Ok(rows) => {
            let marks: Vec<StoredMark> = rows.iter().filter_map(stored_mark).collect();
            refusal(options, fence, &marks).unwrap_or(FenceError::Database(error))
        }
        Err(error) => FenceError::Database(error),
    }
}

fn stored_mark(row: &Row) -> Option<StoredMark> {
    let text = |column: usize| row.get_opt::<String, _>(column)?.ok();
    let number = |column: usize| row.get_opt::<u64, _>(column)?.ok();
    StoredMark::from_columns(&text(0)?, &text(1)?, number(2)?, number(3)?)
}
