//! What peers send each other after the handshake.
//!
//! ```text
//! length u32 of all that follows · kind u8 · id u64 · domain 32
//! · slot u8 and generation u64 of the sender · slot u8 and generation u64 of the target · body
//! ```
//! A reply has the id of its request and its kind with the highest bit set, or kind 255 with a text
//! that says why there is none. An operator is slot 255, generation 0; a process without a part in the
//! cluster is generation 0 of its slot. A frame has at most
//! [`MOST_BYTES`]; a longer one ends the connection before anything of it is read.

use std::io;
use std::time::Duration;

use highwater_lock::Domain;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Stream;
use super::handshake::Caller;
use crate::cluster::bytes::{Malformed, Put as _, Reader};
use crate::cluster::types::Member;

/// The longest frame, without its length.
pub(in crate::cluster) const MOST_BYTES: usize = 4 * 1024 * 1024;
const HEAD_BYTES: usize = 59;
/// For how much at least there is room when something is read.
const READ_BYTES: usize = 512;
/// How much memory is taken for a frame of which nothing has come.
const MOST_AHEAD: usize = 16 * 1024;
/// How long the rest of a frame may take once it has begun.
const FRAME_TIME: Duration = Duration::from_secs(10);

pub(in crate::cluster) const APPEND: u8 = 1;
pub(in crate::cluster) const VOTE: u8 = 2;
pub(in crate::cluster) const PRE_VOTE: u8 = 3;
pub(in crate::cluster) const SNAPSHOT: u8 = 4;
pub(in crate::cluster) const TRANSFER: u8 = 5;
/// What the time is.
pub(in crate::cluster) const CLOCK: u8 = 6;
/// Whether the node could take part in the beginning of a cluster.
pub(in crate::cluster) const FRESH: u8 = 16;
/// That the identity is used from now on.
pub(in crate::cluster) const MARK: u8 = 17;
/// That a process which has lost its memory asks for a part in the cluster, as a new node of its slot.
pub(in crate::cluster) const JOIN: u8 = 18;
/// The same. What it is told is longer: the entry too that has let it in.
pub(in crate::cluster) const JOIN_BY: u8 = 19;
/// For operators.
pub(in crate::cluster) const STATUS: u8 = 32;
pub(in crate::cluster) const INIT: u8 = 33;
pub(in crate::cluster) const STEP_DOWN: u8 = 34;
pub(in crate::cluster) const REPLACE: u8 = 35;
pub(in crate::cluster) const PROMOTE: u8 = 36;
pub(in crate::cluster) const GROW: u8 = 37;
pub(in crate::cluster) const ADMIT: u8 = 38;
pub(in crate::cluster) const REMOVE: u8 = 39;
/// What is said of a kind that the other one does not know. Older versions say the same.
pub(in crate::cluster) const UNKNOWN: &str = "an unknown request";
const REPLY: u8 = 0x80;
const FAILURE: u8 = 0xff;

/// The two ends of a connection, as they stand in its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Ends {
    pub(in crate::cluster) domain: Domain,
    pub(in crate::cluster) from: Caller,
    pub(in crate::cluster) to: Caller,
}

impl Ends {
    pub(in crate::cluster) fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }
}

/// One frame without its ends.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Frame {
    pub(in crate::cluster) kind: u8,
    pub(in crate::cluster) id: u64,
    pub(in crate::cluster) body: Vec<u8>,
}

impl Frame {
    pub(in crate::cluster) fn reply(&self, body: Vec<u8>) -> Self {
        Self {
            kind: self.kind | REPLY,
            id: self.id,
            body,
        }
    }

    pub(in crate::cluster) fn failure(&self, why: &str) -> Self {
        Self {
            kind: FAILURE,
            id: self.id,
            body: why.as_bytes().to_vec(),
        }
    }

    /// The body of a reply to the request of this kind and id.
    pub(in crate::cluster) fn answers(self, kind: u8, id: u64) -> Result<Vec<u8>, Answer> {
        if self.id != id {
            return Err(Answer::Misfit);
        }
        match self.kind {
            FAILURE => Err(Answer::Failed(String::from_utf8_lossy(&self.body).into())),
            found if found == kind | REPLY => Ok(self.body),
            _ => Err(Answer::Misfit),
        }
    }
}

/// Why a reply is none.
#[derive(Debug, thiserror::Error)]
pub(in crate::cluster) enum Answer {
    #[error("{0}")]
    Failed(String),
    #[error("a reply does not fit its request")]
    Misfit,
}

fn put_end(bytes: &mut Vec<u8>, end: Caller) {
    let (slot, generation) = match end {
        Caller::Node(member) => (member.slot.get(), member.generation),
        Caller::Operator => (255, 0),
        Caller::Process(slot) => (slot.get(), 0),
    };
    bytes.u8(slot);
    bytes.u64(generation);
}

fn encode(ends: Ends, frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + HEAD_BYTES + frame.body.len());
    bytes.count(HEAD_BYTES + frame.body.len());
    bytes.u8(frame.kind);
    bytes.u64(frame.id);
    bytes.put(ends.domain.as_bytes());
    put_end(&mut bytes, ends.from);
    put_end(&mut bytes, ends.to);
    bytes.put(&frame.body);
    bytes
}

