//! Cuts a stream of bytes into frames.
//!
//! Knows lengths, not meanings: a frame is an opcode, a 16-bit length and a body, and a table says
//! how long the body of each opcode may be. A frame that breaks the table is refused as soon as
//! its three header bytes are there, so nobody can make the buffer grow beyond the longest frame.

/// The length of a frame's header: opcode u8, body length u16.
pub(crate) const HEADER_BYTES: usize = 3;

/// The shortest and longest body of an opcode, or `None` when there is no such opcode.
pub(crate) type Bounds = fn(u8) -> Option<(usize, usize)>;

/// Why a connection must end: the peer's bytes cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// No frame starts with this byte in this direction.
    #[error("there is no opcode {opcode:#04x}")]
    Opcode {
        /// The byte.
        opcode: u8,
    },
    /// The body is shorter or longer than any body of this opcode.
    #[error("a body of {bytes} bytes is not possible for opcode {opcode:#04x}")]
    Length {
        /// The opcode.
        opcode: u8,
        /// The announced length of the body.
        bytes: usize,
    },
    /// The fields need more bytes than the body has.
    #[error("the body ends within a field")]
    Truncated,
    /// The body has bytes behind its last field.
    #[error("bytes are left over behind the last field")]
    LeftOver,
    /// Zero stands for a request number.
    #[error("zero is not a request number")]
    ZeroId,
    /// A key is not UTF-8.
    #[error("a key is not UTF-8")]
    Utf8,
    /// A field of a reply has a value that does not exist: a zero token, an unknown error code,
    /// a slot beyond the largest cluster.
    #[error("a field of the reply has an impossible value")]
    Value,
}

/// Holds at most one unfinished frame.
#[derive(Debug)]
pub(crate) struct FrameBuffer {
    bounds: Bounds,
    partial: Vec<u8>,
}

impl FrameBuffer {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            partial: Vec::new(),
        }
    }

    /// Whether some but not all bytes of a frame have come.
    pub(crate) fn is_mid_frame(&self) -> bool {
        !self.partial.is_empty()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.partial.capacity()
    }

    /// Takes the next whole frame off `input` and hands it to `read`; whole frames are read where
    /// they lie, and only an unfinished one is copied.
    pub(crate) fn next<T>(
        &mut self,
        input: &mut &[u8],
        read: impl FnOnce(u8, &[u8]) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        // The opcode alone can already be wrong, and then nothing of it is kept.
        if self.partial.is_empty()
            && let Some(length) = self.frame_length(input)?
            && let Some((frame, rest)) = input.split_at_checked(length)
        {
            *input = rest;
            return read(frame[0], &frame[HEADER_BYTES..]).map(Some);
        }
        if !self.fill(HEADER_BYTES, input) {
            return Ok(None);
        }
        let length = self
            .frame_length(&self.partial)?
            .expect("the header is complete");
        if !self.fill(length, input) {
            return Ok(None);
        }
        let value = read(self.partial[0], &self.partial[HEADER_BYTES..]);
        self.partial.clear();
        value.map(Some)
    }

    /// Moves bytes from the input until `length` are held; `false` when the input ends before.
    fn fill(&mut self, length: usize, input: &mut &[u8]) -> bool {
        if input.is_empty() {
            return self.partial.len() >= length;
        }
        let missing = length.saturating_sub(self.partial.len());
        let (taken, rest) = input.split_at(missing.min(input.len()));
        // Exactly: the usual doubling would pass the bound of one frame.
        self.partial.reserve_exact(missing);
        self.partial.extend_from_slice(taken);
        *input = rest;
        self.partial.len() >= length
    }

    /// The length of the frame that starts with these bytes, once its header is complete.
    fn frame_length(&self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(&opcode) = bytes.first() else {
            return Ok(None);
        };
        let (shortest, longest) = (self.bounds)(opcode).ok_or(FrameError::Opcode { opcode })?;
        let Some(&[high, low]) = bytes.get(1..HEADER_BYTES) else {
            return Ok(None);
        };
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if bytes < shortest || bytes > longest {
            return Err(FrameError::Length { opcode, bytes });
        }
        Ok(Some(HEADER_BYTES + bytes))
    }
}

/// Reads the fields of one body from left to right.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) const fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (field, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FrameError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    pub(crate) fn end(self) -> Result<(), FrameError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(FrameError::LeftOver)
        }
    }
}
