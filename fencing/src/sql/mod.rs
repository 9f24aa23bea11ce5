//! The statements per dialect, what the answers mean, and which errors deserve what.
//!
//! Knows no driver: text, numbers and codes in, text and verdicts out. An adapter runs the text.

#[cfg(feature = "__mysql")]
pub(crate) mod mysql;
#[cfg(feature = "__postgres")]
pub(crate) mod postgres;
pub(crate) mod row;
#[cfg(feature = "__sqlite")]
pub(crate) mod sqlite;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_lock::{Domain, Fence, FenceKey, FencingToken, Step};

use crate::{FenceError, FenceOptions};

/// The highest token and step that every database can store.
pub(crate) const HIGHEST: u64 = i64::MAX.unsigned_abs();

/// Refuses tokens and steps that a database cannot store, before anything is sent.
pub(crate) fn check_range<D>(fence: &Fence) -> Result<(), FenceError<D>> {
    for mark in fence.marks() {
        if mark.token.get() > HIGHEST {
            return Err(FenceError::TokenOutOfRange { token: mark.token });
        }
    }
    match fence.step() {
        Some(step) if step.get() > HIGHEST => Err(FenceError::StepOutOfRange { step }),
        _ => Ok(()),
    }
}

/// A row of the table of marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredMark {
    pub(crate) key: FenceKey,
    pub(crate) domain: Domain,
    pub(crate) token: FencingToken,
    pub(crate) step: u64,
}

impl StoredMark {
    /// Reads the columns, the bytes as hexadecimal digits; `None` if they are not a mark.
    pub(crate) fn from_columns(key: &str, domain: &str, token: u64, step: u64) -> Option<Self> {
        let domain: [u8; Domain::BYTES] = unhex(domain)?.try_into().ok()?;
        Some(Self {
            key: FenceKey::new(unhex(key)?).ok()?,
            domain: Domain::from_bytes(domain),
            token: FencingToken::new(token)?,
            step,
        })
    }
}

/// Says why a fence was refused by these marks, or `None` if they would admit it.
///
/// If keys refuse for different reasons, a foreign domain comes before a stale token, and that
/// before a repeated step: the reason that is hardest to get over.
pub(crate) fn refusal<D>(
    options: &FenceOptions,
    fence: &Fence,
    stored: &[StoredMark],
) -> Option<FenceError<D>> {
    let pairs = || {
        let found = |key: &FenceKey| stored.iter().find(|stored| stored.key == *key);
        (fence.marks().iter()).filter_map(move |mark| found(&mark.key).map(|found| (mark, found)))
    };
    let mismatch = pairs().find(|(mark, found)| {
        let adopted = options.adopts_higher() && mark.token > found.token;
        found.domain != fence.domain() && !adopted
    });
    if let Some((mark, found)) = mismatch {
        return Some(FenceError::DomainMismatch {
            key: mark.key.clone(),
            offered: fence.domain(),
            found: found.domain,
        });
    }
    if let Some((mark, found)) = pairs().find(|(mark, found)| found.token > mark.token) {
        return Some(FenceError::Stale {
            key: mark.key.clone(),
            offered: mark.token,
            highest: found.token,
        });
    }
    let step = fence.step()?;
    let repeated =
        pairs().find(|(mark, found)| found.token == mark.token && found.step >= step.get());
    repeated.map(|(mark, found)| FenceError::AlreadyApplied {
        key: mark.key.clone(),
        token: mark.token,
        step,
        latest: Step::new(found.step).unwrap_or(step),
    })
}

/// The savepoint of one transaction, with a number that no other of this process has.
///
/// It is unique so that a fenced transaction cannot take the savepoint of another one, begun on
/// the same connection after the first was ended behind its back, for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    unnameable_types,
    unreachable_pub,
    reason = "part of a sealed trait of some adapters"
)]
pub struct Marker(u64);

impl Marker {
    /// A new one.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number.
    #[cfg(feature = "__mysql")]
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Marker {
    /// The name of the savepoint.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hw_{}", self.0)
    }
}

/// What a driver error means for the transaction it happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    unnameable_types,
    unreachable_pub,
    reason = "part of a sealed trait of some adapters"
)]
pub enum Class {
    /// Lost against a concurrent transaction: the whole transaction may succeed if run again.
    Transient,
    /// The table of marks does not exist.
    NoTable,
    /// The fence statement found that a mark does not admit this fence.
    Refused,
    /// The wait for a lock took longer than was allowed.
    LockTimeout,
    /// Everything else.
    Other,
}

