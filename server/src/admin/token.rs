//! The tokens of operators.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Lets an operator in: a bearer token of 16 to 1024 visible ASCII characters, with a name for the
/// log.
///
/// Only a hash of it is kept, and its `Debug` shows the name alone.
#[derive(Clone)]
pub struct AdminToken {
    name: String,
    hash: [u8; 32],
}

impl AdminToken {
    /// The shortest token, in bytes.
    pub const MIN_BYTES: usize = 16;
    /// The longest token, in bytes.
    pub const MAX_BYTES: usize = 1024;
    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;

    /// Takes what a file or an environment variable holds: white space (ASCII) at both ends, such
    /// as the last line feed, does not belong to the token. The name is what the log says of its
    /// bearer.
    ///
    /// # Errors
    /// Which rule the token or the name breaks.
    pub fn from_file_content(
        name: impl Into<String>,
        content: impl AsRef<[u8]>,
    ) -> Result<Self, AdminTokenError> {
        let name = name.into();
        let visible = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_graphic);
        if name.is_empty() || name.len() > Self::MAX_NAME_BYTES || !visible(name.as_bytes()) {
            return Err(AdminTokenError::Name);
        }
        let token = content.as_ref().trim_ascii();
        match token.len() {
            short if short < Self::MIN_BYTES => {
                return Err(AdminTokenError::TooShort { bytes: short });
            }
            long if long > Self::MAX_BYTES => {
                return Err(AdminTokenError::TooLong { bytes: long });
            }
            _ if !visible(token) => return Err(AdminTokenError::NotVisible),
            _ => {}
        }
        Ok(Self {
            name,
            hash: hash(token),
        })
    }

    /// What the log calls its bearer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the token with that hash, in a time that tells nothing.
    pub(super) fn has(&self, presented: &[u8; 32]) -> Choice {
        self.hash.ct_eq(presented)
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminToken")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What is compared instead of a token: the same length for all, and nothing to guess in parts.
pub(super) fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Why something is not an [`AdminToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminTokenError {
    /// The token is too short to be safe from guessing.
    #[error("an admin token has at least 16 characters, this one has {bytes}")]
    TooShort {
        /// Its length.
        bytes: usize,
    },
    /// The token is longer than [`AdminToken::MAX_BYTES`].
    #[error("an admin token has at most 1024 characters, this one has {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The token cannot stand in a request: it has a space, a control character or a letter
    /// outside of ASCII.
    #[error("an admin token consists of visible ASCII characters")]
    NotVisible,
    /// The name cannot stand in a log line.
    #[error("the name of an admin token has 1 to 64 visible ASCII characters")]
    Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_keeps_the_rules_and_shows_nothing() {
        let made = |content: &str| AdminToken::from_file_content("ops", content);
        let token = made("  0123456789abcdef\r\n").unwrap();
        assert!(bool::from(token.has(&hash(b"0123456789abcdef"))));
        assert!(!bool::from(token.has(&hash(b"0123456789abcdeg"))));
        assert_eq!(format!("{token:?}"), "AdminToken { name: \"ops\", .. }");
        let bytes = 15;
        let refused = made("0123456789abcde").unwrap_err();
        assert_eq!(refused, AdminTokenError::TooShort { bytes });
        let refused = made(&"a".repeat(1_025)).unwrap_err();
        assert_eq!(refused, AdminTokenError::TooLong { bytes: 1_025 });
        assert!(made(&"a".repeat(1_024)).is_ok());
        for wrong in [
            "0123456789 abcdef",
            "0123456789\u{e9}abcdef",
            "0123456789\0abcdef",
        ] {
            assert_eq!(made(wrong).unwrap_err(), AdminTokenError::NotVisible);
        }
        for name in ["", "two words", "line\nfeed", &"n".repeat(65)] {
            let refused = AdminToken::from_file_content(name, "0123456789abcdef").unwrap_err();
            assert_eq!(refused, AdminTokenError::Name, "{name:?}");
        }
    }
}
