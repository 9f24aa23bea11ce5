//! The command as a user runs it: what it prints, what it refuses, how it ends.

mod serving;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use nix::sys::signal::Signal;

use self::serving::{Server, highwater, refuses, run, stderr};

const OPEN: [&str; 5] = [
    "serve",
    "--in-memory",
    "--no-auth",
    "--listen",
    "127.0.0.1:0",
];

#[test]
fn a_server_says_where_it_is_and_a_signal_ends_it_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = Server::start(&mut highwater(&OPEN));
        assert_ne!(server.address.port(), 0);
        let mut hello = [0; 28];
        let mut client = TcpStream::connect(server.address).expect("connects");
        client.read_exact(&mut hello).expect("a hello");
        server.signal(signal);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("new fencing domain"), "{log}");
        assert!(!log.contains('\x1b'), "colours are for terminals: {log}");
    }
}

#[test]
fn a_log_that_nobody_reads_any_more_does_not_end_the_server() {
    let mut server = Server::start(highwater(&OPEN).env("RUST_LOG", "debug"));
    drop(server.process.stderr.take());
    for _ in 0..2 {
        let mut client = TcpStream::connect(server.address).expect("connects");
        client.read_exact(&mut [0; 28]).expect("a hello");
        // Refused, and the server says so in its log.
        client.write_all(&[0; 32]).expect("writes");
        let mut verdict = [7];
        client.read_exact(&mut verdict).expect("a verdict");
        assert_eq!(verdict, [0]);
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn every_start_is_another_domain() {
    let one = Server::start(&mut highwater(&OPEN));
    let two = Server::start(&mut highwater(&OPEN));
    assert_eq!(one.domain.len(), 64);
    assert_ne!(one.domain, two.domain);
}

#[test]
fn the_first_token_is_one_that_a_database_can_store() {
    let first = |token| [&OPEN[..], &["--first-token", token]].concat();
    for wrong in ["0", "9223372036854775808", "many"] {
        refuses(
            &mut highwater(&first(wrong)),
            "a token is a number from 1 to 9223372036854775807",
        );
    }
    // Far above the clock; and far below it, where the clock wins.
    for (asked, started) in [
        ("9000000000000000000", Some(9_000_000_000_000_000_000)),
        ("5", None),
    ] {
        let server = Server::start(&mut highwater(&first(asked)));
        server.signal(Signal::SIGTERM);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
        let shown = log.split_once("first_token=").expect("it is logged").1;
        let shown: String = shown.chars().take_while(char::is_ascii_digit).collect();
        let shown: u64 = shown.parse().expect("a number");
        match started {
            Some(started) => assert_eq!(shown, started),
            None => assert!(shown > 1_000_000_000_000_000, "{shown}"),
        }
    }
}

#[test]
fn somebody_has_to_say_who_may_connect() {
    let base = ["serve", "--in-memory", "--listen", "127.0.0.1:0"];
    refuses(&mut highwater(&base), "who may connect?");
    let mut empty = highwater(&base);
    refuses(empty.env("HIGHWATER_CLIENT_TOKEN", ""), "who may connect?");
}

#[test]
fn no_authentication_is_refused_off_loopback() {
    let mut serve = highwater(&["serve", "--in-memory", "--no-auth", "--listen", "0.0.0.0:0"]);
    refuses(&mut serve, "not a loopback address");
}

#[test]
fn the_token_comes_from_a_file_or_the_environment_and_is_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let path = file.to_str().expect("a path");
    std::fs::write(&file, "a shared client token\n").expect("writes");
    let base = ["serve", "--in-memory", "--listen", "127.0.0.1:0"];
    let from_file = [&base[..], &["--client-token-file", path]].concat();
    let mut from_environment = highwater(&base);
    from_environment.env("HIGHWATER_CLIENT_TOKEN", "a shared client token");

    for command in [&mut highwater(&from_file), &mut from_environment] {
        let server = Server::start(command.env("RUST_LOG", "trace"));
        server.signal(Signal::SIGTERM);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains("shared client"), "{log}");
    }

    let mut both = highwater(&from_file);
    both.env("HIGHWATER_CLIENT_TOKEN", "another client token");
    refuses(&mut both, "decide for one");
    let no_auth = [&from_file[..], &["--no-auth"]].concat();
    refuses(&mut highwater(&no_auth), "cannot be used with");
    let mut short = highwater(&base);
    short.env("HIGHWATER_CLIENT_TOKEN", "15 bytes and CR\r\n");
    refuses(&mut short, "at least 16 bytes, this one has 15");
    std::fs::write(&file, "too short\n").expect("writes");
    refuses(&mut highwater(&from_file), "at least 16 bytes");
    std::fs::remove_file(&file).expect("removes");
    refuses(&mut highwater(&from_file), "cannot be read");
}

