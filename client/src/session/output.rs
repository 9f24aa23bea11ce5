//! The bytes of one connection that have not left yet.

use highwater_protocol::Request;
use tokio::io::{AsyncWriteExt as _, WriteHalf};
use tokio::time::Instant;

use super::End;
use crate::setup::Stream;
use crate::system;

/// Bytes on their way out.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    /// How many bytes the stream has taken since the connection opened.
    pub(super) written: u64,
    /// An encrypting stream may hold back what it has taken.
    unflushed: bool,
    /// When it last made progress, or was empty.
    pub(super) moved: Instant,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            written: 0,
            unflushed: false,
            moved: system::now(),
        }
    }
}

impl Output {
    pub(super) fn is_due(&self) -> bool {
        !self.bytes.is_empty() || self.unflushed
    }

    /// The offset of the next byte to be pushed.
    pub(super) fn end(&self) -> u64 {
        self.written + self.bytes.len() as u64
    }

    pub(super) fn push(&mut self, request: &Request) {
        if !self.is_due() {
            self.moved = system::now();
        }
        request.encode(&mut self.bytes);
    }

    /// One write or flush. Dropping the future loses nothing.
    pub(super) async fn progress(
        &mut self,
        writer: &mut WriteHalf<Box<dyn Stream>>,
    ) -> Result<(), End> {
        if self.bytes.is_empty() {
            writer.flush().await?;
            self.unflushed = false;
        } else {
            let count = writer.write(&self.bytes).await?;
            if count == 0 {
                return Err(End::ByServer);
            }
            self.bytes.drain(..count);
            self.written += count as u64;
            self.unflushed = true;
        }
        self.moved = system::now();
        Ok(())
    }
}
