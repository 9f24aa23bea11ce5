//! Gets the database servers the tests run against: one per database for a whole test binary.
//!
//! The order is: a URL in the environment, a Docker engine, server programs of this machine. What
//! was named on purpose is never replaced in silence, and where nothing is found the answer says
//! what to install or to set. Each test makes its own database in the server, see `conformance`.

#[cfg(feature = "databases")]
mod docker;
#[cfg(feature = "databases")]
pub use docker::Appliance;
mod local;
mod process;

use std::env;
use std::fmt;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection};

/// How long a server may take from its start to its first answer.
const START_LIMIT: Duration = Duration::from_secs(120);

/// What MariaDB needs, and MySQL has, to tell transactions apart for protected tables.
pub(crate) const PERFORMANCE_SCHEMA: [&str; 3] = [
    "--performance-schema=ON",
    "--performance-schema-instrument=transaction=ON",
    "--performance-schema-consumer-events-transactions-current=ON",
];

/// The password of servers that are started here; they listen on the loopback interface only.
pub const PASSWORD: &str = "highwater-test";

/// How PostgreSQL checks it: in clear. The tests open thousands of connections, and the client's part
/// of SCRAM takes a tenth of a second of computing for each in a build without optimisation.
pub(crate) const POSTGRES_AUTHENTICATION: &str = "password";

/// A kind of database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MySQL from Oracle.
    MySql,
    /// MariaDB.
    MariaDb,
}

impl Kind {
    /// Its name in the output and in names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
        }
    }

    /// The environment variable `HIGHWATER_TEST_<NAME>_<WHAT>`.
    pub fn variable(self, what: &str) -> String {
        Release::from(self).variable(what)
    }

    /// Why this kind must not be used, from `HIGHWATER_TEST_SKIP_<NAME>`. Only for machines that
    /// cannot have it: what is left out is said in every summary.
    pub fn skip_reason(self) -> Option<String> {
        Release::from(self).skip_reason()
    }

    /// The URL of the administrator's connection, without the name of a database.
    fn url(self, port: u16) -> String {
        match self {
            Self::Postgres => format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}"),
            Self::MySql | Self::MariaDb => format!("mysql://root:{PASSWORD}@127.0.0.1:{port}"),
        }
    }

    /// What ends the server fast although clients are connected; its data is thrown away.
    fn stop_signal(self) -> &'static str {
        match self {
            Self::Postgres => "INT",
            Self::MySql | Self::MariaDb => "KILL",
        }
    }

    fn packages(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL 13 or later (Debian: apt-get install postgresql)",
            Self::MySql => "MySQL 9 (a `mysqld` that is not MariaDB's)",
            Self::MariaDb => "MariaDB 10.11 or later (Debian: apt-get install mariadb-server)",
        }
    }

    /// Creates a database on the server at `url` (see [`Server::url`]) and gives its own URL.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn create_database(self, url: &str, name: &str) -> Result<String, sqlx::Error> {
        self.execute(url, format!("CREATE DATABASE {name}")).await?;
        Ok(with_database(url, name))
    }

    /// Drops a database, even if somebody is connected to it.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn drop_database(self, url: &str, name: &str) -> Result<(), sqlx::Error> {
        let force = if self == Self::Postgres {
            " WITH (FORCE)"
        } else {
            ""
        };
        self.execute(url, format!("DROP DATABASE {name}{force}"))
            .await
    }

    async fn execute(self, url: &str, sql: String) -> Result<(), sqlx::Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::Postgres => {
                let mut conn = PgConnection::connect(url).await?;
                sql.execute(&mut conn).await?;
                conn.close().await
            }
            Self::MySql | Self::MariaDb => {
                let mut conn = MySqlConnection::connect(url).await?;
                sql.execute(&mut conn).await?;
                conn.close().await
            }
        }
    }

    /// Asks the server for its version, and checks that it is of this kind.
    async fn version(self, url: &str) -> Result<String, sqlx::Error> {
        let version: String = match self {
            Self::Postgres => {
                let mut conn = PgConnection::connect(url).await?;
                let version = sqlx::query_scalar("SHOW server_version");
                let version = version.fetch_one(&mut conn).await?;
                conn.close().await?;
                version
            }
            Self::MySql | Self::MariaDb => {
                let mut conn = MySqlConnection::connect(url).await?;
                let version = sqlx::query_scalar("SELECT CAST(version() AS CHAR)");
                let version = version.fetch_one(&mut conn).await?;
                conn.close().await?;
                version
            }
        };
        let is_mariadb = version.contains("MariaDB");
        if is_mariadb != (self == Self::MariaDb) {
            let wanted = self.name();
            let text = format!("the server is {version}, and {wanted} was asked for");
            return Err(sqlx::Error::Configuration(text.into()));
        }
        Ok(version)
    }
}