/// What an error says, that came instead of the answer to `RELEASE marker` or to `COMMIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    unnameable_types,
    unreachable_pub,
    reason = "part of a sealed trait of some adapters"
)]
pub enum Failed {
    /// The server answered, and did not commit.
    RolledBack,
    /// The marker is gone: the transaction was ended by something else.
    Ended,
    /// It may have committed.
    Unknown,
}

/// The bytes as lower-case hexadecimal digits: the only form in which keys stand in SQL text.
#[cfg(any(feature = "__mysql", feature = "__postgres", feature = "__sqlx", test))]
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(u32::from);
    let digit = |nibble| char::from_digit(nibble, 16).expect("a nibble is below 16");
    bytes.iter().flat_map(digits).map(digit).collect()
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| (digit as char).to_digit(16);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => u8::try_from(nibble(*high)? * 16 + nibble(*low)?).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Error = FenceError<std::fmt::Error>;

    fn refusal(fence: &Fence, stored: &[StoredMark]) -> Option<Error> {
        super::refusal(&FenceOptions::new(), fence, stored)
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn domain(name: &str) -> Domain {
        Domain::named(name).unwrap()
    }

    fn stored(key: &str, domain_name: &str, number: u64, step: u64) -> StoredMark {
        StoredMark {
            key: FenceKey::new(key).unwrap(),
            domain: domain(domain_name),
            token: token(number),
            step,
        }
    }

    fn fence(key: &str, number: u64) -> Fence {
        Fence::new(domain("d"), FenceKey::new(key).unwrap(), token(number))
    }

    #[test]
    fn hexadecimal_digits_go_both_ways() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)).unwrap(), bytes);
        assert_eq!(unhex("0A").unwrap(), [10]);
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("0g"), None);
    }

    #[test]
    fn a_higher_mark_is_named_with_both_tokens() {
        let refused = refusal(&fence("a", 6), &[stored("a", "d", 7, 0)]);
        let Some(Error::Stale {
            offered, highest, ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((offered, highest), (token(6), token(7)));
    }

    #[test]
    fn marks_that_admit_give_no_reason() {
        let rows = [stored("a", "d", 7, 3), stored("b", "other", 99, 0)];
        assert!(refusal(&fence("a", 7), &rows).is_none());
        assert!(refusal(&fence("a", 8), &rows).is_none());
        assert!(refusal(&fence("c", 1), &rows).is_none());
        let later = fence("a", 7).with_step(4.try_into().unwrap());
        assert!(refusal(&later, &rows).is_none());
    }

    #[test]
    fn the_domain_is_the_first_reason_and_the_step_the_last() {
        let both = fence("a", 7).and(fence("b", 5)).unwrap();
        let step = |number: u64| both.clone().with_step(number.try_into().unwrap());
        let rows = |domain, b| [stored("a", "d", 7, 3), stored("b", domain, b, 0)];
        assert!(matches!(
            refusal(&step(3), &rows("other", 9)),
            Some(Error::DomainMismatch { .. })
        ));
        assert!(matches!(
            refusal(&step(3), &rows("d", 9)),
            Some(Error::Stale { .. })
        ));
        assert!(matches!(
            refusal(&step(3), &rows("d", 4)),
            Some(Error::AlreadyApplied { .. })
        ));
    }

    #[test]
    fn a_higher_token_of_another_domain_is_adopted_only_on_request() {
        let options = FenceOptions::new().domain_policy(crate::DomainPolicy::AdoptHigher);
        let adopt = |number| -> Option<Error> {
            super::refusal(&options, &fence("a", number), &[stored("a", "other", 7, 0)])
        };
        assert!(adopt(8).is_none());
        assert!(matches!(adopt(7), Some(Error::DomainMismatch { .. })));
        assert!(matches!(adopt(6), Some(Error::DomainMismatch { .. })));
        let strict = refusal(&fence("a", 8), &[stored("a", "other", 7, 0)]);
        assert!(matches!(strict, Some(Error::DomainMismatch { .. })));
    }

    #[test]
    fn what_a_database_cannot_store_is_out_of_range() {
        let edge = HIGHEST;
        assert!(check_range::<std::fmt::Error>(&fence("a", edge)).is_ok());
        assert!(matches!(
            check_range(&fence("a", edge + 1)),
            Err(Error::TokenOutOfRange { .. })
        ));
        let step = |number: u64| fence("a", 1).with_step(number.try_into().unwrap());
        assert!(check_range::<std::fmt::Error>(&step(edge)).is_ok());
        assert!(matches!(
            check_range(&step(edge + 1)),
            Err(Error::StepOutOfRange { .. })
        ));
    }

    #[test]
    fn markers_differ() {
        assert_ne!(Marker::new(), Marker::new());
    }
}
