//! Why a data directory cannot be used.

use std::path::PathBuf;

/// Why a data directory was refused, or was given up while the server ran.
///
/// Nothing is ever repaired or assumed: a wrong guess about tokens would put an old holder before
/// a new one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The path names something else than a directory. Choose another path.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory holds other things. Choose a directory of the server's own.
    #[error(
        "{} belongs to something else: it has no state of a lock server, but {name:?}; choose an \
         empty directory or one that does not exist yet",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        name: String,
    },
    /// Another server has the directory open. Stop that one, or choose another directory.
    #[error("{} is in use by another lock server", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory had a state and has none now. Bring the file back from a copy and make it a
    /// new domain, or start with an empty directory, which is a new domain too.
    #[error(
        "{} had a state, but the file `state` is gone: bring it back from a copy and run \
         `highwater restore --new-domain`, or start with an empty directory (a new domain)",
        path.display()
    )]
    StateGone {
        /// The directory.
        path: PathBuf,
    },
    /// The state is not whole. Bring the file back from a copy and make it a new domain, or start
    /// with an empty directory, which is a new domain too.
    #[error(
        "{} is damaged ({reason}): bring it back from a copy and run `highwater restore \
         --new-domain`, or start with an empty directory (a new domain)",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file is not a server's state. Choose another directory.
    #[error("{} is not the state of a lock server; choose another directory", path.display())]
    NotAState {
        /// The file.
        path: PathBuf,
    },
    /// A format that this build does not know. Use the version that wrote it, or a newer one.
    #[error(
        "{} has format {format}, which this version does not know: use the version that wrote it",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The format's number.
        format: u16,
    },
    /// No token is left that a database can store. Make a new domain, in an empty directory.
    #[error("{} has given out the last token: start with an empty directory", path.display())]
    TokensUsedUp {
        /// The directory.
        path: PathBuf,
    },
    /// The state is not what this server wrote last: somebody replaced it. The server that finds
    /// this grants nothing more; find out who writes there before you start one again.
    #[error("{} was changed by somebody else", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// An earlier write failed, so nothing can be promised any more. Start the server anew.
    #[error("{} could not be written before", path.display())]
    GivenUp {
        /// The file.
        path: PathBuf,
    },
    /// The system refused an operation. See to what it says (space, rights, the disk).
    #[error("{} cannot be {action}", path.display())]
    Io {
        /// What was done to it, such as `read` or `written`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}
