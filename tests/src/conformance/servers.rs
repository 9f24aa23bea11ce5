//! The servers of one test binary: each is started when the first case needs it.

use std::collections::BTreeMap;

use tokio::sync::OnceCell;

use crate::databases::{Kind, Server};

/// Servers, by kind. Dropping it stops those that were started.
#[derive(Debug, Default)]
pub(super) struct Servers {
    postgres: OnceCell<Result<Server, String>>,
    mysql: OnceCell<Result<Server, String>>,
    mariadb: OnceCell<Result<Server, String>>,
}

impl Servers {
    fn cell(&self, kind: Kind) -> &OnceCell<Result<Server, String>> {
        match kind {
            Kind::Postgres => &self.postgres,
            Kind::MySql => &self.mysql,
            Kind::MariaDb => &self.mariadb,
        }
    }

    /// The server of this kind, started if need be.
    pub(super) async fn get(&self, kind: Kind) -> Result<&Server, String> {
        let start = async || {
            Server::obtain(kind)
                .await
                .map_err(|error| error.to_string())
        };
        let server = self.cell(kind).get_or_init(start).await;
        server.as_ref().map_err(Clone::clone)
    }

    /// What is known of the server, for the summary.
    pub(super) fn describe(&self, kind: Kind) -> Option<String> {
        let server = self.cell(kind).get()?.as_ref().ok()?;
        Some(format!("{} ({})", server.version(), server.origin()))
    }

    /// Why kinds of server must not be used.
    pub(super) fn skipped() -> BTreeMap<&'static str, String> {
        let kinds = [Kind::Postgres, Kind::MySql, Kind::MariaDb];
        let skipped =
            (kinds.into_iter()).filter_map(|kind| Some((kind.name(), kind.skip_reason()?)));
        skipped.collect()
    }
}
