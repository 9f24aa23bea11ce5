//! The data directory of a lock server: where it is if nobody says so, and `highwater restore`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use highwater_fencing::FencingToken;
use highwater_server::{RestoreError, restore_as_new_domain};

use crate::words::token;

/// Make a restored data directory usable again, as a new domain.
///
/// A copy of a data directory (a backup, a snapshot of the machine) has an old count of tokens. A
/// server that went on from there would give out tokens for the second time, so the directory has
/// to become a new fencing domain first. Run this once after every restore, while no server runs on
/// the directory.
///
/// Tokens begin above those of the copy, at the system time in microseconds if that is higher, and
/// at --first-token if that is higher still. Databases refuse the new domain until their marks are
/// moved to it with `highwater fence adopt`.
#[derive(Args)]
pub(crate) struct RestoreOptions {
    /// Confirms that tokens of the old domain are worth nothing from now on.
    #[arg(long, required = true)]
    new_domain: bool,
    /// The data directory. The default is that of `highwater serve`.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Start the tokens of the new domain at this number at least: one more than `highwater fence
    /// floor` shows.
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    first_token: Option<FencingToken>,
}

/// Makes the new domain and says what it is.
pub(crate) fn run_restore(options: RestoreOptions) -> Result<(), DataError> {
    // Clap insists on it.
    debug_assert!(options.new_domain);
    let path = directory(options.data_dir)?;
    let restored = restore_as_new_domain(&path, options.first_token)?;
    let lines = format!(
        "{}: old domain {}\n{0}: new domain {}\n{0}: first token {}\n\
         Move the marks of your databases, in each of them:\n  \
         highwater fence adopt --from {1} --to {2} --floor {3}\n",
        path.display(),
        restored.old_domain,
        restored.new_domain,
        restored.first_token
    );
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(lines.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(DataError::Output)
}

/// The directory that was asked for, or the platform's.
pub(crate) fn directory(asked: Option<PathBuf>) -> Result<PathBuf, DataError> {
    asked
        .or_else(|| default_directory(is_root(), |name| std::env::var_os(name)))
        .ok_or(DataError::NoStateFolder)
}

/// Where programs of this user keep their state. A system's service has its own place, whatever
/// the environment of whoever starts it says.
fn default_directory(root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/highwater"));
    }
    // The specification of these folders has relative paths ignored.
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else {
        let home = || absolute("HOME").map(|home| home.join(Path::new(".local/state")));
        absolute("XDG_STATE_HOME").or_else(home)
    };
    state.map(|state| state.join("highwater"))
}

#[cfg(unix)]
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

/// Why the data directory is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    #[error("there is no folder for the state of programs (no HOME): give --data-dir DIR")]
    NoStateFolder,
    #[error("the directory was not restored")]
    Restore(#[from] RestoreError),
    #[error("standard output takes nothing; the new domain was made, and `serve` will show it")]
    Output(#[source] std::io::Error),
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_where_the_platform_wants_it() {
        for (root, xdg, home, expected) in [
            (true, Some("/x"), Some("/root"), Some("/var/lib/highwater")),
            (true, None, None, Some("/var/lib/highwater")),
            (false, Some("/x"), Some("/home/a"), Some("/x/highwater")),
            (
                false,
                Some("relative"),
                Some("/home/a"),
                Some("/home/a/.local/state/highwater"),
            ),
            (
                false,
                Some(""),
                Some("/home/a"),
                Some("/home/a/.local/state/highwater"),
            ),
            (
                false,
                None,
                Some("/home/a"),
                Some("/home/a/.local/state/highwater"),
            ),
            (false, None, Some("a"), None),
            (false, None, None, None),
        ] {
            let found = default_directory(root, |name| match name {
                "XDG_STATE_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                other => panic!("{other} has no say in it"),
            });
            assert_eq!(
                found,
                expected.map(PathBuf::from),
                "{root} {xdg:?} {home:?}"
            );
        }
    }
}
