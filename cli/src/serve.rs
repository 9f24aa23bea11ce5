//! `highwater serve`: runs the lock server until a signal ends it.
//!
//! Starts what the [configuration](crate::config) says, reads tokens and certificates again when
//! they change, and turns SIGTERM and SIGINT into an orderly shutdown. The server itself is the
//! library's.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use highwater_server::cluster::LOG_FILTER;
use highwater_server::config::{Config, Effective, LogFormat, Prepared, Watch};
use highwater_server::{Readiness, Server, StartError};
use tokio::time::{Instant, sleep_until};
use tracing_subscriber::EnvFilter;

use crate::config::{ConfigureError, ServerOptions};
use crate::signals::Signals;
use crate::test_clock;

/// Run a single lock server.
///
/// It keeps its fencing domain and the count of its tokens in a data directory, so tokens go on
/// upwards over every restart and crash. Locks themselves end with the process.
///
/// Every option can also stand in the environment or in a file, under the same name; `highwater
/// config check` says what is wrong with all of it. Writes one line with its address and its
/// fencing domain to standard output as soon as clients can connect, and one with the address for
/// operators if there is one; its log goes to standard error. SIGTERM and SIGINT end it in an orderly way, a second one at once; SIGHUP reads tokens
/// and certificates again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  highwater serve --no-auth
  highwater serve --listen 0.0.0.0:5225 --client-token-file /etc/highwater/token \\
      --tls-cert /etc/highwater/tls.crt --tls-key /etc/highwater/tls.key
  highwater serve --config /etc/highwater/server.toml --admin 127.0.0.1:5226")]
pub(crate) struct Options {
    #[command(flatten)]
    server: ServerOptions,
}

/// Runs until a signal comes.
pub(crate) fn run(options: Options) -> Result<(), ServeError> {
    // If this fails, so does the next one, which says more.
    if let Ok(effective) = options.server.effective() {
        start_log(effective.config());
    }
    let prepared = options.server.prepare()?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?
        .block_on(serve(prepared))
}

fn start_log(config: &Config) {
    let filter = match &config.log_level {
        Some(level) => EnvFilter::try_new(level).ok(),
        None => EnvFilter::try_from_default_env().ok(),
    };
    let filter = filter.unwrap_or_else(|| EnvFilter::new(LOG_FILTER));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // They are reported to standard error too, by a panic if that is gone: a log that nobody
        // reads any more must not end the server.
        .log_internal_errors(false);
    match config.log_format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        _ => log
            .with_ansi(std::io::stderr().is_terminal() && !no_color)
            .init(),
    }
}

async fn serve(prepared: Prepared) -> Result<(), ServeError> {
    // Before the server starts, so that no signal is missed once it is announced.
    let mut signals = Signals::listen().map_err(ServeError::Runtime)?;
    let effective = prepared.effective;
    let server = test_clock::skewed(prepared.builder)?.start().await?;
    if effective.config().in_memory {
        tracing::warn!(
            "in memory: a restart forgets every lock and is a new fencing domain, so databases \
             that check domains refuse its tokens until their marks are moved to it"
        );
    }
    announce(&server);
    let signal = tokio::select! {
        signal = attend(&server, &effective, &mut signals) => signal,
        () = server.failed() => return match server.readiness() {
            // That is what an operator has asked for; nobody has to start it again.
            Readiness::Removed => Ok(()),
            Readiness::Displaced => Err(ServeError::Displaced),
            _ => Err(ServeError::Failed),
        },
    };
    tracing::info!(signal, "shutting down");
    tokio::select! {
        () = server.shutdown() => {}
        signal = signals.end() => tracing::warn!(signal, "stopping at once"),
    }
    Ok(())
}

/// Reads tokens and certificates again whenever that is due, until a signal asks for the end.
async fn attend(server: &Server, effective: &Effective, signals: &mut Signals) -> &'static str {
    let interval = effective.config().reload_interval;
    let mut watch = Watch::new(effective);
    loop {
        let next = Instant::now() + interval.max(SHORTEST_INTERVAL);
        tokio::select! {
            signal = signals.next() => match signal {
                Some(signal) => return signal,
                None => reload(server, effective),
            },
            () = sleep_until(next), if !interval.is_zero() => {
                if tokio::task::block_in_place(|| watch.changed()) {
                    reload(server, effective);
                }
            }
        }
    }
}

fn reload(server: &Server, effective: &Effective) {
    // A file system can take its time.
    let read = tokio::task::block_in_place(|| effective.credentials());
    let unchanged = "tokens and certificates stay as they were";
    match read {
        Ok(credentials) => {
            if let Err(error) = server.replace_credentials(&credentials) {
                tracing::error!(%error, "{unchanged}");
            }
        }
        Err(errors) => {
            for error in errors.errors() {
                tracing::error!(%error, "{unchanged}");
            }
        }
    }
}

fn announce(server: &Server) {
    let mut lines = format!(
        "highwater listens on {} domain {}\n",
        server.local_addr(),
        server.domain()
    );
    if let Some(address) = server.peer_addr() {
        lines.push_str(&format!("highwater peers listen on {address}\n"));
    }
    if let Some(address) = server.admin_addr() {
        lines.push_str(&format!("highwater admin listens on {address}\n"));
    }
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(lines.as_bytes())
        .and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "standard output does not take the addresses");
    }
}

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    #[error(transparent)]
    TestClock(#[from] test_clock::NotInUse),
    #[error("the server has ended by itself; see the log")]
    Failed,
    #[error("another process has taken the slot of this one over; see the log")]
    Displaced,
    #[error("the server did not start")]
    Start(#[from] StartError),
    #[error("the system refuses what the server needs")]
    Runtime(#[source] std::io::Error),
}

/// Looking more often would only keep the disk busy.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
