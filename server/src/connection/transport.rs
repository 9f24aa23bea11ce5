//! Moves bytes between one socket and the rest of the server, through TLS where it is on.
//!
//! It knows to the byte what the kernel has taken, so it can tell which grants have left: a grant
//! is delivered once the kernel has its whole reply, or the whole TLS record around it. It knows
//! nothing of frames or locks, and it never waits by itself.

use std::collections::VecDeque;
use std::io;

use highwater_lock::Timestamp;
use rustls::ServerConnection;
use tokio::net::TcpStream;

use crate::outbox::{Batch, UnsentGrant};

/// An open connection after its set-up.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) tcp: TcpStream,
    tls: Option<Box<ServerConnection>>,
    output: Output,
}

/// Bytes on their way into the kernel.
#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` the kernel has taken.
    sent: usize,
    /// Each with the offset in `bytes` at which it has left; increasing.
    grants: VecDeque<(usize, UnsentGrant)>,
    /// Since when the locks that have left were free for their new holders.
    handed_over: Vec<Timestamp>,
}

/// Takes plain bytes as they come in.
pub(super) type Sink<'a> = &'a mut dyn FnMut(&[u8]);

/// What one attempt to read brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Some bytes were handed over.
    Data,
    /// Nothing is there now.
    Nothing,
    /// The peer will send no more.
    End,
}

impl Transport {
    pub(super) fn new(tcp: TcpStream, tls: Option<ServerConnection>) -> Self {
        Self {
            tcp,
            tls: tls.map(Box::new),
            output: Output::default(),
        }
    }

    /// Whether bytes wait for the kernel to take them.
    pub(super) fn has_output(&self) -> bool {
        !self.output.bytes.is_empty()
    }

    /// Lines up replies behind what waits already.
    pub(super) fn queue(&mut self, batch: Batch) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            self.output.append_plain(batch);
            return Ok(());
        };
        let mut grants = batch.grants.into_iter().peekable();
        let mut start = 0;
        for record in batch.bytes.chunks(RECORD_BYTES) {
            io::Write::write_all(&mut tls.writer(), record)?;
            self.output.append_records(tls)?;
            start += record.len();
            while let Some((_, grant)) = grants.next_if(|(end, _)| *end <= start) {
                let left = self.output.bytes.len();
                self.output.grants.push_back((left, grant));
            }
        }
        Ok(())
    }

    /// Gives the kernel what it takes without waiting; returns whether it took anything.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let mut progress = false;
        while self.has_output() {
            match self.tcp.try_write(&self.output.bytes[self.output.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    progress = true;
                    self.output.advance(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    /// Reads once without waiting and hands plain bytes to `sink`.
    pub(super) fn receive(&mut self, sink: Sink<'_>) -> io::Result<Received> {
        let mut buffer = [0; READ_BYTES];
        match self.tcp.try_read(&mut buffer) {
            Ok(0) => Ok(Received::End),
            Ok(count) => self.accept(&buffer[..count], sink),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Hands over plain bytes that came in with the end of the TLS handshake.
    pub(super) fn receive_early(&mut self, sink: Sink<'_>) -> io::Result<Received> {
        self.accept(&[], sink)
    }

    /// Tells the peer that nothing more will come, as far as that needs no waiting.
    pub(super) fn say_goodbye(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            self.output.append_records(tls)?;
        }
        self.flush().map(drop)
    }

    /// Of each lock that was handed over and has left since the last time: when it became free.
    pub(super) fn handed_over(&mut self) -> impl Iterator<Item = Timestamp> {
        self.output.handed_over.drain(..)
    }

    /// The grants that have not left, at the end of the connection.
    pub(super) fn undelivered(&mut self) -> Vec<UnsentGrant> {
        let grants = std::mem::take(&mut self.output.grants);
        grants.into_iter().map(|(_, grant)| grant).collect()
    }

    fn accept(&mut self, mut bytes: &[u8], sink: Sink<'_>) -> io::Result<Received> {
        let Some(tls) = &mut self.tls else {
            sink(bytes);
            return Ok(Received::Data);
        };
        let mut plain = [0; READ_BYTES];
        loop {
            if !bytes.is_empty() {
                tls.read_tls(&mut bytes)?;
            }
            let state = tls.process_new_packets();
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let count = io::Read::read(&mut tls.reader(), &mut plain)?;
                sink(&plain[..count]);
                left -= count;
            }
            // Processing can answer by itself: a key update, an alert.
            self.output.append_records(tls)?;
            if state.peer_has_closed() {
                return Ok(Received::End);
            }
            if bytes.is_empty() {
                return Ok(Received::Data);
            }
        }
    }
}

impl Output {
    fn append_plain(&mut self, batch: Batch) {
        if self.bytes.is_empty() {
            self.bytes = batch.bytes;
            self.grants = batch.grants.into();
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&batch.bytes);
        let moved = batch.grants.into_iter();
        self.grants
            .extend(moved.map(|(end, grant)| (start + end, grant)));
    }

    fn append_records(&mut self, tls: &mut ServerConnection) -> io::Result<()> {
        while tls.wants_write() {
            tls.write_tls(&mut self.bytes)?;
        }
        Ok(())
    }

    fn advance(&mut self, taken: usize) {
        self.sent += taken;
        while let Some((end, grant)) = self.grants.front()
            && *end <= self.sent
        {
            self.handed_over.extend(grant.handed_over);
            self.grants.pop_front();
        }
        if self.sent == self.bytes.len() {
            // The allocation goes too: an idle connection holds no buffer.
            *self = Self {
                handed_over: std::mem::take(&mut self.handed_over),
                ..Self::default()
            };
        }
    }
}

/// The most plain bytes in one TLS record, as the protocol defines it.
const RECORD_BYTES: usize = 16 * 1024;
/// How much is read at once, on the stack: a waiting connection holds no buffer.
const READ_BYTES: usize = 8 * 1024;
