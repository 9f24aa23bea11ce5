//! Takes new tokens and certificates over while the server runs.
//!
//! Either all of them are taken over or none. Open connections are not touched: they were let in
//! by what was valid then.

use std::sync::Arc;

use highwater_protocol::Secret;

use crate::config::Credentials;
use crate::server::Server;

impl Server {
    /// Lets in who knows one of these tokens from now on, and proves itself with this certificate.
    ///
    /// For a change without a gap, first let the old and the new token be valid, change the
    /// clients, and then leave the old one out. Open connections stay.
    ///
    /// # Errors
    /// Authentication and TLS cannot be turned on or off while a server runs; nothing changes
    /// then, and everything goes on as it was.
    pub fn replace_credentials(&self, new: &Credentials) -> Result<(), ReloadError> {
        let shared = self.shared();
        let was_open = shared.secrets.get().iter().any(Secret::is_no_auth);
        if was_open != new.client_tokens.is_empty() {
            return Err(ReloadError::Authentication);
        }
        if new.client_tokens.iter().any(Secret::is_no_auth) {
            return Err(ReloadError::EmptySecret);
        }
        #[cfg(feature = "cluster")]
        if let Some(running) = shared.desk.cluster()
            && (new.client_tokens.iter()).any(|token| running.shares_secret(token))
        {
            return Err(ReloadError::SameSecret);
        }
        if shared.tls.is_some() != new.tls.is_some() {
            return Err(ReloadError::Tls);
        }
        if let Some(site) = self.admin_site()
            && site.access.tokens().is_empty() != new.admin_tokens.is_empty()
        {
            return Err(ReloadError::AdminAuthentication);
        }
        if !was_open {
            shared.secrets.set(&new.client_tokens[..]);
        }
        let keys = shared.tls.iter();
        let admin = self.admin_site();
        for tls in keys.chain(admin.and_then(|site| site.tls.as_ref())) {
            new.tls.iter().for_each(|new| tls.set(Arc::clone(new)));
        }
        #[cfg(feature = "cluster")]
        if let Some(running) = shared.desk.cluster() {
            running.replace_tls(new.tls.as_ref(), new.peer_tls.as_ref());
        }
        if let Some(site) = admin {
            site.access.replace(&new.admin_tokens);
        }
        tracing::info!(
            client_tokens = new.client_tokens.len(),
            admin_tokens = new.admin_tokens.len(),
            tls = new.tls.is_some(),
            "tokens and certificates are read again",
        );
        Ok(())
    }
}

/// Why new tokens and certificates were not taken over. The old ones are still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// There are client tokens where there were none before, or the other way round.
    #[error("authentication cannot be turned on or off while the server runs")]
    Authentication,
    /// The empty secret is not a client token.
    #[error("an empty client token accepts everybody")]
    EmptySecret,
    /// A client token is the same as a secret of the nodes: every client could then act as a node.
    #[cfg(feature = "cluster")]
    #[error("a client token is the same as a peer secret")]
    SameSecret,
    /// There are admin tokens where there were none before, or the other way round.
    #[error("admin tokens cannot be turned on or off while the server runs")]
    AdminAuthentication,
    /// There is a certificate where there was none before, or the other way round.
    #[error("TLS cannot be turned on or off while the server runs")]
    Tls,
}
