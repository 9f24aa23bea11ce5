//! How a command proves who it is and checks whom it talks to: tokens, and TLS.
//!
//! A secret comes from a file or from a variable of the environment, never from an argument, because
//! other users of the machine can read those.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use highwater_client::{ClientTls, Secret, SecretError, TlsError};

/// Whether to encrypt, and whom to trust.
#[derive(Args)]
pub(crate) struct Tls {
    /// Encrypt, and trust the authorities in this PEM file.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The name that the server's certificate must have [default: the host of its address].
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl Tls {
    /// None where nothing is encrypted.
    pub(crate) fn config(&self) -> Result<Option<ClientTls>, TlsError> {
        let Some(path) = &self.tls_ca else {
            return Ok(None);
        };
        let tls = ClientTls::from_ca_file(path)?;
        Ok(Some(match &self.tls_name {
            Some(name) => tls.server_name(name),
            None => tls,
        }))
    }

    /// The name that was asked for.
    pub(crate) fn name(&self) -> Option<&str> {
        self.tls_name.as_deref()
    }
}

/// The token that opens the lock port.
///
/// It can also come from the environment variable HIGHWATER_CLIENT_TOKEN.
#[derive(Args)]
pub(crate) struct ClientToken {
    /// A file that holds the client token; it can also stand in the variable HIGHWATER_CLIENT_TOKEN.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CLIENT_TOKEN_FILE")]
    client_token_file: Option<PathBuf>,
}

impl ClientToken {
    /// None for a server that lets everybody in.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, TokenError> {
        let option = "--client-token-file";
        let found = token(option, self.client_token_file.as_deref(), CLIENT_VARIABLE)?;
        let secret = found.map(|(origin, content)| {
            let secret = Secret::from_file_content(content);
            secret.map_err(|source| TokenError::Unusable { origin, source })
        });
        secret.transpose()
    }
}

/// The variable that holds a client token.
pub(crate) const CLIENT_VARIABLE: &str = "HIGHWATER_CLIENT_TOKEN";

/// What the file or the variable holds, and which of them it was. It is an error to have both.
pub(crate) fn token(
    option: &'static str,
    file: Option<&Path>,
    variable: &'static str,
) -> Result<Option<(String, Vec<u8>)>, TokenError> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    match (file, value) {
        (Some(_), Some(_)) => Err(TokenError::Two { option, variable }),
        (Some(path), None) => match read(path, MOST_TOKEN_BYTES) {
            Ok(content) => Ok(Some((path.display().to_string(), content))),
            Err(source) => Err(TokenError::File {
                path: path.to_owned(),
                source,
            }),
        },
        (None, Some(value)) => Ok(Some((variable.to_owned(), value.into_encoded_bytes()))),
        (None, None) => Ok(None),
    }
}

/// Reads a file of at most so many bytes, so that a wrong one does not fill the memory.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = File::open(path)?;
    file.take(most + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length > most) {
        let message = format!("it is longer than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(content)
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("{variable} is set, and {option} is given too: decide for one")]
    Two {
        option: &'static str,
        variable: &'static str,
    },
    #[error("{} cannot be read", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{origin} holds no usable client token")]
    Unusable { origin: String, source: SecretError },
}

/// Far more than the longest token.
const MOST_TOKEN_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_refused_beyond() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, b"12345678").unwrap();
        assert_eq!(read(file.path(), 8).unwrap(), b"12345678");
        let error = read(file.path(), 7).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        // It never ends.
        #[cfg(unix)]
        assert!(read(Path::new("/dev/zero"), 64).is_err());
    }
}
