//! The shared secret of clients and servers.
//!
//! Holds it, wipes it and never shows it. Where it comes from (a file, the environment) is the
//! caller's business; it must not be a program argument.

use core::fmt;

use zeroize::{Zeroize as _, Zeroizing};

/// A client token: the key of the challenge-response, 16 to 1024 bytes.
///
/// Its memory is wiped when it is dropped and its `Debug` shows nothing of it. The empty secret
/// exists only as [`Secret::no_auth`].
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The shortest secret, in bytes.
    pub const MIN_BYTES: usize = 16;
    /// The longest secret, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Takes the bytes exactly as they are.
    ///
    /// A vector is taken over and wiped; of a borrowed value the caller keeps a copy.
    ///
    /// # Errors
    /// Fewer than [`Secret::MIN_BYTES`] or more than [`Secret::MAX_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = Zeroizing::new(bytes.into());
        match bytes.len() {
            short if short < Self::MIN_BYTES => Err(SecretError::TooShort { bytes: short }),
            long if long > Self::MAX_BYTES => Err(SecretError::TooLong { bytes: long }),
            _ => Ok(Self(bytes)),
        }
    }

    /// Takes what a secret file or an environment variable holds: white space (ASCII) at both
    /// ends, such as the last line feed, does not belong to the secret.
    ///
    /// # Errors
    /// As [`Secret::new`], counted without that white space.
    pub fn from_file_content(content: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let mut content: Vec<u8> = content.into();
        let trimmed = Self::new(content.trim_ascii());
        content.zeroize();
        trimmed
    }

    /// The empty secret of a server that runs without authentication.
    ///
    /// A server may use it only when that was asked for in so many words and it listens on
    /// loopback alone.
    pub fn no_auth() -> Self {
        Self(Zeroizing::new(Vec::new()))
    }

    /// Whether this is [`Secret::no_auth`].
    pub fn is_no_auth(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_no_auth() {
            "Secret(none)"
        } else {
            "Secret(redacted)"
        })
    }
}

/// Why some bytes are not a [`Secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Too few bytes to be safe against guessing. Make a longer one.
    #[error("a secret has at least 16 bytes, this one has {bytes}")]
    TooShort {
        /// Its length.
        bytes: usize,
    },
    /// More bytes than any secret needs; probably the wrong file.
    #[error("a secret has at most 1024 bytes, this one has {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::new(*b"correct horse battery").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        assert_eq!(format!("{:?}", Secret::no_auth()), "Secret(none)");
    }

    #[test]
    fn the_length_is_bounded_at_both_ends() {
        assert!(Secret::new([7; 16]).is_ok());
        assert!(Secret::new([7; 1024]).is_ok());
        assert_eq!(
            Secret::new([7; 15]).err(),
            Some(SecretError::TooShort { bytes: 15 })
        );
        assert_eq!(
            Secret::new(vec![7; 1025]).err(),
            Some(SecretError::TooLong { bytes: 1025 })
        );
        assert_eq!(
            Secret::new([]).err(),
            Some(SecretError::TooShort { bytes: 0 })
        );
    }

    #[test]
    fn white_space_around_a_file_content_does_not_count() {
        let secret = Secret::from_file_content(*b" 0123456789abcdef\r\n").unwrap();
        assert_eq!(secret.expose(), b"0123456789abcdef");
        assert_eq!(
            Secret::from_file_content(*b"0123456789abcde\n").err(),
            Some(SecretError::TooShort { bytes: 15 })
        );
    }

    #[test]
    fn white_space_inside_a_secret_stays() {
        let secret = Secret::from_file_content(*b"0123 4567\n89abcdef\n").unwrap();
        assert_eq!(secret.expose(), b"0123 4567\n89abcdef");
    }
}
