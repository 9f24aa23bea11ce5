//! Secrets and certificates: where they come from, and how they are read.
//!
//! They can be read again while the server runs. Nothing here shows a secret, not in an error and
//! not in the log.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;

use highwater_protocol::Secret;
use rustls::ServerConfig;

use super::error::{Complaints, ConfigErrors, Origin};
use super::sources::Effective;
use crate::admin::{Admin, AdminToken};
use crate::builder::{Builder, StartError};
#[cfg(feature = "cluster")]
use crate::cluster::{ClusterFile, ClusterMode};
#[cfg(feature = "cluster")]
use crate::tls::tls_client_from_pem_file;
use crate::tls::tls_from_pem_files;

/// A variable of the environment that holds a secret.
#[derive(Clone, Copy, Debug)]
pub struct SecretVariable {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub help: &'static str,
}

/// All variables of the environment that hold secrets.
pub const SECRETS: &[SecretVariable] = &[
    SecretVariable {
        name: CLIENT,
        help: "A client token, instead of client-token-file.",
    },
    SecretVariable {
        name: CLIENT_PREVIOUS,
        help: "Another client token that is still valid, while clients change to the new one.",
    },
    SecretVariable {
        name: ADMIN,
        help: "An admin token, valid beside those of admin-token-file.",
    },
    SecretVariable {
        name: ADMIN_PREVIOUS,
        help: "Another admin token that is still valid, while operators change to the new one.",
    },
];

const CLIENT: &str = "HIGHWATER_CLIENT_TOKEN";
const CLIENT_PREVIOUS: &str = "HIGHWATER_CLIENT_TOKEN_PREVIOUS";
const ADMIN: &str = "HIGHWATER_ADMIN_TOKEN";
const ADMIN_PREVIOUS: &str = "HIGHWATER_ADMIN_TOKEN_PREVIOUS";

/// Who is let in, and what the server proves itself with.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Credentials {
    /// Each is valid; none where everybody is let in.
    pub client_tokens: Vec<Secret>,
    /// Each is valid; none where the admin listener needs none.
    pub admin_tokens: Vec<AdminToken>,
    /// The certificate and its key, if TLS is on.
    pub tls: Option<Arc<ServerConfig>>,
    /// How a node of a cluster knows the others, if TLS is on.
    #[cfg(feature = "cluster")]
    pub peer_tls: Option<Arc<rustls::ClientConfig>>,
}

/// The secrets that stood in the environment.
#[derive(Debug, Default)]
pub(super) struct EnvironmentSecrets {
    client: Vec<(&'static str, Secret)>,
    admin: Vec<(&'static str, AdminToken)>,
}

/// What to use instead of an option that would be a secret.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    match name {
        "client-token" => Some("use client-token-file, or the variable HIGHWATER_CLIENT_TOKEN"),
        "admin-token" => Some("use admin-token-file, or the variable HIGHWATER_ADMIN_TOKEN"),
        _ => None,
    }
}

impl EnvironmentSecrets {
    pub(super) fn read(environment: &[(String, OsString)], complaints: &mut Complaints) -> Self {
        let mut secrets = Self::default();
        let value = |name: &str| {
            let mut found = environment.iter().filter(|(known, _)| known == name);
            found.next_back().map(|(_, value)| bytes(value))
        };
        let origin = |name: &str| Origin::Environment {
            variable: name.to_owned(),
        };
        for name in [CLIENT, CLIENT_PREVIOUS] {
            match value(name).map(Secret::from_file_content) {
                Some(Ok(secret)) => secrets.client.push((name, secret)),
                Some(Err(error)) => {
                    complaints.add("client token", &origin(name), error.to_string());
                }
                None => {}
            }
        }
        for name in [ADMIN, ADMIN_PREVIOUS] {
            match value(name).map(|value| AdminToken::from_file_content(name, value)) {
                Some(Ok(token)) => secrets.admin.push((name, token)),
                Some(Err(error)) => complaints.add("admin token", &origin(name), error.to_string()),
                None => {}
            }
        }
        for (name, previous) in [(CLIENT, CLIENT_PREVIOUS), (ADMIN, ADMIN_PREVIOUS)] {
            if value(previous).is_some() && value(name).is_none() {
                let message = format!("it is set without {name}");
                complaints.add(previous, &origin(previous), message);
            }
        }
        secrets
    }

    pub(super) fn has_client_token(&self) -> bool {
        !self.client.is_empty()
    }

