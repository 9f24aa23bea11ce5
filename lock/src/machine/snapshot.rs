//! The machine as bytes, and back.
//!
//! The format is private to this file and has a version. Reading it trusts nothing: any bytes give
//! a valid machine or an error, and memory grows only with the bytes that are really there. It
//! carries no checksum: that storage keeps bytes whole is the storage's promise.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::holds::Hold;
use super::names::Kind;
use super::waiters::Newcomer;
use super::{HoldState, Machine};
use crate::time::micros_rounded_up;
use crate::{
    ConnectionId, Epoch, FencingToken, HashSeed, Key, KeySet, Limits, RequestId, Timestamp,
    WaiterId,
};

/// Why bytes are not a snapshot. Nothing is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The bytes do not begin like a snapshot. Look for the right ones.
    #[error("this is not a snapshot of a lock machine")]
    NotASnapshot,
    /// A format that this build does not know: use the build that wrote it, or a newer one.
    #[error("snapshot format {found} is not known")]
    UnknownVersion {
        /// The format's number.
        found: u16,
    },
    /// The bytes end too early, go on too long, or a field is out of range. Use an older snapshot.
    #[error("the snapshot is damaged at byte {position}")]
    Damaged {
        /// Where reading stopped.
        position: u64,
    },
    /// Every field is well formed, but together they break a rule of the machine. Use an older
    /// snapshot.
    #[error("the snapshot contradicts itself: {rule}")]
    Inconsistent {
        /// The rule.
        rule: &'static str,
    },
}

// All numbers are big-endian.
//
//   magic 6 · version u16 · now u64 · epoch u64 · next token u64 (0: none left)
//   count u64 · holds in token order:     token u64 · granted at u64 · state u8 · deadline u64 · what
//   count u64 · waiters in arrival order: connection u64 · request u64 · deadline u64 · lease u64 · what
//
//   what, of a plain lock: 0 u8 · count u8 · count × (length u8 · key)
//   what, of a slot:       1 u8 · slots u32 · slot u32 (holds only) · length u8 · name
const MAGIC: &[u8; 6] = b"hwlock";
const VERSION: u16 = 1;
const HELD: u8 = 0;
const RETAINED: u8 = 1;
const PLAIN: u8 = 0;
const SLOTS: u8 = 1;

impl Machine {
    /// The whole state as bytes: holds, queues, time, epoch and the token counter, but not the
    /// limits. Machines in the same state give the same bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        put_u64(&mut bytes, self.now.as_micros());
        put_u64(&mut bytes, self.epoch.get());
        put_u64(&mut bytes, self.next_token.map_or(0, FencingToken::get));
        put_u64(&mut bytes, self.holds.len() as u64);
        for hold in self.holds.in_token_order() {
            put_u64(&mut bytes, hold.token.get());
            put_u64(&mut bytes, hold.granted_at.as_micros());
            bytes.push(match hold.state {
                HoldState::Held { .. } => HELD,
                HoldState::Retained { .. } => RETAINED,
            });
            put_u64(&mut bytes, hold.deadline().as_micros());
            let kind = self.names.get(&hold.keys[0]).map(|name| name.kind());
            let kind = kind.expect("a held key is in use");
            put_what(&mut bytes, &hold.keys, kind, hold.slot);
        }
        put_u64(&mut bytes, self.waiters.len() as u64);
        for (_, waiter) in self.waiters.in_order() {
            put_u64(&mut bytes, waiter.id.connection.get());
            put_u64(&mut bytes, waiter.id.request.get());
            put_u64(&mut bytes, waiter.deadline.as_micros());
            put_u64(&mut bytes, waiter.lease_micros);
            put_what(&mut bytes, &waiter.keys, waiter.kind, None);
        }
        bytes
    }

    /// The machine that wrote these bytes, with limits of the caller's choice.
    ///
    /// What is over the new limits stays; they bind from the next command on.
    ///
    /// # Errors
    /// The bytes are no snapshot, or not one of a valid machine. No input panics, and memory
    /// stays in proportion to the length of the input.
    pub fn restore(bytes: &[u8], limits: Limits) -> Result<Self, RestoreError> {
        Self::restore_seeded(bytes, limits, HashSeed::default())
    }

    /// [`Machine::restore`] for keys that hostile clients have chosen; see [`HashSeed`]. The seed
    /// need not be that of the machine that wrote the bytes.
    ///
    /// # Errors
    /// As [`Machine::restore`].
    pub fn restore_seeded(
        bytes: &[u8],
        limits: Limits,
        seed: HashSeed,
    ) -> Result<Self, RestoreError> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(RestoreError::NotASnapshot)?;
        let mut reader = Reader {
            rest,
            position: MAGIC.len() as u64,
        };
        let found = reader.u16()?;
        if found != VERSION {
            return Err(RestoreError::UnknownVersion { found });
        }
        let mut machine = Self::seeded(limits, FencingToken::MIN, seed);
        machine.now = Timestamp::from_micros(reader.u64()?);
        machine.epoch = Epoch::new(reader.u64()?);
        machine.next_token = FencingToken::new(reader.u64()?);
        let mut last = None;
        for _ in 0..reader.u64()? {
            let token = machine.restore_hold(&mut reader, last)?;
            last = Some(token);
        }
        for _ in 0..reader.u64()? {
            machine.restore_waiter(&mut reader)?;
        }
        if !reader.rest.is_empty() {
            return Err(reader.damaged());
        }
        match machine.check() {
            Ok(()) => Ok(machine),
            Err(rule) => Err(RestoreError::Inconsistent { rule }),
        }
    }

    fn restore_hold(
        &mut self,
        reader: &mut Reader<'_>,
        last: Option<FencingToken>,
    ) -> Result<FencingToken, RestoreError> {
        let token = reader.token()?;
        if last.is_some_and(|last| last >= token) {
            return Err(inconsistent("holds are in token order"));
        }
        let granted_at = Timestamp::from_micros(reader.u64()?);
        let state = reader.u8()?;
        let deadline = Timestamp::from_micros(reader.u64()?);
        let state = match state {
            HELD => HoldState::Held { expires: deadline },
            RETAINED => HoldState::Retained { until: deadline },
            _ => return Err(reader.damaged()),
        };
        let (keys, kind, slot) = reader.what(true)?;
        let id = self
            .holds
            .insert(Hold::new(keys.clone(), token, granted_at, state));
        if let Some(slot) = slot {
            self.holds.set_slot(id, slot);
        }
        for key in keys.iter() {
            if !self.names.place(key, kind, slot, id) {
                return Err(inconsistent("a key has one holder, a slot too"));
            }
        }
        self.held_keys += keys.len();
        Ok(token)
    }

    fn restore_waiter(&mut self, reader: &mut Reader<'_>) -> Result<(), RestoreError> {
        let id = WaiterId {
            connection: ConnectionId::new(reader.u64()?),
            request: RequestId::new(reader.u64()?),
        };
        let deadline = Timestamp::from_micros(reader.u64()?);
        let lease_micros = reader.u64()?;
        if lease_micros == 0 || lease_micros > micros_rounded_up(Limits::LONGEST) {
            return Err(reader.damaged());
        }
        let (keys, kind, _) = reader.what(false)?;
        if self.waiters.find(id).is_some() {
            return Err(inconsistent("a request is queued once"));
        }
        if self.names.survey(&keys, kind).conflict.is_some() {
            return Err(inconsistent("all who use a name agree what it is"));
        }
        self.enqueue(Newcomer {
            id,
            keys,
            kind,
            deadline,
            lease_micros,
        });
        Ok(())
    }
}

