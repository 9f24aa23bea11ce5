//! The servers of one test binary: each is started when the first case needs it.

use tokio::sync::OnceCell;

use crate::databases::{Release, Server};

/// Servers, in the order of the releases. Dropping it stops those that were started.
#[derive(Debug, Default)]
pub(super) struct Servers([OnceCell<Result<Server, String>>; Release::ALL.len()]);

impl Servers {
    fn cell(&self, release: Release) -> &OnceCell<Result<Server, String>> {
        let place = Release::ALL.iter().position(|known| *known == release);
        &self.0[place.expect("every release is in the list")]
    }

    /// The server of this release, started if need be.
    pub(super) async fn get(&self, release: Release) -> Result<&Server, String> {
        let start = async || {
            let server = Server::obtain(release).await;
            server.map_err(|error| error.to_string())
        };
        let server = self.cell(release).get_or_init(start).await;
        server.as_ref().map_err(Clone::clone)
    }

    /// What is known of the server, for the summary.
    pub(super) fn describe(&self, release: Release) -> Option<String> {
        let server = self.cell(release).get()?.as_ref().ok()?;
        Some(format!("{} ({})", server.version(), server.origin()))
    }
}
