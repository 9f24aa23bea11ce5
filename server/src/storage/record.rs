//! The one record that survives the server, as bytes and back.
//!
//! A fixed layout of 100 bytes: magic, format number, fields, and the SHA-256 of all before it.
//! Bytes either are exactly what some server wrote, or an error that says what they look like;
//! there is no third case. How a record gets onto the disk is in [`store`](super::store).

use std::time::Duration;

use highwater_lock::{Domain, FencingToken};
use sha2::{Digest as _, Sha256};

/// What a server has to know about those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) domain: Domain,
    /// Tokens below it may have been given out; none from here on was.
    pub(crate) bound: FencingToken,
    /// Leases that were given out may go on for this long after the last server has ended.
    pub(crate) horizon: Duration,
    /// The last server ended in an orderly way, so `bound` and `horizon` are exact.
    pub(crate) closed: bool,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// They do not begin like one.
    Foreign,
    /// A format that this build does not know.
    Format(u16),
    Damaged(&'static str),
}

impl Record {
    /// The length of a record in bytes.
    pub(crate) const BYTES: usize = CHECKSUM_AT + 32;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..FORMAT_AT].copy_from_slice(&MAGIC);
        bytes[FORMAT_AT..CLOSED_AT].copy_from_slice(&FORMAT.to_be_bytes());
        bytes[CLOSED_AT..DOMAIN_AT].copy_from_slice(&u16::from(self.closed).to_be_bytes());
        bytes[DOMAIN_AT..BOUND_AT].copy_from_slice(self.domain.as_bytes());
        bytes[BOUND_AT..HORIZON_AT].copy_from_slice(&self.bound.get().to_be_bytes());
        let micros = u64::try_from(self.horizon.as_micros()).unwrap_or(u64::MAX);
        bytes[HORIZON_AT..CHECKSUM_AT].copy_from_slice(&micros.to_be_bytes());
        let checksum = Sha256::digest(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.is_empty() {
            return Err(Unreadable::Damaged("it is empty"));
        }
        let begins = bytes.len().min(MAGIC.len());
        if bytes[..begins] != MAGIC[..begins] {
            return Err(Unreadable::Foreign);
        }
        let Some(format) = bytes.get(FORMAT_AT..CLOSED_AT) else {
            return Err(Unreadable::Damaged("it is cut off"));
        };
        let format = u16::from_be_bytes(array(format));
        if format != FORMAT {
            return Err(Unreadable::Format(format));
        }
        if bytes.len() < Self::BYTES {
            return Err(Unreadable::Damaged("it is cut off"));
        }
        if bytes.len() > Self::BYTES {
            return Err(Unreadable::Damaged("something follows it"));
        }
        let checksum = Sha256::digest(&bytes[..CHECKSUM_AT]);
        if bytes[CHECKSUM_AT..] != checksum[..] {
            return Err(Unreadable::Damaged("its checksum is wrong"));
        }
        let bound = u64::from_be_bytes(array(&bytes[BOUND_AT..HORIZON_AT]));
        let bound = FencingToken::new(bound).ok_or(Unreadable::Damaged("its token is zero"))?;
        let closed = match u16::from_be_bytes(array(&bytes[CLOSED_AT..DOMAIN_AT])) {
            0 => false,
            1 => true,
            _ => return Err(Unreadable::Damaged("a field is out of range")),
        };
        let micros = u64::from_be_bytes(array(&bytes[HORIZON_AT..CHECKSUM_AT]));
        Ok(Self {
            domain: Domain::from_bytes(array(&bytes[DOMAIN_AT..BOUND_AT])),
            bound,
            horizon: Duration::from_micros(micros),
            closed,
        })
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the fields have these lengths")
}

const MAGIC: [u8; 16] = *b"highwater state\n";
const FORMAT: u16 = 1;
const FORMAT_AT: usize = 16;
const CLOSED_AT: usize = 18;
const DOMAIN_AT: usize = 20;
const BOUND_AT: usize = 52;
const HORIZON_AT: usize = 60;
const CHECKSUM_AT: usize = 68;

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let mut records = Vec::new();
        for bound in [1, 7, 1_796_002_494_554_888, u64::MAX] {
            for micros in [0, 1, 30_000_000, u64::MAX] {
                for closed in [false, true] {
                    records.push(Record {
                        domain: Domain::from_bytes([0xa5; 32]),
                        bound: FencingToken::new(bound).unwrap(),
                        horizon: Duration::from_micros(micros),
                        closed,
                    });
                }
            }
        }
        records
    }

    #[test]
    fn the_bytes_are_these() {
        let record = Record {
            domain: Domain::from_bytes([0x11; 32]),
            bound: FencingToken::new(0x0102_0304_0506_0708).unwrap(),
            horizon: Duration::from_micros(0x0a0b),
            closed: true,
        };
        let mut expected = b"highwater state\n\x00\x01\x00\x01".to_vec();
        expected.extend([0x11; 32]);
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        expected.extend(Sha256::digest(&expected));
        assert_eq!(record.encode().to_vec(), expected);
        assert_eq!(expected.len(), 100);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in records() {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        for record in records() {
            let bytes = record.encode();
            for length in 0..bytes.len() {
                let refused = Record::decode(&bytes[..length]);
                assert!(
                    matches!(refused, Err(Unreadable::Damaged(_))),
                    "{length} bytes: {refused:?}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(Record::decode(&longer).is_err());
            assert!(Record::decode(&[&bytes[..], &bytes[..]].concat()).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_refused_and_named() {
        for record in records() {
            let bytes = record.encode();
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                let refused = Record::decode(&flipped).expect_err("a flipped bit was accepted");
                match bit / 8 {
                    0..FORMAT_AT => assert_eq!(refused, Unreadable::Foreign),
                    FORMAT_AT..CLOSED_AT => {
                        assert!(matches!(refused, Unreadable::Format(_)), "{refused:?}");
                    }
                    _ => assert_eq!(refused, Unreadable::Damaged("its checksum is wrong")),
                }
            }
        }
    }

    #[test]
    fn every_byte_replaced_by_any_other_is_refused() {
        let bytes = records()[5].encode();
        for at in 0..bytes.len() {
            for change in 1..=u8::MAX {
                let mut changed = bytes;
                changed[at] ^= change;
                assert!(Record::decode(&changed).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn fields_that_no_server_writes_are_refused_with_a_right_checksum_too() {
        let forged = |at: usize, value: &[u8]| {
            let mut bytes = records()[0].encode();
            bytes[at..at + value.len()].copy_from_slice(value);
            let checksum = Sha256::digest(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&checksum);
            Record::decode(&bytes)
        };
        assert!(forged(BOUND_AT, &[0; 8]).is_err());
        assert!(forged(CLOSED_AT, &[0, 2]).is_err());
        assert_eq!(forged(FORMAT_AT, &[0, 2]), Err(Unreadable::Format(2)));
        assert!(forged(BOUND_AT, &[1; 8]).is_ok());
    }

    #[test]
    fn other_files_are_not_taken_for_a_record() {
        let others: [&[u8]; 4] = [
            b"SQLite format 3\0",
            b"h",
            &[0; 100],
            b"highwater snapshot\n",
        ];
        for (other, looks) in others.into_iter().zip([
            Unreadable::Foreign,
            Unreadable::Damaged("it is cut off"),
            Unreadable::Foreign,
            Unreadable::Foreign,
        ]) {
            assert_eq!(Record::decode(other), Err(looks));
        }
    }
}
