//! Starts server programs that are installed on this machine.
//!
//! The server listens on a free port of the loopback interface and keeps everything in a temporary
//! folder. The programs refuse to run as root, so then they run as the user their package made.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User};
use std::os::unix::process::CommandExt as _;
use tempfile::TempDir;

use super::process::Guarded;
use super::{Kind, PASSWORD, PERFORMANCE_SCHEMA, POSTGRES_AUTHENTICATION, first_answer};

/// A server process. Dropping it stops the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Process {
    port: u16,
    program: PathBuf,
    // Stops the server, so it has to go before the folder.
    _guard: Guarded,
    _folder: TempDir,
}

impl Process {
    /// Starts the server of this kind and waits for its first answer; gives its version too.
    pub(crate) async fn start(kind: Kind) -> Result<(Self, String), String> {
        let mut last = String::new();
        // Another program may take the port between our look and the server's start.
        for _ in 0..3 {
            match Self::start_once(kind).await {
                Err(error) if error.contains("ddress already in use") => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    async fn start_once(kind: Kind) -> Result<(Self, String), String> {
        let installed = Installed::find(kind)?;
        let folder = tempfile::tempdir().map_err(text)?;
        let user = unprivileged(kind)?;
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).map_err(text)?;
        }
        let port = free_port().map_err(text)?;
        let arguments = installed.prepare(folder.path(), port, user)?;
        let log = folder.path().join("log");
        let file = fs::File::create(&log).map_err(text)?;
        let guard = Guarded::start(
            r#"folder=$1; shift; "$@" >&2 & pid=$!"#,
            &format!(
                r#"kill -{} "$pid" 2>/dev/null; wait "$pid"; rm -rf "$folder""#,
                kind.stop_signal()
            ),
            [folder.path().as_os_str(), installed.server.as_os_str()]
                .into_iter()
                .chain(arguments.iter().map(AsRef::as_ref)),
            user,
            Stdio::from(file),
        );
        let process = Self {
            port,
            program: installed.server.clone(),
            _guard: guard.map_err(text)?,
            _folder: folder,
        };
        let ended = ["[ERROR]", "FATAL:", "Aborting"];
        let version = first_answer(kind.into(), &kind.url(port), || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            match log
                .lines()
                .find(|line| ended.iter().any(|word| line.contains(word)))
            {
                // PostgreSQL says this to connections that come too early.
                Some(line) if !line.contains("the database system is starting up") => Err(format!(
                    "{} did not start: {line}",
                    installed.server.display()
                )),
                _ => Ok(()),
            }
        })
        .await?;
        Ok((process, version))
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The program that was started.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
}

/// The programs of a kind on this machine.
struct Installed {
    kind: Kind,
    server: PathBuf,
    initializer: PathBuf,
}

impl Installed {
    fn find(kind: Kind) -> Result<Self, String> {
        let (servers, initializer): (&[&str], Option<&str>) = match kind {
            Kind::Postgres => (&["postgres"], Some("initdb")),
            Kind::MySql => (&["mysqld"], None),
            Kind::MariaDb => (&["mariadbd", "mysqld"], Some("mariadb-install-db")),
        };
        for server in servers.iter().flat_map(|name| programs(name)) {
            // Debian's MariaDB has a `mysqld` as well.
            if kind != Kind::Postgres && is_mariadb(&server) != (kind == Kind::MariaDb) {
                continue;
            }
            let initializer = match initializer {
                None => server.clone(),
                Some(name) => match beside(&server, name) {
                    Some(path) => path,
                    None => continue,
                },
            };
            return Ok(Self {
                kind,
                server,
                initializer,
            });
        }
        Err(match initializer {
            Some(initializer) => format!("no `{}` with `{initializer}`", servers[0]),
            None => format!("no `{}` of the right kind", servers[0]),
        })
    }

    /// Makes the data folder; gives the server's arguments.
    fn prepare(
        &self,
        folder: &Path,
        port: u16,
        user: Option<(u32, u32)>,
    ) -> Result<Vec<String>, String> {
        let data = folder.join("data").display().to_string();
        let here = folder.display().to_string();
        let setup = folder.join("setup");
        let run = |arguments: &[&str]| self.initialize(arguments, user);
        let arguments = if self.kind == Kind::Postgres {
            fs::write(&setup, PASSWORD).map_err(text)?;
            let pwfile = format!("--pwfile={}", setup.display());
            run(&[
                "--pgdata",
                &data,
                "--username=postgres",
                &pwfile,
                &format!("--auth={POSTGRES_AUTHENTICATION}"),
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])?;
            vec![
                "-D".into(),
                data,
                "-p".into(),
                port.to_string(),
                "-k".into(),
                here,
                "-c".into(),
                "listen_addresses=127.0.0.1".into(),
                "-c".into(),
                "fsync=off".into(),
                "-c".into(),
                "max_connections=200".into(),
            ]
        } else {
            let user = format!(
                "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n\
                 ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n\
                 GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
            );
            fs::write(&setup, user).map_err(text)?;
            let datadir = format!("--datadir={data}");
            if self.kind == Kind::MariaDb {
                let root = "--auth-root-authentication-method=normal";
                run(&["--no-defaults", &datadir, root, "--skip-test-db"])?;
            } else {
                run(&["--no-defaults", &datadir, "--initialize-insecure"])?;
            }
            let mut arguments = vec![
                "--no-defaults".into(),
                datadir,
                format!("--port={port}"),
                "--bind-address=127.0.0.1".into(),
                format!("--socket={here}/socket"),
                format!("--pid-file={here}/pid"),
                format!("--init-file={}", setup.display()),
                "--skip-name-resolve".into(),
                "--max-connections=400".into(),
                "--innodb-flush-log-at-trx-commit=2".into(),
            ];
            if self.kind == Kind::MySql {
                arguments.push("--mysqlx=OFF".into());
                arguments.push("--secure-file-priv=NULL".into());
            } else {
                arguments.extend(PERFORMANCE_SCHEMA.map(str::to_owned));
            }
            arguments
        };
        Ok(arguments)
    }

    fn initialize(&self, arguments: &[&str], user: Option<(u32, u32)>) -> Result<(), String> {
        let mut command = Command::new(&self.initializer);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .current_dir("/");
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let name = self.initializer.display();
        let output = command
            .output()
            .map_err(|error| format!("{name}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        Err(format!(
            "{name} ended with {}: {}",
            output.status,
            said.trim()
        ))
    }
}

/// The user and group to run as, if we are root.
fn unprivileged(kind: Kind) -> Result<Option<(u32, u32)>, String> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let name = match kind {
        Kind::Postgres => "postgres",
        Kind::MySql | Kind::MariaDb => "mysql",
    };
    match User::from_name(name) {
        Ok(Some(user)) => Ok(Some((user.uid.as_raw(), user.gid.as_raw()))),
        _ => Err(format!(
            "the server does not run as root, and there is no user {name}"
        )),
    }
}

/// Programs of this name on the search path and where distributions hide servers, newest last
/// version first.
fn programs(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from));
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    let mut found: Vec<PathBuf> = folders
        .into_iter()
        .map(|folder| folder.join(name))
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_file())
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

/// The program of this name that belongs to `server`: in its folder, or else anywhere.
fn beside(server: &Path, name: &str) -> Option<PathBuf> {
    let near = server.with_file_name(name);
    if near.is_file() {
        return Some(near);
    }
    programs(name).into_iter().next()
}

fn is_mariadb(server: &Path) -> bool {
    let output = Command::new(server).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("MariaDB"))
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
