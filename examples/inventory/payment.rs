//! The slow service between reading the stock and writing it; here, the process that started this
//! worker, over standard input and output.
//!
//! It is also where the demonstration stops a worker: between the question and the answer.

use std::io::{self, Write as _};

use highwater_lock::FencingToken;
use tokio::task::spawn_blocking;

use crate::orders::Order;

/// Standard input and output of a worker, a line a message, fields separated by tabs.
pub(crate) struct Payment;

impl Payment {
    /// Charges the customer; returns when the service has answered.
    pub(crate) async fn charge(&mut self, order: &Order, token: FencingToken) -> io::Result<()> {
        self.say(&format!("charge\t{}\t{token}", order.id)).await?;
        match self.hear().await? {
            Some(answer) if answer == "charged" => Ok(()),
            answer => Err(io::Error::other(format!("unexpected answer {answer:?}"))),
        }
    }

    /// Sends one line.
    pub(crate) async fn say(&mut self, line: &str) -> io::Result<()> {
        let mut output = io::stdout().lock();
        writeln!(output, "{line}")?;
        output.flush()
    }

    /// Waits for one line; `None` is the end of the work.
    pub(crate) async fn hear(&mut self) -> io::Result<Option<String>> {
        let line = spawn_blocking(|| io::stdin().lines().next());
        line.await.map_err(io::Error::other)?.transpose()
    }
}