/// A kind of server, and which release of it where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    kind: Kind,
    /// How the version begins; none for the release the suites run on, whatever that is.
    version: Option<&'static str>,
}

impl Release {
    /// PostgreSQL 17.
    pub const POSTGRES_17: Self = Self::of(Kind::Postgres, "17");
    /// PostgreSQL 18.
    pub const POSTGRES_18: Self = Self::of(Kind::Postgres, "18");
    /// MariaDB 11.8, which refuses stale reads under REPEATABLE READ (error 1020).
    pub const MARIADB_11_8: Self = Self::of(Kind::MariaDb, "11.8");
    /// One of each kind, and the further releases that claims are made about.
    pub const ALL: [Self; 6] = [
        Self::any(Kind::Postgres),
        Self::POSTGRES_17,
        Self::POSTGRES_18,
        Self::any(Kind::MySql),
        Self::any(Kind::MariaDb),
        Self::MARIADB_11_8,
    ];

    const fn any(kind: Kind) -> Self {
        Self {
            kind,
            version: None,
        }
    }

    const fn of(kind: Kind, version: &'static str) -> Self {
        Self {
            kind,
            version: Some(version),
        }
    }

    /// Its kind.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// Its name in the output: that of the kind, with the version where one was chosen.
    pub fn name(self) -> String {
        match self.version {
            None => self.kind.name().to_owned(),
            Some(version) => format!("{}-{version}", self.kind.name()),
        }
    }

    /// The environment variable `HIGHWATER_TEST_<NAME>_<WHAT>`, such as
    /// `HIGHWATER_TEST_MARIADB_11_8_IMAGE`.
    pub fn variable(self, what: &str) -> String {
        format!("HIGHWATER_TEST_{}_{what}", self.in_variables())
    }

    /// Why it must not be used, from `HIGHWATER_TEST_SKIP_<NAME>`, see [`Kind::skip_reason`].
    pub fn skip_reason(self) -> Option<String> {
        set(&format!("HIGHWATER_TEST_SKIP_{}", self.in_variables()))
    }

    fn in_variables(self) -> String {
        self.name().to_uppercase().replace(['-', '.'], "_")
    }

    /// The official image.
    fn default_image(self) -> String {
        let tag = self.version.unwrap_or(match self.kind {
            Kind::Postgres => "17",
            Kind::MySql => "9",
            Kind::MariaDb => "11",
        });
        format!("{}:{tag}", self.kind.name())
    }

    /// Asks the server for its version, and checks that it is this release.
    async fn version(self, url: &str) -> Result<String, sqlx::Error> {
        let version = self.kind.version(url).await?;
        match self.version {
            Some(wanted) if !format!("{version}.").starts_with(&format!("{wanted}.")) => {
                let wanted = self.name();
                let text = format!("the server is {version}, and {wanted} was asked for");
                Err(sqlx::Error::Configuration(text.into()))
            }
            _ => Ok(version),
        }
    }
}

impl From<Kind> for Release {
    fn from(kind: Kind) -> Self {
        Self::any(kind)
    }
}

/// A running database server. Dropping it stops what was started for it.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    url: String,
    origin: String,
    version: String,
    /// Keeps the server alive; stops it when dropped.
    _life: Life,
}

