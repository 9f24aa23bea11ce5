//! `highwater serve`: runs the lock server until a signal ends it.
//!
//! Reads options, secret and certificate, and turns SIGTERM and SIGINT into an orderly shutdown.
//! The server itself is the library's.

use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args;
use highwater_fencing::FencingToken;
use highwater_server::{
    AfterRestart, Secret, SecretError, Server, StartError, TlsError, tls_from_pem_files,
};
use tracing_subscriber::EnvFilter;

use crate::data::{DataError, directory};
use crate::words::token;

/// Run a single lock server.
///
/// It keeps its fencing domain and the count of its tokens in a data directory, so tokens go on
/// upwards over every restart and crash. Locks themselves end with the process.
///
/// Writes one line with its address and its fencing domain to standard output as soon as clients
/// can connect; its log goes to standard error (RUST_LOG sets the level). SIGTERM and SIGINT end
/// it in an orderly way, a second one at once.
///
/// The client token can also come from the environment variable HIGHWATER_CLIENT_TOKEN. It cannot
/// be given as an argument, because other users of the machine can read those.
#[derive(Args)]
pub(crate) struct Options {
    /// Where the domain and the count of tokens are kept.
    ///
    /// Made if it is not there; it has to be on a local file system and is used by one server at a
    /// time. The default is /var/lib/highwater for root, and otherwise $XDG_STATE_HOME/highwater or
    /// ~/.local/state/highwater. A copy of it needs `highwater restore --new-domain`.
    #[arg(long, value_name = "DIR", conflicts_with = "in_memory")]
    data_dir: Option<PathBuf>,
    /// Keep everything in memory: every start is a new domain, which databases refuse until their
    /// marks are moved to it.
    #[arg(long)]
    in_memory: bool,
    /// What to do about leases that an earlier start gave out and that may still be running.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "wait",
        conflicts_with = "in_memory"
    )]
    after_restart: AfterRestartOption,
    /// How many tokens to reserve with one write to the data directory. After a crash what is left
    /// of a block is never given out.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value = "1048576",
        conflicts_with = "in_memory"
    )]
    token_block: NonZeroU32,
    /// The address to listen on. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5225")]
    listen: String,
    /// A file that holds the client token, 16 to 1024 bytes. Given more than once, each of the
    /// tokens is valid.
    #[arg(long, value_name = "FILE", conflicts_with = "no_auth")]
    client_token_file: Vec<PathBuf>,
    /// Let everybody in. Only possible on a loopback address.
    #[arg(long)]
    no_auth: bool,
    /// Start the tokens at this number at least.
    ///
    /// For databases whose marks are higher than the tokens of this start would be: give one more
    /// than `highwater fence floor` shows. It only raises: a new domain starts at the system time
    /// in microseconds if that is higher, and a data directory goes on from its own count. Marks of
    /// another domain have to be moved all the same, with `highwater fence adopt`.
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    first_token: Option<FencingToken>,
    /// The server's certificate chain in PEM, leaf first. Turns TLS on.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum AfterRestartOption {
    /// Grant nothing until they are over: after a crash for as long as the longest lease that was
    /// given out, after an orderly end for what really remained
    Wait,
    /// Grant at once; only the fence keeps the writes of old holders out
    TrustFencing,
}

/// Runs until a signal comes.
pub(crate) fn run(options: Options) -> Result<(), ServeError> {
    start_log();
    let secrets = secrets(&options)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?
        .block_on(serve(options, secrets))
}

fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        // They are reported to standard error too, by a panic if that is gone: a log that nobody
        // reads any more must not end the server.
        .log_internal_errors(false)
        .init();
}