#[test]
fn tls_files_are_checked_before_anything_listens() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.pem");
    let missing = missing.to_str().expect("a path");
    let alone = [&OPEN[..], &["--tls-cert", missing]].concat();
    refuses(&mut highwater(&alone), "it needs tls-key");
    let both = [&OPEN[..], &["--tls-cert", missing, "--tls-key", missing]].concat();
    refuses(&mut highwater(&both), "missing.pem cannot be used");
}

#[test]
fn the_sql_of_every_dialect_is_printed_without_a_database() {
    for dialect in ["postgres", "mysql", "mariadb", "sqlite"] {
        let output = run(&mut highwater(&[
            "migrate",
            "--print",
            "--dialect",
            dialect,
        ]));
        assert!(output.status.success(), "{}", stderr(&output));
        let sql = String::from_utf8(output.stdout).expect("text");
        assert!(sql.contains("highwater_fence"), "{sql}");
    }
    refuses(&mut highwater(&["migrate", "--print"]), "whose SQL?");
    refuses(&mut highwater(&["migrate"]), "--database-url");
}

#[test]
fn migrations_are_written_as_the_tools_want_them_and_never_over_a_file() {
    let tools = [
        (
            "plain",
            "0007_own.sql",
            vec![
                "0008_highwater_fence.down.sql",
                "0008_highwater_fence.up.sql",
            ],
        ),
        (
            "sqlx",
            "20260101000000_own.up.sql",
            vec![
                "20260101000001_highwater_fence.down.sql",
                "20260101000001_highwater_fence.up.sql",
            ],
        ),
        ("refinery", "V3__own.sql", vec!["V4__highwater_fence.sql"]),
        ("diesel", "0001_own", vec!["0002_highwater_fence"]),
    ];
    for (tool, own, expected) in tools {
        let folder = tempfile::tempdir().expect("a folder");
        let into = folder.path().join("migrations");
        std::fs::create_dir(&into).expect("a folder");
        std::fs::write(into.join(own), "").expect("a file");
        let path = into.to_str().expect("a path");
        let words = [
            "migrate",
            "--print",
            "--dialect",
            "postgres",
            "--into",
            path,
            "--format",
            tool,
        ];
        let names = || {
            let entries = std::fs::read_dir(&into).expect("a folder");
            let mut names: Vec<String> = entries
                .map(|entry| {
                    entry
                        .expect("an entry")
                        .file_name()
                        .to_string_lossy()
                        .into_owned()
                })
                .filter(|name| name != own)
                .collect();
            names.sort();
            names
        };
        let output = run(&mut highwater(&words));
        assert!(output.status.success(), "{tool}: {}", stderr(&output));
        assert_eq!(names(), expected, "{tool}");
        let again = run(&mut highwater(&words));
        let said = String::from_utf8(again.stdout).expect("text");
        assert!(
            again.status.success() && said.contains("already there"),
            "{tool}: {said}"
        );
        assert_eq!(names(), expected, "{tool}");
        // What came later is added, under the next number.
        let more = run(&mut highwater(&[&words[..], &["--with-protect"]].concat()));
        assert!(more.status.success(), "{tool}: {}", stderr(&more));
        let protect = names()
            .iter()
            .filter(|name| name.contains("protect"))
            .count();
        assert_eq!(names().len(), expected.len() + protect, "{tool}");
        assert!(protect > 0, "{tool}");
    }
    let up = [
        "migrate",
        "--print",
        "--dialect",
        "sqlite",
        "--number",
        "12",
        "--format",
        "refinery",
    ];
    let output = run(&mut highwater(&up));
    assert!(output.stdout.starts_with(b"-- V12__highwater_fence.sql\n"));
    let down = run(&mut highwater(&[
        "migrate",
        "--print",
        "--dialect",
        "mysql",
        "--down",
    ]));
    assert!(String::from_utf8_lossy(&down.stdout).contains("DROP TABLE"));
    refuses(&mut highwater(&["migrate", "--into", "x"]), "--print");
}