#[derive(Debug)]
enum Life {
    Elsewhere,
    #[cfg(feature = "databases")]
    Container(#[expect(dead_code, reason = "held for its Drop")] Box<docker::Container>),
    Process(#[expect(dead_code, reason = "held for its Drop")] local::Process),
}

impl Server {
    /// Gets a server of this kind or release, starting one if none is named in the environment.
    ///
    /// # Errors
    /// No way led to a server. The error names every way that was tried, why it failed, and what
    /// to do.
    pub async fn obtain(release: impl Into<Release>) -> Result<Self, Unavailable> {
        let release = release.into();
        let kind = release.kind;
        let fail = |tried| Unavailable { release, tried };
        let url_variable = release.variable("URL");
        if let Some(url) = set(&url_variable) {
            let url = url.trim_end_matches('/').to_owned();
            let version = release.version(&url).await;
            let version =
                version.map_err(|error| fail(vec![format!("{url_variable}: {error}")]))?;
            let life = Life::Elsewhere;
            return Ok(Self::new(kind, url, url_variable, version, life));
        }
        let mut tried = vec![format!("environment: {url_variable} is not set")];

        #[cfg(feature = "databases")]
        {
            let named = set(&release.variable("IMAGE"));
            let image = named.clone().unwrap_or_else(|| release.default_image());
            match docker::Container::start(release, &image).await {
                Ok((container, version)) => {
                    let url = kind.url(container.port());
                    let life = Life::Container(Box::new(container));
                    return Ok(Self::new(
                        kind,
                        url,
                        format!("image {image}"),
                        version,
                        life,
                    ));
                }
                Err(error) => tried.push(format!("Docker, image {image}: {error}")),
            }
            if named.is_some() {
                return Err(fail(tried));
            }
        }

        if release.version.is_some() {
            tried.push("programs of this machine: not asked for a certain release".to_owned());
            return Err(fail(tried));
        }
        match local::Process::start(kind).await {
            Ok((process, version)) => {
                let url = kind.url(process.port());
                let origin = format!("program {}", process.program().display());
                let life = Life::Process(process);
                Ok(Self::new(kind, url, origin, version, life))
            }
            Err(error) => {
                tried.push(format!("programs of this machine: {error}"));
                Err(fail(tried))
            }
        }
    }

    fn new(kind: Kind, url: String, origin: String, version: String, life: Life) -> Self {
        Self {
            kind,
            url,
            origin,
            version,
            _life: life,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The administrator's URL, without the name of a database and without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it came from: the variable, the image, or the program.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// What it answers when asked for its version.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// No server of a kind could be reached or started.
#[derive(Clone, Debug)]
pub struct Unavailable {
    release: Release,
    tried: Vec<String>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = self.release;
        writeln!(f, "no {} server for the tests. Tried:", release.name())?;
        for tried in &self.tried {
            writeln!(f, "  - {tried}")?;
        }
        writeln!(f, "Do one of these:")?;
        writeln!(
            f,
            "  - set {} to a server where databases may be created and dropped",
            release.variable("URL")
        )?;
        writeln!(
            f,
            "  - start a Docker engine that can pull {}, or build images with `cargo xtask images` \
             and set {}",
            release.default_image(),
            release.variable("IMAGE")
        )?;
        match release.version {
            None => write!(f, "  - install {}", release.kind.packages()),
            Some(_) => write!(
                f,
                "  - leave it out by a reason in HIGHWATER_TEST_SKIP_{}",
                release.in_variables()
            ),
        }
    }
}

impl std::error::Error for Unavailable {}

/// The URL with another database: what stood there goes, a query stays.
fn with_database(url: &str, name: &str) -> String {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let host = base.find("://").map_or(0, |at| at + 3);
    let end = base[host..].find('/').map_or(base.len(), |at| host + at);
    format!("{}/{name}{query}", &base[..end])
}

/// The value of an environment variable, if there is one that is not empty.
pub(crate) fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Connects until the server answers; gives its version.
///
/// `alive` says why to stop waiting, for example because the process ended.
async fn first_answer(
    release: Release,
    url: &str,
    mut alive: impl FnMut() -> Result<(), String>,
) -> Result<String, String> {
    let start = Instant::now();
    loop {
        let attempt = tokio::time::timeout(Duration::from_secs(5), release.version(url)).await;
        let error = match attempt {
            Ok(Ok(version)) => return Ok(version),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer within 5 s".to_owned(),
        };
        alive()?;
        if start.elapsed() > START_LIMIT {
            return Err(format!("not ready after {START_LIMIT:?}: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Release, with_database};

    #[test]
    fn the_variable_of_a_release_has_its_version() {
        let variable = |release: Release| release.variable("IMAGE");
        assert_eq!(variable(Kind::MySql.into()), "HIGHWATER_TEST_MYSQL_IMAGE");
        assert_eq!(
            variable(Release::MARIADB_11_8),
            "HIGHWATER_TEST_MARIADB_11_8_IMAGE"
        );
    }

    #[test]
    fn a_database_is_put_into_a_url() {
        for (url, expected) in [
            ("mysql://u:p@h:1", "mysql://u:p@h:1/x"),
            ("mysql://u:p@h:1/", "mysql://u:p@h:1/x"),
            (
                "postgres://h/old?sslmode=require",
                "postgres://h/x?sslmode=require",
            ),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }
}
