//! Reads a certificate chain and its key into a TLS configuration for the server.
//!
//! Clients are authenticated by their secret inside the encrypted connection, not by
//! certificates. A renewed certificate can be given to a running server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A TLS 1.2 and 1.3 configuration from a PEM certificate chain (leaf first) and its PEM key.
///
/// # Errors
/// Which of the files is missing or unusable, and why.
pub fn tls_from_pem_files(
    certificates: impl AsRef<Path>,
    key: impl AsRef<Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates.as_ref();
    let key = key.as_ref();
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::unreadable(certificates, source))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate {
            path: certificates.to_owned(),
        });
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::unreadable(key, source))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    Ok(Arc::new(config))
}

/// How to know a server by the authorities in a PEM file, for a node that calls the other nodes of
/// its cluster, and for operators.
///
/// # Errors
/// The file is missing or holds no usable certificate.
#[cfg(feature = "cluster")]
pub fn tls_client_from_pem_file(
    authorities: impl AsRef<Path>,
) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let path = authorities.as_ref();
    let mut roots = rustls::RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path);
    for certificate in certificates.map_err(|source| TlsError::unreadable(path, source))? {
        roots.add(certificate.map_err(|source| TlsError::unreadable(path, source))?)?;
    }
    if roots.is_empty() {
        let path = path.to_owned();
        return Err(TlsError::NoCertificate { path });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Why two files are not a TLS identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file is missing, not readable, or not PEM with what is needed. Correct the path or
    /// the file.
    #[error("{} cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The certificate file has no certificate in it. Give the chain, leaf first.
    #[error("{} contains no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not fit each other, or their kind is not supported.
    #[error("certificate and key cannot be used together")]
    Identity(#[from] rustls::Error),
}

impl TlsError {
    fn unreadable(path: &Path, source: pem::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }
}