fn put_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

fn put_what(bytes: &mut Vec<u8>, keys: &KeySet, kind: Kind, slot: Option<u32>) {
    match kind {
        Kind::Plain => bytes.extend_from_slice(&[PLAIN, byte(keys.len())]),
        Kind::Slots(count) => {
            bytes.push(SLOTS);
            bytes.extend_from_slice(&count.get().to_be_bytes());
            if let Some(slot) = slot {
                bytes.extend_from_slice(&slot.to_be_bytes());
            }
        }
    }
    for key in keys.iter() {
        bytes.push(byte(key.as_bytes().len()));
        bytes.extend_from_slice(key.as_bytes());
    }
}

fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("keys and sets are short")
}

fn inconsistent(rule: &'static str) -> RestoreError {
    RestoreError::Inconsistent { rule }
}

struct Reader<'a> {
    rest: &'a [u8],
    position: u64,
}

impl Reader<'_> {
    fn damaged(&self) -> RestoreError {
        RestoreError::Damaged {
            position: self.position,
        }
    }

    fn bytes(&mut self, length: usize) -> Result<&[u8], RestoreError> {
        let Some((head, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.damaged());
        };
        self.rest = rest;
        self.position += length as u64;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, RestoreError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, RestoreError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, RestoreError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, RestoreError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn token(&mut self) -> Result<FencingToken, RestoreError> {
        let number = self.u64()?;
        FencingToken::new(number).ok_or_else(|| self.damaged())
    }

    fn key(&mut self) -> Result<Key, RestoreError> {
        let length = self.u8()?;
        let bytes = self.bytes(usize::from(length))?;
        let key = core::str::from_utf8(bytes).ok().map(Key::new);
        match key {
            Some(Ok(key)) => Ok(key),
            _ => Err(self.damaged()),
        }
    }

    /// Keys, what they are used as, and for a hold of a slot which one it is.
    fn what(&mut self, held: bool) -> Result<(KeySet, Kind, Option<u32>), RestoreError> {
        match self.u8()? {
            PLAIN => {
                let count = self.u8()?;
                let mut keys = Vec::new();
                for _ in 0..count {
                    keys.push(self.key()?);
                }
                let keys = KeySet::from_sorted(keys).map_err(|_| self.damaged())?;
                Ok((keys, Kind::Plain, None))
            }
            SLOTS => {
                let count = NonZeroU32::new(self.u32()?).ok_or_else(|| self.damaged())?;
                let slot = if held { Some(self.u32()?) } else { None };
                Ok((self.key()?.into(), Kind::Slots(count), slot))
            }
            _ => Err(self.damaged()),
        }
    }
}