/// Reads what was in a frame, if it is between these ends.
fn decode(mut bytes: Vec<u8>, ends: Ends) -> Result<Frame, FrameError> {
    let mut reader = Reader::new(&bytes, "peer frame");
    let (kind, id) = (reader.u8()?, reader.u64()?);
    let mut expected = Vec::with_capacity(HEAD_BYTES);
    expected.put(ends.domain.as_bytes());
    put_end(&mut expected, ends.from);
    put_end(&mut expected, ends.to);
    if reader.take(expected.len())? != expected {
        return Err(FrameError::Elsewhere);
    }
    bytes.drain(..HEAD_BYTES);
    let body = bytes;
    Ok(Frame { kind, id, body })
}

pub(in crate::cluster) async fn write(
    stream: &mut (impl Stream + ?Sized),
    ends: Ends,
    frame: &Frame,
) -> Result<(), FrameError> {
    if HEAD_BYTES + frame.body.len() > MOST_BYTES {
        return Err(FrameError::TooLong);
    }
    stream.write_all(&encode(ends, frame)).await?;
    Ok(stream.flush().await?)
}

/// Waits for a frame between these ends; `None` if the other side has closed.
pub(in crate::cluster) async fn read(
    stream: &mut (impl Stream + ?Sized),
    ends: Ends,
) -> Result<Option<Frame>, FrameError> {
    let mut length = [0; 4];
    if stream.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    let rest = async {
        stream.read_exact(&mut length[1..]).await?;
        let length = u32::from_be_bytes(length) as usize;
        if !(HEAD_BYTES..=MOST_BYTES).contains(&length) {
            return Err(FrameError::TooLong);
        }
        let mut bytes = Vec::with_capacity(length.min(MOST_AHEAD));
        let mut limited = (&mut *stream).take(length as u64);
        match limited.read_to_end(&mut bytes).await? {
            read if read == length => Ok(bytes),
            _ => Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
        }
    };
    let bytes = timeout(FRAME_TIME, rest)
        .await
        .map_err(|_| FrameError::TooSlow)??;
    decode(bytes, ends).map(Some)
}

/// What is on its way out. It can be given up at any moment, and finished later.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// Has this frame follow.
    pub(in crate::cluster) fn put(&mut self, ends: Ends, frame: &Frame) -> Result<(), FrameError> {
        if HEAD_BYTES + frame.body.len() > MOST_BYTES {
            return Err(FrameError::TooLong);
        }
        match self.bytes.is_empty() {
            true => self.bytes = encode(ends, frame),
            false => self.bytes.extend(encode(ends, frame)),
        }
        Ok(())
    }

    pub(in crate::cluster) async fn finish(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
    ) -> Result<(), FrameError> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]).await? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                sent => self.sent += sent,
            }
        }
        stream.flush().await?;
        (self.bytes, self.sent) = (Vec::new(), 0);
        Ok(())
    }
}

/// What has come in of a frame. Reading can be given up at any moment, and goes on later.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Incoming(Vec<u8>);

impl Incoming {
    /// Waits for a frame between these ends; `None` if the other side has closed.
    pub(in crate::cluster) async fn read(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
        ends: Ends,
    ) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(end) = self.first()?
                && self.0.len() >= end
            {
                let frame = decode(self.0[4..end].to_vec(), ends)?;
                self.0.drain(..end);
                return Ok(Some(frame));
            }
            self.0.reserve(READ_BYTES);
            if stream.read_buf(&mut self.0).await? == 0 {
                return match self.0.is_empty() {
                    true => Ok(None),
                    false => Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
                };
            }
        }
    }

    /// Where the first frame ends, if its length is known.
    fn first(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.0.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        match (HEAD_BYTES..=MOST_BYTES).contains(&length) {
            true => Ok(Some(4 + length)),
            false => Err(FrameError::TooLong),
        }
    }
}

/// Why a connection between peers must end.
#[derive(Debug, thiserror::Error)]
pub(in crate::cluster) enum FrameError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("a frame is too long or too short")]
    TooLong,
    #[error("a frame was begun and not finished in time")]
    TooSlow,
    #[error("a frame is of another domain, from another node, or for another one")]
    Elsewhere,
}

/// The ends of a connection between two nodes.
pub(in crate::cluster) fn between(domain: Domain, from: Caller, to: Member) -> Ends {
    let to = Caller::Node(to);
    Ends { domain, from, to }
}

#[cfg(test)]
mod tests {
    use highwater_protocol::handshake::Slot;

    use super::*;

    fn ends(domain: u8, from: u64, to: u64) -> Ends {
        let member = |generation| Member {
            slot: Slot::new(1).unwrap(),
            generation,
        };
        let domain = Domain::from_bytes([domain; 32]);
        between(domain, Caller::Node(member(from)), member(to))
    }

    #[tokio::test]
    async fn a_frame_arrives_only_where_it_is_meant_for() {
        let frame = Frame {
            kind: APPEND,
            id: 7,
            body: vec![1, 2, 3],
        };
        for (expected, arrives) in [
            (ends(1, 2, 3), true),
            (ends(9, 2, 3), false),
            (ends(1, 9, 3), false),
            (ends(1, 2, 9), false),
        ] {
            let (mut here, mut there) = tokio::io::duplex(1 << 16);
            write(&mut here, ends(1, 2, 3), &frame).await.unwrap();
            let read = read(&mut there, expected).await;
            match arrives {
                true => assert_eq!(read.unwrap().as_ref(), Some(&frame)),
                false => assert!(matches!(read, Err(FrameError::Elsewhere))),
            }
        }
    }

    #[tokio::test]
    async fn a_length_beyond_the_bound_is_refused_before_anything_is_read() {
        let (mut here, mut there) = tokio::io::duplex(64);
        here.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        let read = read(&mut there, ends(1, 2, 3)).await;
        assert!(matches!(read, Err(FrameError::TooLong)));
    }
}
