//! Numbers and byte strings, written one after the other and read back.
//!
//! All numbers are big-endian. Reading trusts nothing: it never panics, and takes no memory that
//! the bytes themselves do not stand for.

/// Bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}")]
pub(super) struct Malformed {
    /// What was being read.
    pub(super) what: &'static str,
}

/// Says what was being read.
pub(super) const fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

/// Appends to a buffer.
pub(super) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn u8(&mut self, number: u8) {
        self.put(&[number]);
    }

    fn u16(&mut self, number: u16) {
        self.put(&number.to_be_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.put(&number.to_be_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.put(&number.to_be_bytes());
    }

    /// A byte string with its length, which must fit 16 bits.
    fn short(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).expect("short byte strings are short"));
        self.put(bytes);
    }

    /// How many of something follow.
    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("lists are bounded"));
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads what [`Put`] has written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn wrong(&self) -> Malformed {
        malformed(self.what)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(self.wrong())?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong()),
        }
    }

    pub(super) fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// How many of something follow, each of which takes at least `least` bytes.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(self.wrong()),
        }
    }

    /// What has not been read.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// That nothing is left over.
    pub(super) fn end(self) -> Result<(), Malformed> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(self.wrong()),
        }
    }
}