async fn serve(options: Options, secrets: Vec<Secret>) -> Result<(), ServeError> {
    // Before the server starts, so that no signal is missed once it is announced.
    let mut signals = Signals::listen().map_err(ServeError::Runtime)?;
    let mut builder = Server::builder().listen(resolve(&options.listen).await?);
    builder = match options.in_memory {
        true => builder.in_memory(),
        false => builder.data_dir(directory(options.data_dir.clone())?),
    };
    builder = builder.token_block(options.token_block);
    builder = builder.after_restart(match options.after_restart {
        AfterRestartOption::Wait => AfterRestart::WaitForOldLeases,
        AfterRestartOption::TrustFencing => AfterRestart::TrustFencing,
    });
    if options.no_auth {
        builder = builder.no_auth();
    }
    if let Some(token) = options.first_token {
        builder = builder.first_token(token);
    }
    for secret in secrets {
        builder = builder.client_token(secret);
    }
    if let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) {
        builder = builder.tls(tls_from_pem_files(certificate, key)?);
    }
    let server = builder.start().await?;
    if options.in_memory {
        tracing::warn!(
            "in memory: a restart forgets every lock and is a new fencing domain, so databases \
             that check domains refuse its tokens until their marks are moved to it"
        );
    }
    announce(&server);
    let signal = tokio::select! {
        signal = signals.next() => signal,
        () = server.failed() => return Err(ServeError::Failed),
    };
    tracing::info!(signal, "shutting down");
    tokio::select! {
        () = server.shutdown() => {}
        signal = signals.next() => tracing::warn!(signal, "stopping at once"),
    }
    Ok(())
}

fn announce(server: &Server) {
    let line = format!(
        "highwater listens on {} domain {}\n",
        server.local_addr(),
        server.domain()
    );
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(line.as_bytes())
        .and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "standard output does not take the address");
    }
}

async fn resolve(address: &str) -> Result<SocketAddr, ServeError> {
    let unusable = |source| ServeError::Address {
        address: address.to_owned(),
        source,
    };
    let mut found = tokio::net::lookup_host(address).await.map_err(unusable)?;
    found
        .next()
        .ok_or_else(|| unusable(std::io::ErrorKind::NotFound.into()))
}

fn secrets(options: &Options) -> Result<Vec<Secret>, ServeError> {
    let from_environment = std::env::var_os(TOKEN_VARIABLE).filter(|value| !value.is_empty());
    let chosen = options.no_auth || !options.client_token_file.is_empty();
    match from_environment {
        Some(_) if chosen => Err(ServeError::TwoTokens),
        Some(value) => Secret::from_file_content(value.into_encoded_bytes())
            .map(|secret| vec![secret])
            .map_err(ServeError::TokenVariable),
        None if chosen => {
            let files = options.client_token_file.iter();
            files.map(|path| secret_from_file(path)).collect()
        }
        None => Err(ServeError::NoToken),
    }
}

fn secret_from_file(path: &Path) -> Result<Secret, ServeError> {
    let unreadable = |source| ServeError::TokenFile {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    warn_if_public(path, &file);
    let mut content = Vec::new();
    file.take(MOST_TOKEN_FILE_BYTES)
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    Secret::from_file_content(content).map_err(|source| ServeError::Token {
        path: path.to_owned(),
        source,
    })
}

#[cfg(unix)]
fn warn_if_public(path: &Path, file: &std::fs::File) {
    use std::os::unix::fs::MetadataExt;
    let others_read = |metadata: std::fs::Metadata| metadata.mode() & 0o004 != 0;
    if file.metadata().is_ok_and(others_read) {
        let path = path.display();
        tracing::warn!(%path, "every user of this machine can read the client token");
    }
}

#[cfg(not(unix))]
fn warn_if_public(_path: &Path, _file: &std::fs::File) {}

/// The signals that ask for an end.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The signals that ask for an end.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the server has ended because an invariant of its own did not hold; see the log")]
    Failed,
    #[error(
        "who may connect? Give --client-token-file FILE or set {TOKEN_VARIABLE}; on a loopback \
         address --no-auth lets everybody in"
    )]
    NoToken,
    #[error(
        "{TOKEN_VARIABLE} is set, and --client-token-file or --no-auth is given too: decide for one"
    )]
    TwoTokens,
    #[error("{TOKEN_VARIABLE} holds no usable client token")]
    TokenVariable(#[source] SecretError),
    #[error("{} cannot be read", path.display())]
    TokenFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} holds no usable client token", path.display())]
    Token { path: PathBuf, source: SecretError },
    #[error("{address} is not an address to listen on (like 127.0.0.1:5225)")]
    Address {
        address: String,
        source: std::io::Error,
    },
    #[error("TLS cannot be turned on")]
    Tls(#[from] TlsError),
    #[error("the server did not start")]
    Start(#[from] StartError),
    #[error("the system refuses what the server needs")]
    Runtime(#[source] std::io::Error),
}

const TOKEN_VARIABLE: &str = "HIGHWATER_CLIENT_TOKEN";
/// Far more than the longest token, and not enough to fill the memory with a wrong file.
const MOST_TOKEN_FILE_BYTES: u64 = 64 * 1024;
