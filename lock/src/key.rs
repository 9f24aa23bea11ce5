//! Names of locks, and canonical sets of them.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::ops::Deref;
use core::slice;

/// The name of a lock: 1 to 128 bytes of UTF-8 without a space, line feed or carriage return.
///
/// Compared by bytes: no case folding, no Unicode normalisation. Cloning is cheap (the bytes are
/// shared). The rule is that of the wire protocol, so every key fits every frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks the key rule and gives the key.
    ///
    /// # Errors
    /// Which part of the rule the name breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, KeyError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(KeyError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(KeyError::TooLong { bytes: name.len() });
        }
        match name
            .bytes()
            .position(|byte| matches!(byte, b' ' | b'\n' | b'\r'))
        {
            Some(position) => Err(KeyError::Forbidden { position }),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as bytes, which is how keys are ordered and compared.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(name: &str) -> Result<Self, KeyError> {
        Self::new(name)
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(name: String) -> Result<Self, KeyError> {
        Self::new(name)
    }
}

impl core::str::FromStr for Key {
    type Err = KeyError;

    fn from_str(name: &str) -> Result<Self, KeyError> {
        Self::new(name)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", &*self.0)
    }
}

/// Why a name is not a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The name has no bytes.
    #[error("a key must not be empty")]
    Empty,
    /// The name is longer than [`Key::MAX_BYTES`].
    #[error("a key has at most 128 bytes, this one has {bytes}")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A space, line feed or carriage return stands in the name.
    #[error("a key must not contain a space, line feed or carriage return (byte {position})")]
    Forbidden {
        /// The byte offset of the first one.
        position: usize,
    },
}

/// 1 to 16 distinct keys in byte order: what one acquire can ask for.
///
/// A set is granted as a whole, under one token for all its keys. A set of one key is the same
/// lock as the key alone.
#[derive(Clone)]
pub struct KeySet(Keys);

/// One key, by far the most usual case, needs no allocation of its own.
#[derive(Clone)]
enum Keys {
    One(Key),
    /// At least two.
    Several(Arc<Box<[Key]>>),
}

const _: () = assert!(size_of::<KeySet>() == size_of::<Key>());

impl KeySet {
    /// The most keys in one set.
    pub const MAX_KEYS: usize = 16;

    /// Sorts the keys and gives the set.
    ///
    /// # Errors
    /// No key, more than [`KeySet::MAX_KEYS`], or the same key twice.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self, KeySetError> {
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_unstable();
        Self::from_sorted(keys)
    }

    /// Takes keys that must already be in canonical order: strictly increasing by bytes.
    ///
    /// # Errors
    /// As [`KeySet::new`], and keys out of order.
    pub fn from_sorted(keys: Vec<Key>) -> Result<Self, KeySetError> {
        if keys.is_empty() {
            return Err(KeySetError::Empty);
        }
        if keys.len() > Self::MAX_KEYS {
            return Err(KeySetError::TooMany { keys: keys.len() });
        }
        for pair in keys.windows(2) {
            if pair[0] == pair[1] {
                return Err(KeySetError::Duplicate {
                    key: pair[0].clone(),
                });
            }
            if pair[0] > pair[1] {
                return Err(KeySetError::Unsorted);
            }
        }
        let keys = match <[Key; 1]>::try_from(keys) {
            Ok([key]) => Keys::One(key),
            Err(keys) => Keys::Several(Arc::new(keys.into())),
        };
        Ok(Self(keys))
    }

    /// The keys in byte order, never none.
    pub fn keys(&self) -> &[Key] {
        match &self.0 {
            Keys::One(key) => slice::from_ref(key),
            Keys::Several(keys) => keys,
        }
    }
}

impl From<Key> for KeySet {
    fn from(key: Key) -> Self {
        Self(Keys::One(key))
    }
}

impl Deref for KeySet {
    type Target = [Key];

    fn deref(&self) -> &[Key] {
        self.keys()
    }
}

impl PartialEq for KeySet {
    fn eq(&self, other: &Self) -> bool {
        self.keys() == other.keys()
    }
}

impl Eq for KeySet {}

impl PartialOrd for KeySet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeySet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.keys().cmp(other.keys())
    }
}

impl Hash for KeySet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.keys().hash(state);
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Key::as_str)).finish()
    }
}

impl fmt::Display for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

/// Why some keys are not a [`KeySet`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// No key at all.
    #[error("a key set must not be empty")]
    Empty,
    /// More than [`KeySet::MAX_KEYS`] keys.
    #[error("a key set has at most 16 keys, this one has {keys}")]
    TooMany {
        /// How many there are.
        keys: usize,
    },
    /// The same key twice.
    #[error("key {key} stands in the set twice")]
    Duplicate {
        /// The repeated key.
        key: Key,
    },
    /// The keys are not in byte order, where canonical order is required.
    #[error("the keys of a set must be sorted by bytes")]
    Unsorted,
}
