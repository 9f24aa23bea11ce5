//! The slow service between reading the stock and writing it; here, the process that started this
//! worker, over standard input and output.
//!
//! It is also where the demonstration stops a worker: between the question and the answer.

use std::io;

use highwater_lock::FencingToken;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, Stdout};

use crate::orders::Order;

/// Standard input and output of a worker, a line a message, fields separated by tabs.
pub(crate) struct Payment {
    input: Lines<BufReader<Stdin>>,
    output: Stdout,
}

impl Payment {
    pub(crate) fn new() -> Self {
        let input = BufReader::new(tokio::io::stdin()).lines();
        Self { input, output: tokio::io::stdout() }
    }

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
        self.output.write_all(format!("{line}\n").as_bytes()).await?;
        self.output.flush().await
    }

    /// Waits for one line; `None` is the end of the work.
    pub(crate) async fn hear(&mut self) -> io::Result<Option<String>> {
        self.input.next_line().await
    }
}
