//! Which database a URL means, and how it is reached.

use std::time::Duration;

use clap::ValueEnum;
use highwater_fencing::migrate;
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database, Pool};
use tokio::time::timeout;

/// A database system, as far as its SQL differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dialect {
    Postgres,
    /// MariaDB too.
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

impl Dialect {
    pub(crate) fn of_url(url: &str) -> Result<Self, UrlError> {
        let (scheme, _) = url.split_once(':').ok_or(UrlError::NoScheme)?;
        match scheme {
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            "sqlite" => Ok(Self::Sqlite),
            _ => Err(UrlError::Scheme),
        }
    }

    pub(crate) fn of_fencing(self) -> migrate::Dialect {
        match self {
            Self::Postgres => migrate::Dialect::Postgres,
            Self::Mysql => migrate::Dialect::MySql,
            Self::Sqlite => migrate::Dialect::Sqlite,
        }
    }
}

/// One connection, in a pool as the libraries want it.
pub(crate) async fn open<D: Database>(url: &str) -> Result<Pool<D>, UrlError> {
    // A pool goes on trying until it gives up without a reason; a single attempt has one.
    let attempt = timeout(CONNECT_TIME, D::Connection::connect(url));
    let connection = attempt.await.map_err(|_| UrlError::Unreachable)?;
    let _ = connection.map_err(UrlError::Connect)?.close().await;
    PoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_TIME)
        .connect(url)
        .await
        .map_err(UrlError::Connect)
}

/// Why a database was not reached. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("the database URL has no scheme such as postgres:// in front")]
    NoScheme,
    #[error("the scheme of the database URL is none of postgres, mysql, mariadb and sqlite")]
    Scheme,
    #[error("the database does not answer within {} s", CONNECT_TIME.as_secs())]
    Unreachable,
    #[error("the database cannot be connected to")]
    Connect(#[source] sqlx::Error),
}

const CONNECT_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_url_tells_the_dialect() {
        let of = |url| Dialect::of_url(url).ok();
        assert_eq!(of("postgres://u@h/d"), Some(Dialect::Postgres));
        assert_eq!(of("postgresql://u@h/d"), Some(Dialect::Postgres));
        assert_eq!(of("mysql://u@h/d"), Some(Dialect::Mysql));
        assert_eq!(of("mariadb://u@h/d"), Some(Dialect::Mysql));
        assert_eq!(of("sqlite://file.db"), Some(Dialect::Sqlite));
        assert_eq!(of("oracle://u:secret@h/d"), None);
        assert_eq!(of("file.db"), None);
    }

    #[test]
    fn an_error_about_a_url_does_not_show_it() {
        let refused = Dialect::of_url("oracle://user:secret@host/d").expect_err("refused");
        assert!(!format!("{refused} {refused:?}").contains("secret"));
    }
}
