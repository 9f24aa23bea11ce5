//! Certificates that tests make for themselves.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate for `localhost`, and a client that trusts it alone.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
    connector: TlsConnector,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    /// What a server needs to be this one.
    pub(crate) fn server(&self) -> Arc<rustls::ServerConfig> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        highwater_server::tls_from_pem_files(certificate, key).unwrap()
    }

    /// Puts it into the files `tls.crt` and `tls.key`.
    pub(crate) fn write(&self, folder: &Path) {
        std::fs::write(folder.join("tls.crt"), &self.certificate).unwrap();
        std::fs::write(folder.join("tls.key"), &self.key).unwrap();
    }

    /// Connects, and trusts this certificate only.
    pub(crate) async fn connect(&self, tcp: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").unwrap();
        crate::client::within(self.connector.connect(name, tcp)).await
    }
}
