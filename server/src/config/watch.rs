//! Notices that a file of a secret or certificate was changed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::sources::Effective;

/// Remembers how the files of the [`Credentials`](super::Credentials) looked.
///
/// It looks at time of change and length, not at the content, so asking often is cheap. A link is
/// followed: one that points elsewhere is a change.
#[derive(Debug)]
pub struct Watch {
    files: Vec<(PathBuf, Look)>,
}

/// How a file looks from outside; nothing of a file that is not there.
type Look = Option<(Option<SystemTime>, u64, u64)>;

impl Watch {
    /// Looks at all files for the first time.
    pub fn new(effective: &Effective) -> Self {
        let config = effective.config();
        let tokens = config
            .client_token_files
            .iter()
            .chain(&config.admin_token_files);
        let files = tokens.chain(&config.tls_cert).chain(&config.tls_key);
        let files = files.chain(&config.peer_tls_ca);
        let files = files.map(|path| (path.clone(), look(path)));
        Self {
            files: files.collect(),
        }
    }

    /// Whether one looks otherwise than the last time.
    pub fn changed(&mut self) -> bool {
        let mut changed = false;
        for (path, before) in &mut self.files {
            let now = look(path);
            changed |= now != *before;
            *before = now;
        }
        changed
    }
}

fn look(path: &Path) -> Look {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok(), metadata.len(), number(&metadata)))
}

/// Which file it is, where the system tells.
#[cfg(unix)]
fn number(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn number(_metadata: &std::fs::Metadata) -> u64 {
    0
}