#[test]
fn a_table_is_protected_and_the_protection_taken_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!(
        "sqlite://{}?mode=rwc",
        folder.path().join("stock.db").display()
    );
    let say = |arguments: &[&str]| run(highwater(arguments).env("DATABASE_URL", &url));
    let write = |sql: &'static str| {
        let url = url.clone();
        let write = async move {
            use sqlx::Connection as _;
            let mut conn = sqlx::SqliteConnection::connect(&url).await?;
            sqlx::raw_sql(sql).execute(&mut conn).await.map(drop)
        };
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(write)
    };
    write("CREATE TABLE stock (sku TEXT PRIMARY KEY)").expect("created");
    let protect = ["protect", "--table", "stock", "--key", "'stock/' || {sku}"];
    let early = say(&protect);
    assert!(!early.status.success() && early.stdout.is_empty());
    assert!(
        stderr(&early).contains("highwater_fence does not exist: run `highwater migrate"),
        "{}",
        stderr(&early)
    );
    assert!(say(&["migrate"]).status.success());
    for _ in 0..2 {
        let done = say(&protect);
        assert_eq!(
            done.stdout,
            b"table stock: protected\n",
            "{}",
            stderr(&done)
        );
    }
    let wrong = say(&["protect", "--table", "stock", "--key", "{nope}"]);
    assert!(!wrong.status.success());
    assert_eq!(stderr(&wrong).matches("no such column").count(), 1);
    let refused = write("INSERT INTO stock VALUES ('a')").expect_err("refused");
    assert!(
        refused.to_string().contains("highwater_protected"),
        "{refused}"
    );
    let printed = run(&mut highwater(&[
        "protect",
        "--print",
        "--dialect",
        "postgres",
        "--table",
        "stock",
        "--key",
        "{sku}",
    ]));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("SELECT highwater_protect("));
    let done = say(&["unprotect", "--table", "stock"]);
    assert_eq!(done.stdout, b"table stock: no longer protected\n");
    write("INSERT INTO stock VALUES ('a')").expect("written");
}

#[test]
fn a_database_is_migrated_and_again_without_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = |path: &Path| format!("sqlite://{}?mode=rwc", path.display());
    let url = url(&folder.path().join("stock.db"));
    let first = run(&mut highwater(&["migrate", "--database-url", &url]));
    assert!(first.status.success(), "{}", stderr(&first));
    assert_eq!(first.stdout, b"table highwater_fence: created\n");
    let mut again = highwater(&["migrate"]);
    let again = run(again.env("DATABASE_URL", &url));
    assert_eq!(again.stdout, b"table highwater_fence: already there\n");
    let other = run(&mut highwater(&[
        "migrate",
        "--database-url",
        &url,
        "--table",
        "other",
    ]));
    assert_eq!(
        other.stdout,
        b"table other: created\n",
        "{}",
        stderr(&other)
    );
}

#[test]
fn a_database_that_cannot_be_reached_is_an_error_without_its_password() {
    // A port that nothing listens on: taken, and given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("an address");
    drop(port);
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://user:secret@{address}/stock");
        let output = run(highwater(&["migrate"]).env("DATABASE_URL", &url));
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains("cannot be connected to"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let mut unknown = highwater(&["migrate"]);
    unknown.env("DATABASE_URL", "oracle://user:secret@localhost/stock");
    refuses(&mut unknown, "none of postgres, mysql, mariadb and sqlite");
}