    pub(super) fn has_admin_token(&self) -> bool {
        !self.admin.is_empty()
    }

    pub(super) fn variables(&self) -> Vec<&'static str> {
        let client = self.client.iter().map(|(name, _)| *name);
        client
            .chain(self.admin.iter().map(|(name, _)| *name))
            .collect()
    }
}

impl Effective {
    /// Reads the secrets and certificates. Each call reads the files again.
    ///
    /// # Errors
    /// Every file that cannot be used, and why.
    pub fn credentials(&self) -> Result<Credentials, ConfigErrors> {
        let mut complaints = Complaints::default();
        let credentials = self.read_credentials(&mut complaints);
        complaints.unless_any(credentials)
    }

    /// Those that can be used; the others are complained about.
    pub(super) fn read_credentials(&self, complaints: &mut Complaints) -> Credentials {
        let config = self.config();
        let mut credentials = Credentials::default();
        for (_, secret) in &self.secrets.client {
            credentials.client_tokens.push(secret.clone());
        }
        for path in &config.client_token_files {
            match read_client_token(path) {
                Ok(secret) => credentials.client_tokens.push(secret),
                Err(wrong) => self.complain(complaints, "client-token-file", path, &wrong),
            }
        }
        for (_, token) in &self.secrets.admin {
            credentials.admin_tokens.push(token.clone());
        }
        for path in &config.admin_token_files {
            match read_admin_token(path) {
                Ok(token) => credentials.admin_tokens.push(token),
                Err(wrong) => self.complain(complaints, "admin-token-file", path, &wrong),
            }
        }
        if let (Some(certificate), Some(key)) = (&config.tls_cert, &config.tls_key) {
            match tls_from_pem_files(certificate, key) {
                Ok(tls) => credentials.tls = Some(tls),
                Err(error) => {
                    complaints.add("tls-cert", &self.origin("tls-cert"), with_causes(&error));
                }
            }
        }
        #[cfg(feature = "cluster")]
        if let Some(path) = &config.peer_tls_ca {
            match tls_client_from_pem_file(path) {
                Ok(tls) => credentials.peer_tls = Some(tls),
                Err(error) => {
                    let origin = self.origin("peer-tls-ca");
                    complaints.add("peer-tls-ca", &origin, with_causes(&error));
                }
            }
        }
        credentials
    }

    /// A server's builder with everything that this configuration says. What is not possible is
    /// complained about.
    pub(super) fn build(&self, credentials: &Credentials, complaints: &mut Complaints) -> Builder {
        let config = self.config();
        let mut builder = Builder::new().limits(config.limits.clone());
        #[cfg(feature = "cluster")]
        if let (Some(path), Some(slot)) = (&config.cluster, config.cluster_slot) {
            builder = self.take_seat(builder, path, slot, complaints);
            if let Some(tls) = &credentials.peer_tls {
                builder = builder.peer_tls(Arc::clone(tls));
            }
        }
        // A node listens where the cluster file says, if nothing else is said here.
        if config.cluster.is_none() || self.origin("listen") != Origin::default() {
            match resolve(&config.listen) {
                Ok(listen) => builder = builder.listen(listen),
                Err(wrong) => complaints.add("listen", &self.origin("listen"), wrong),
            }
        }
        builder = builder.token_block(config.token_block);
        builder = builder.after_restart(config.after_restart);
        let is_default = self.origin("data-dir") == Origin::default();
        match &config.data_dir {
            _ if config.in_memory => builder = builder.in_memory(),
            // The cluster file says that nothing is kept.
            Some(_) if is_default && builder.keeps_nothing() => {}
            Some(path) => builder = builder.data_dir(path),
            None => {}
        }
        if config.no_auth {
            builder = builder.no_auth();
        }
        if let Some(token) = config.first_token {
            builder = builder.first_token(token);
        }
        for secret in &credentials.client_tokens {
            builder = builder.client_token(secret.clone());
        }
        if let Some(tls) = &credentials.tls {
            builder = builder.tls(Arc::clone(tls));
        }
        match config.admin.as_deref().map(resolve) {
            Some(Ok(listen)) => builder = builder.admin(self.admin(listen, credentials)),
            Some(Err(wrong)) => complaints.add("admin", &self.origin("admin"), wrong),
            None => {}
        }
        self.check_addresses(&builder, complaints);
        builder
    }

