//! One message of the simple protocol, with everything that the server says to it.
//!
//! The server works a message off statement by statement and skips the rest at the first error. The
//! driver's own methods give either the answers or the error; a commit needs both.

use std::pin::pin;

use ::tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow};
use futures_util::StreamExt as _;

/// What the server said.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// Per completed statement: how many rows it says it affected, and the rows it gave.
    pub(crate) completed: Vec<(u64, Vec<SimpleQueryRow>)>,
    /// The error at which it stopped.
    pub(crate) error: Option<Error>,
    /// It is ready for the next request.
    pub(crate) open: bool,
}

impl Reply {
    /// The rows of all statements, or the error.
    pub(crate) fn rows(self) -> Result<Vec<SimpleQueryRow>, Error> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self
                .completed
                .into_iter()
                .flat_map(|(_, rows)| rows)
                .collect()),
        }
    }
}

/// Sends the message and waits for the end of its answers.
pub(crate) async fn send(client: &Client, text: &str) -> Reply {
    let mut reply = Reply::default();
    let mut answers = match client.simple_query_raw(text).await {
        Ok(answers) => pin!(answers),
        Err(error) => {
            reply.error = Some(error);
            return reply;
        }
    };
    let mut rows = Vec::new();
    loop {
        match answers.next().await {
            None => {
                reply.open = true;
                return reply;
            }
            Some(Ok(SimpleQueryMessage::CommandComplete(affected))) => {
                reply.completed.push((affected, std::mem::take(&mut rows)));
            }
            Some(Ok(SimpleQueryMessage::Row(row))) => rows.push(row),
            Some(Ok(_)) => {}
            // An error of the server is followed by its being ready, or by the end.
            Some(Err(error)) if reply.error.is_none() => reply.error = Some(error),
            Some(Err(_)) => return reply,
        }
    }
}
