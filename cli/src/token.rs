//! `highwater token new`: a secret for clients to prove themselves with.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::words::digits;

/// Make secrets for clients and for the admin listener.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(New),
}

/// Make a new token: 32 bytes of the system's random source, as 64 hexadecimal digits.
///
/// To change a token without an interruption, give the server the old and the new one, then every
/// client the new one, and then take the old one away.
///
/// Examples:
///   highwater token new --out /etc/highwater/client-token
///   highwater serve --client-token-file /etc/highwater/client-token
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct New {
    /// Write it to this new file, which only its owner can read. Without it the token goes to
    /// standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Makes what was asked for.
pub(crate) fn run(options: Options) -> Result<(), Error> {
    let Command::New(New { out }) = options.command;
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.into()))?;
    let line = digits(&bytes) + "\n";
    match out {
        None => {
            let mut stdout = io::stdout().lock();
            let written = stdout.write_all(line.as_bytes());
            written.and_then(|()| stdout.flush()).map_err(Error::Output)
        }
        Some(path) => {
            let mut options = OpenOptions::new();
            // Somebody may use the token that is there.
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let written = options.open(&path).and_then(|mut file| {
                file.write_all(line.as_bytes())?;
                file.sync_all()
            });
            written.map_err(|source| Error::File { path, source })
        }
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the system has no random bytes")]
    Random(#[source] io::Error),
    #[error("standard output takes nothing")]
    Output(#[source] io::Error),
    #[error("{} cannot be written", path.display())]
    File { path: PathBuf, source: io::Error },
}

const BYTES: usize = 32;