    #[cfg(feature = "cluster")]
    fn take_seat(
        &self,
        builder: Builder,
        path: &Path,
        slot: u8,
        complaints: &mut Complaints,
    ) -> Builder {
        let file = match ClusterFile::read(path) {
            Ok(file) => file,
            Err(error) => {
                complaints.add("cluster", &self.origin("cluster"), with_causes(&error));
                return builder;
            }
        };
        let mut nodes = file.nodes();
        let Some((_, own)) = nodes.find(|(own, _)| *own == slot) else {
            let message = format!("slot {slot} is not in {}", path.display());
            complaints.add("cluster-slot", &self.origin("cluster-slot"), message);
            return builder;
        };
        let (clients, peers) = (own.clients.clone(), own.peers.clone());
        drop(nodes);
        if file.mode() == ClusterMode::Volatile {
            for name in ["data-dir", "cluster-generation"] {
                let origin = self.origin(name);
                if origin != Origin::default() {
                    let message =
                        "it means nothing here: the cluster file says that nodes keep nothing";
                    complaints.add(name, &origin, message.to_owned());
                }
            }
        }
        let mut builder = builder.cluster(file, slot);
        if let Some(generation) = self.config().cluster_generation {
            builder = builder.generation(generation);
        }
        match resolve(&clients) {
            Ok(listen) => builder = builder.listen(listen),
            Err(wrong) => complaints.add("cluster", &self.origin("cluster"), wrong),
        }
        let peers = self.config().peer_listen.as_ref().unwrap_or(&peers);
        match resolve(peers) {
            Ok(listen) => builder = builder.peer_listen(listen),
            Err(wrong) => complaints.add("peer-listen", &self.origin("peer-listen"), wrong),
        }
        builder
    }

    fn admin(&self, listen: SocketAddr, credentials: &Credentials) -> Admin {
        let config = self.config();
        let mut admin = Admin::on(listen).limits(config.admin_limits.clone());
        for token in &credentials.admin_tokens {
            admin = admin.token(token.clone());
        }
        if config.admin_open_probes {
            admin = admin.open_probes();
        }
        match &credentials.tls {
            Some(tls) if config.admin_tls => admin.tls(Arc::clone(tls)),
            _ => admin,
        }
    }

    /// What an address needs. What is wrong apart from that has been told already.
    fn check_addresses(&self, builder: &Builder, complaints: &mut Complaints) {
        if let Err(error @ StartError::NoAuthOffLoopback { .. }) = builder.client_access() {
            complaints.add("no-auth", &self.origin("no-auth"), error.to_string());
        }
        let has_tokens = !self.config().admin_token_files.is_empty();
        match builder.check_admin_access() {
            Err(error) if !has_tokens => {
                complaints.add("admin", &self.origin("admin"), error.to_string());
            }
            _ => {}
        }
    }

    fn complain(&self, complaints: &mut Complaints, option: &str, path: &Path, wrong: &str) {
        let message = format!("{}: {wrong}", path.display());
        complaints.add(option, &self.origin(option), message);
    }
}

#[cfg(unix)]
fn bytes(value: &OsStr) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(value).to_vec()
}

#[cfg(not(unix))]
fn bytes(value: &OsStr) -> Vec<u8> {
    value.to_string_lossy().into_owned().into_bytes()
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(format!("{address} has no address")),
        Err(error) => Err(format!("{address} is not an address to listen on: {error}")),
    }
}

fn read_client_token(path: &Path) -> Result<Secret, String> {
    let secret = Secret::from_file_content(read(path)?);
    secret.map_err(|error| error.to_string())
}

fn read_admin_token(path: &Path) -> Result<AdminToken, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let token = AdminToken::from_file_content(name, read(path)?);
    token.map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_secret(path).map_err(|error| format!("it cannot be read: {error}"))
}

/// What a file with a secret holds, up to more than any secret has; warns if everybody can read it.
pub(crate) fn read_secret(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    warn_if_public(path, &file);
    let mut content = Vec::new();
    file.take(MOST_FILE_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(unix)]
fn warn_if_public(path: &Path, file: &std::fs::File) {
    use std::os::unix::fs::MetadataExt as _;
    let others_read = |metadata: std::fs::Metadata| metadata.mode() & 0o004 != 0;
    if file.metadata().is_ok_and(others_read) {
        let path = path.display();
        tracing::warn!(%path, "every user of this machine can read this token");
    }
}

#[cfg(not(unix))]
fn warn_if_public(_path: &Path, _file: &std::fs::File) {}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Far more than the longest token, and not enough to fill the memory with a wrong file.
const MOST_FILE_BYTES: u64 = 64 * 1024;
