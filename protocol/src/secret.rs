//! The shared secret of clients and servers.
//!
//! Holds it, wipes it and never shows it. Where it comes from (a file, the environment) is the
//! caller's business; it must not be a program argument.

use core::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

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

    /// Takes what a secret file or an environment variable holds: a UTF-8 byte order mark at its
    /// beginning and white space (ASCII) at both ends, such as the last line feed, do not belong
    /// to the secret, so all ways to write one down give the same.
    ///
    /// # Errors
    /// As [`Secret::new`], counted without these; and text in UTF-16, which some editors and
    /// shells write: its bytes are not those that were meant.
    pub fn from_file_content(content: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let content = Zeroizing::new(content.into());
        if UTF16_MARKS.iter().any(|mark| content.starts_with(mark)) {
            return Err(SecretError::Utf16);
        }
        let text = content.strip_prefix(UTF8_MARK).unwrap_or(&content);
        Self::new(text.trim_ascii())
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

    /// A proof that its maker knows this secret and means these parts: HMAC-SHA256 over all of
    /// them, each with its length before it (u64, big-endian), so that no byte can move from one
    /// part to another. Compare it in constant time.
    ///
    /// For handshakes of other kinds than that of clients, which have [`handshake`](crate::handshake).
    /// The first part should be a label that says what the proof is for.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.expose()).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
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
    /// The file starts with a mark of UTF-16. Save it as UTF-8 or plain ASCII.
    #[error("a secret file is UTF-8 or plain bytes, this one is UTF-16")]
    Utf16,
}

/// What some editors put before UTF-8 text.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// What stands before UTF-16 text, in both byte orders.
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

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

    #[test]
    fn a_byte_order_mark_is_not_part_of_a_secret() {
        let plain = Secret::from_file_content(*b"0123456789abcdef").unwrap();
        for content in [
            &b"\xef\xbb\xbf0123456789abcdef\r\n"[..],
            b"\xef\xbb\xbf 0123456789abcdef",
        ] {
            let marked = Secret::from_file_content(content).unwrap();
            assert_eq!(marked.expose(), plain.expose());
        }
        assert_eq!(
            Secret::from_file_content(*b"\xef\xbb\xbf0123456789abcde\n").err(),
            Some(SecretError::TooShort { bytes: 15 })
        );
        // In other places it is a part like every other.
        let inside = Secret::from_file_content(*b"0123456789abc\xef\xbb\xbf").unwrap();
        assert_eq!(inside.expose(), b"0123456789abc\xef\xbb\xbf");
        // Bytes that were given as such are not looked into.
        let bytes = Secret::new(*b"\xef\xbb\xbf0123456789abc").unwrap();
        assert_eq!(bytes.expose().len(), 16);
    }

    #[test]
    fn utf16_is_refused_in_both_byte_orders() {
        let text = "0123456789abcdef".encode_utf16();
        let little = text.clone().flat_map(u16::to_le_bytes);
        let big = text.flat_map(u16::to_be_bytes);
        let marked = [
            [0xff, 0xfe].into_iter().chain(little).collect::<Vec<u8>>(),
            [0xfe, 0xff].into_iter().chain(big).collect(),
        ];
        for content in marked {
            assert_eq!(
                Secret::from_file_content(content).err(),
                Some(SecretError::Utf16)
            );
        }
    }
}
