//! What the client trusts when a connection is encrypted.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// Encrypts the connections of a client: TLS 1.2 or 1.3, and a certificate by an authority that
/// is named here. There is no way to go on without a check.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: Option<String>,
}

impl ClientTls {
    /// Trusts the authorities in a PEM file.
    ///
    /// # Errors
    /// The file cannot be read or holds no usable certificate.
    pub fn from_ca_file(path: impl AsRef<Path>) -> Result<Self, TlsError> {
        let path = path.as_ref();
        let content = std::fs::read(path).map_err(|source| TlsError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_ca_pem(&content)
    }

    /// Trusts the authorities in a PEM text.
    ///
    /// # Errors
    /// It holds no usable certificate.
    pub fn from_ca_pem(content: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(content) {
            roots.add(certificate.map_err(TlsError::Pem)?)?;
        }
        Self::from_roots(roots)
    }

    /// Trusts the authorities in this store.
    ///
    /// # Errors
    /// The store is empty.
    pub fn from_roots(roots: RootCertStore) -> Result<Self, TlsError> {
        if roots.is_empty() {
            return Err(TlsError::NoAuthority);
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::from_config(Arc::new(config)))
    }

    /// Takes a finished configuration, for everything that this type does not offer.
    pub fn from_config(config: Arc<ClientConfig>) -> Self {
        Self {
            config,
            server_name: None,
        }
    }

    /// What it checks certificates with, for other protocols of the same server.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// The name or IP address that the certificate must have. The default is the host of the
    /// address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Why there is no [`ClientTls`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read. Check its name and permissions.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its PEM text is damaged.
    #[error("the text is not PEM")]
    Pem(#[source] pem::Error),
    /// A certificate in it is damaged, or the library refuses the configuration.
    #[error("an authority cannot be used")]
    Authority(#[from] rustls::Error),
    /// There is no certificate in it.
    #[error("there is no certificate to trust")]
    NoAuthority,
}
