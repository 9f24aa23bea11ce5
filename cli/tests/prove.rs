//! `highwater prove` as a user runs it, on SQLite.
#![cfg(all(unix, feature = "prove-sqlx"))]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

struct Database {
    folder: tempfile::TempDir,
}

impl Database {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self) -> String {
        format!("sqlite://{}?mode=rwc", self.path("proof.db").display())
    }

    fn run(&self, sql: &'static str) {
        runtime().block_on(async {
            let mut conn = SqliteConnection::connect(&self.url()).await.expect("opens");
            sqlx::raw_sql(sql).execute(&mut conn).await.expect("runs");
        });
    }

    /// The tables whose name begins like those of the proof.
    fn tables(&self) -> Vec<String> {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'highwater%'";
        runtime().block_on(async {
            let mut conn = SqliteConnection::connect(&self.url()).await.expect("opens");
            let found = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut conn);
            found.await.expect("reads")
        })
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

fn prove(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command
        .arg("prove")
        .args(arguments)
        .env("DATABASE_URL", url)
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn refuses(url: &str, arguments: &[&str], reasons: &[&str]) -> Output {
    let output = prove(url, arguments).output().expect("runs");
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(output.stdout.is_empty());
    for reason in reasons {
        assert!(said.contains(reason), "{said}");
    }
    assert!(!said.contains("geheim"), "a password is shown: {said}");
    output
}

#[test]
fn the_fenced_rows_are_exact_and_the_control_is_damaged() {
    let database = Database::new();
    let json = database.path("proof.json");
    let json = json.to_str().expect("a path");
    let options = ["--adapter", "sqlx", "--rounds", "5", "--seed", "1"];
    let options = [&options[..], &["--json", json]].concat();
    let output = prove(&database.url(), &options).output().expect("runs");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("seed 1\n"), "{said}");

    let report = std::fs::read_to_string(json).expect("written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("is JSON");
    assert_eq!(report["proof"], true);
    let rows = report["rows"].as_array().expect("rows");
    let forms: Vec<_> = rows.iter().map(|row| row["form"].as_str()).collect();
    assert_eq!(forms, ["closure", "guard", "join", "plain"].map(Some));
    for row in rows {
        let stale = row["stale_writes"].as_u64().expect("a number");
        let damage = row["lost"].as_u64().zip(row["doubled"].as_u64());
        let (lost, doubled) = damage.expect("numbers");
        if row["form"] == "plain" {
            assert!(stale >= 3, "{stale}");
            assert_eq!(row["refused"], 0);
            assert!(lost > 0);
        } else {
            // Without a server that ends sessions, sever is another freeze inside.
            assert_eq!(stale, 4, "frozen, frozen inside, and twice partitioned");
            assert_eq!(
                (row["refused"].as_u64(), lost, doubled),
                (Some(stale), 0, 0)
            );
        }
    }
    let table = text(&output.stdout);
    assert_eq!(table.lines().count(), 2 + rows.len(), "{table}");
    assert_eq!(database.tables(), [""; 0], "nothing is left behind");
}

#[test]
fn tables_of_somebody_else_are_not_touched() {
    let database = Database::new();
    database.run("CREATE TABLE highwater_prove_orders (precious); INSERT INTO highwater_prove_orders VALUES (1)");
    let reasons = ["highwater_prove_orders is there already", "DROP TABLE"];
    refuses(&database.url(), &[], &reasons);
    assert_eq!(database.tables(), ["highwater_prove_orders"]);
}

#[test]
fn what_cannot_be_proven_is_said_at_once() {
    let database = Database::new();
    let url = database.url();
    let unknown = ["\"odbc\" for SQLite", "which has: sqlx"];
    refuses(&url, &["--adapter", "odbc"], &unknown);
    refuses(
        &url,
        &["--isolation", "read-committed"],
        &["SQLite is always"],
    );
    refuses(&url, &["--isolation", "snapshot"], &["the levels are"]);
    refuses(&url, &["--form", "plain"], &["the forms are"]);
    refuses(&url, &["--rounds", "4"], &["4"]);
    refuses(
        &url,
        &["--json", "/nowhere/proof.json"],
        &["/nowhere/proof.json"],
    );
    refuses("sqlite::memory:", &[], &["a SQLite file"]);
    refuses(
        "sqlite:///nowhere/proof.db",
        &[],
        &["cannot be connected to"],
    );
    refuses("oracle://u:geheim@h/d", &[], &["scheme"]);
    refuses(
        "postgres://u:geheim@127.0.0.1:1/d",
        &[],
        &["cannot be connected to"],
    );
    refuses(
        "mysql://u:geheim@127.0.0.1:1/d",
        &[],
        &["cannot be connected to"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_proof_leaves_no_table_and_no_process() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let database = Database::new();
    let url = database.url();
    let mut command = prove(
        &url,
        &["--adapter", "sqlx", "--rounds", "30", "--at-once", "2"],
    );
    let process = command.stderr(Stdio::piped()).spawn().expect("starts");
    let pid = Pid::from_raw(process.id().try_into().expect("a pid"));
    eventually(|| database.path("proof.db").exists() && !database.tables().is_empty());
    eventually(|| !children(process.id()).is_empty());
    let holders = children(process.id());
    kill(pid, Signal::SIGINT).expect("a process of ours");
    let output = process.wait_with_output().expect("ends");
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(database.tables(), [""; 0]);
    eventually(|| holders.iter().all(|&holder| !is_alive(holder)));
}

#[cfg(target_os = "linux")]
fn children(of: u32) -> Vec<u32> {
    let mut children = Vec::new();
    // Each thread has a list of its own.
    for thread in std::fs::read_dir(format!("/proc/{of}/task"))
        .into_iter()
        .flatten()
    {
        let list = thread.map(|thread| std::fs::read_to_string(thread.path().join("children")));
        children.extend(words(&list.ok().and_then(Result::ok).unwrap_or_default()));
    }
    children
}

#[cfg(target_os = "linux")]
fn words(text: &str) -> Vec<u32> {
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// A process that has ended and waits to be collected by whoever is its parent now is not alive.
#[cfg(target_os = "linux")]
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
    })
}

#[cfg(target_os = "linux")]
#[track_caller]
fn eventually(condition: impl Fn() -> bool) {
    use std::time::{Duration, Instant};

    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
