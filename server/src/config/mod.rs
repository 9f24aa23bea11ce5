//! The whole configuration of a server that runs as a program: options, secrets, files.
//!
//! Every option has one name. It is `--name` on the command line, `HIGHWATER_NAME` in the
//! environment (upper case, `-` as `_`) and `name` in a TOML file; the command line goes before the
//! environment, that before the file, and that before the default. Secrets are no options: they
//! come from files that options name, or from variables of their own, and are never shown.
//!
//! ```
//! use highwater_server::config::{Config, Sources};
//!
//! let mut sources = Sources::default();
//! sources.flag("in-memory", ["true"]);
//! sources.variable("HIGHWATER_NO_AUTH", "true");
//! sources.file("server.toml", "max-connections = 500\n");
//! let read = sources.read()?;
//! assert_eq!(read.config().limits.connections, 500);
//! assert_eq!(read.origin("max-connections").to_string(), "server.toml:1");
//!
//! let mut wrong = Sources::default();
//! wrong.file("server.toml", "in-memroy = true\nmax-connections = 0\n");
//! let errors = wrong.read().unwrap_err();
//! assert_eq!(
//!     errors.errors()[0].to_string(),
//!     "in-memroy (server.toml:1): there is no such option; is in-memory meant?",
//! );
//! assert_eq!(errors.errors()[1].option, "max-connections");
//! # Ok::<(), highwater_server::config::ConfigErrors>(())
//! ```

mod credentials;
mod error;
mod file;
mod settings;
mod sources;
mod table;
mod value;
mod watch;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

#[cfg(feature = "cluster")]
pub(crate) use self::credentials::read_secret;
pub use self::credentials::{Credentials, SECRETS, SecretVariable};
pub use self::error::{ConfigError, ConfigErrors, Origin};
pub use self::settings::{Setting, ValueKind, settings};
pub use self::sources::{Effective, Prepared, Sources};
pub use self::watch::Watch;

use highwater_lock::FencingToken;

use crate::admin::AdminLimits;
use crate::limits::Limits;
use crate::storage::{AfterRestart, DEFAULT_BLOCK};

/// Every option of a server with its value.
///
/// The default is what an option has if nobody says anything, and is not complete: where tokens
/// are kept and who may connect has to be said.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// `listen`: the address for clients, host and port.
    pub listen: String,
    /// `data-dir`: where the domain and the count of tokens are kept.
    pub data_dir: Option<PathBuf>,
    /// `in-memory`: keep everything in memory.
    pub in_memory: bool,
    /// `after-restart`: what to do about leases of an earlier start.
    pub after_restart: AfterRestart,
    /// `token-block`: how many tokens are reserved with one write.
    pub token_block: NonZeroU32,
    /// `first-token`: start the tokens at this number at least.
    pub first_token: Option<FencingToken>,
    /// `cluster`: the cluster file, of which this server is a node.
    pub cluster: Option<PathBuf>,
    /// `cluster-slot`: which of its nodes.
    pub cluster_slot: Option<u8>,
    /// `cluster-generation`: which of the nodes of its slot a new one is.
    pub cluster_generation: Option<NonZeroU64>,
    /// `peer-listen`: the address for the other nodes, host and port, if it is not that of the file.
    pub peer_listen: Option<String>,
    /// `peer-tls-ca`: who has signed the certificates of the other nodes.
    pub peer_tls_ca: Option<PathBuf>,
    /// `client-token-file`: files with the client tokens, each of which is valid.
    pub client_token_files: Vec<PathBuf>,
    /// `no-auth`: let everybody in.
    pub no_auth: bool,
    /// `tls-cert`: the certificate chain in PEM.
    pub tls_cert: Option<PathBuf>,
    /// `tls-key`: its key in PEM.
    pub tls_key: Option<PathBuf>,
    /// `reload-interval`: how often to look whether a file of a secret or certificate changed.
    pub reload_interval: std::time::Duration,
    /// All bounds of the lock server.
    pub limits: Limits,
    /// `admin`: the address for operators, host and port; none without it.
    pub admin: Option<String>,
    /// `admin-token-file`: files with the admin tokens, each of which is valid.
    pub admin_token_files: Vec<PathBuf>,
    /// `admin-tls`: the admin listener speaks TLS, with the server's certificate.
    pub admin_tls: bool,
    /// `admin-open-probes`: `/healthz` and `/readyz` need no token.
    pub admin_open_probes: bool,
    /// All bounds of the admin listener.
    pub admin_limits: AdminLimits,
    /// `log-format`: how log lines look.
    pub log_format: LogFormat,
    /// `log-level`: what is logged, as a filter of `tracing`; `None` leaves it to `RUST_LOG`.
    pub log_level: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object on each line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:5225".to_owned(),
            data_dir: None,
            in_memory: false,
            after_restart: AfterRestart::default(),
            token_block: NonZeroU32::new(DEFAULT_BLOCK).expect("it is not zero"),
            first_token: None,
            cluster: None,
            cluster_slot: None,
            cluster_generation: None,
            peer_listen: None,
            peer_tls_ca: None,
            client_token_files: Vec::new(),
            no_auth: false,
            tls_cert: None,
            tls_key: None,
            reload_interval: std::time::Duration::from_secs(10),
            limits: Limits::default(),
            admin: None,
            admin_token_files: Vec::new(),
            admin_tls: false,
            admin_open_probes: false,
            admin_limits: AdminLimits::default(),
            log_format: LogFormat::default(),
            log_level: None,
        }
    }
}
