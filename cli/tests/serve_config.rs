//! A server that is configured from everywhere, operated, reloaded and drained.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

mod serving;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_protocol::handshake::{Challenge, HELLO_BYTES, Node};
use highwater_protocol::{Key, LeaseSeconds, Reply, ReplyDecoder, Request, RequestNumber, Secret};
use nix::sys::signal::Signal;

use self::serving::{Server, highwater, refuses, run, stderr};

const OLD: &str = "the old client token";
const NEW: &str = "the new client token";

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A connection past the challenge, or `None` if the token is refused.
fn let_in(server: &Server, secret: &Secret) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).unwrap();
    let challenge = Challenge::from_hello(&hello, Node::Single).unwrap();
    stream.write_all(&challenge.answer(secret)).unwrap();
    let mut verdict = [7];
    stream.read_exact(&mut verdict).unwrap();
    (verdict == [1]).then_some(stream)
}

fn ask(stream: &mut TcpStream, request: &Request) -> Reply {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
    let mut decoder = ReplyDecoder::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        if let Some(reply) = decoder.next(&mut &byte[..]).unwrap() {
            return reply;
        }
    }
}

fn acquire(stream: &mut TcpStream, id: u64) -> Reply {
    let acquire = Request::Acquire {
        id: RequestNumber::new(id).unwrap(),
        keys: Key::new(format!("key{id}")).unwrap().into(),
        wait_seconds: 0,
        lease: LeaseSeconds::new(60).unwrap(),
    };
    ask(stream, &acquire)
}

/// The status and the body of a GET.
fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "server.toml",
        "max-kyes = 1\nframe-time = 'soon'\n",
    );
    for command in [&["config", "check"][..], &["config", "print"], &["serve"]] {
        let mut command = highwater(&[command, &["--config", &file, "--in-memory"]].concat());
        command.env("HIGHWATER_MAX_SLOTS", "none");
        let output = run(&mut command);
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = stderr(&output);
        let expected = [
            "error: 4 things are wrong with the configuration:".to_owned(),
            format!("  max-kyes ({file}:1): there is no such option; is max-keys meant?"),
            format!("  frame-time ({file}:2): \"soon\" is not a time"),
            "  max-slots (HIGHWATER_MAX_SLOTS): \"none\" is not a whole number".to_owned(),
            "  client-token-file: who may connect?".to_owned(),
        ];
        for line in expected {
            assert!(said.contains(&line), "{line:?} is not in {said}");
        }
    }
    let missing = folder.path().join("missing.toml");
    let missing = missing.to_str().unwrap();
    refuses(
        &mut highwater(&["config", "check", "--config", missing]),
        "missing.toml cannot be read",
    );
    let mut command = highwater(&["serve"]);
    refuses(
        command.env("HIGHWATER_CONFIG", missing),
        "missing.toml cannot be read",
    );
    refuses(
        &mut highwater(&["serve", "--client-token", "x"]),
        "unexpected argument",
    );
}

#[test]
fn what_is_printed_is_a_configuration_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "server.toml",
        "max-keys = 7\nmax-waiters = 7\nin-memory = true\n",
    );
    let say = |command: &str, file: &str, more: &[&str]| {
        let words = [&["config", command, "--config", file], more].concat();
        let mut command = highwater(&words);
        command
            .env("HIGHWATER_CLIENT_TOKEN", OLD)
            .env("HIGHWATER_MAX_WAITERS", "8");
        let output = run(&mut command);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = say("print", &file, &["--drain-limit", "1m"]);
    for line in [
        format!("max-keys = 7 # {file}:1"),
        "max-waiters = 8 # HIGHWATER_MAX_WAITERS".to_owned(),
        "drain-limit = \"1m\" # --drain-limit".to_owned(),
        "max-slots = 1024 # default".to_owned(),
        "# a secret comes from HIGHWATER_CLIENT_TOKEN".to_owned(),
    ] {
        assert!(
            printed.lines().any(|printed| printed == line),
            "{line} is not in {printed}"
        );
    }
    assert!(!printed.contains(OLD), "{printed}");
    let again = write(folder.path(), "printed.toml", &printed);
    let values = |text: &str| {
        let lines = text
            .lines()
            .map(|line| line.split(" # ").next().unwrap().to_owned());
        lines.collect::<Vec<_>>()
    };
    assert_eq!(values(&say("print", &again, &[])), values(&printed));
    assert_eq!(
        say("check", &file, &[]),
        "nothing is wrong with this configuration\n"
    );
    // A flag is turned off again by name.
    let folder = folder.path().join("data");
    let durable = ["--in-memory=false", "--data-dir", folder.to_str().unwrap()];
    assert!(say("print", &file, &durable).contains("in-memory = false # --in-memory\n"));
    assert!(!folder.exists(), "nothing is started");
}

#[test]
fn the_help_has_every_option_its_variable_and_its_default() {
    let output = run(&mut highwater(&["serve", "--help"]));
    let help = String::from_utf8(output.stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for setting in highwater_server::config::settings() {
        assert!(
            help.contains(&format!("--{}", setting.name())),
            "{}",
            setting.name()
        );
        assert!(
            help.contains(&format!("[env: {}]", setting.variable())),
            "{}",
            setting.name()
        );
    }
    assert!(
        help.contains("[default: 4000000] [env: HIGHWATER_MAX_KEYS]"),
        "{help}"
    );
    assert!(help.contains("HIGHWATER_CLIENT_TOKEN_PREVIOUS"), "{help}");
}

#[test]
fn tokens_are_read_again_on_a_signal_and_when_their_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "token", OLD);
    for (interval, signalled) in [("0s", true), ("50ms", false)] {
        write(folder.path(), "token", OLD);
        let mut server = Server::start(&mut highwater(&[
            "serve",
            "--in-memory",
            "--listen",
            "127.0.0.1:0",
            "--client-token-file",
            &file,
            "--reload-interval",
            interval,
            "--log-level",
            "info",
        ]));
        let log = server.process.stderr.take().unwrap();
        let mut log = BufReader::new(log).lines().map(Result::unwrap);
        let (old, new) = (Secret::new(OLD).unwrap(), Secret::new(NEW).unwrap());
        let mut early = let_in(&server, &old).unwrap();
        assert!(let_in(&server, &new).is_none());

        let mut change = |content: &str, expected: &str| {
            write(folder.path(), "token", content);
            if signalled {
                server.signal(Signal::SIGHUP);
            }
            let line = log.find(|line| line.contains("tokens and certificates"));
            let line = line.unwrap();
            assert!(line.contains(expected), "{line}");
            assert!(!line.contains(NEW) && !line.contains("too short"), "{line}");
        };
        change("too short", "stay as they were");
        assert!(let_in(&server, &old).is_some());
        change(NEW, "are read again");
        assert!(let_in(&server, &old).is_none());
        assert!(let_in(&server, &new).is_some());
        assert!(matches!(acquire(&mut early, 1), Reply::Granted { .. }));
        server.signal(Signal::SIGTERM);
        drop(early);
        assert_eq!(server.exit_code(), Some(0));
    }
}

#[test]
fn the_first_signal_drains_and_the_second_one_ends() {
    let mut server = Server::start(&mut highwater(&[
        "serve",
        "--in-memory",
        "--no-auth",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--drain-limit",
        "10h",
    ]));
    let admin = server.admin();
    assert_eq!(
        get(admin, "/readyz"),
        (200, "{\"status\":\"ready\"}".to_owned())
    );
    let mut client = let_in(&server, &Secret::no_auth()).unwrap();
    let Reply::Granted { token, .. } = acquire(&mut client, 1) else {
        panic!("the key was free");
    };
    server.signal(Signal::SIGTERM);
    eventually(|| get(admin, "/readyz").0 == 503);
    assert_eq!(get(admin, "/readyz").1, "{\"status\":\"draining\"}");
    assert_eq!(get(admin, "/healthz").0, 200);
    let refused = acquire(&mut client, 2);
    assert!(matches!(refused, Reply::Error { .. }), "{refused:?}");
    // Still held, so still there; and read again means nothing any more.
    server.signal(Signal::SIGHUP);
    assert!(matches!(acquire(&mut client, 3), Reply::Error { .. }));
    assert!(server.process.try_wait().unwrap().is_none());
    let _ = token;
    server.signal(Signal::SIGTERM);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("stopping at once"), "{log}");
}

#[test]
fn a_log_for_programs_is_one_object_on_each_line() {
    let server = Server::start(&mut highwater(&[
        "serve",
        "--in-memory",
        "--no-auth",
        "--listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ]));
    server.signal(Signal::SIGTERM);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.lines().count() >= 2, "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            line["message"].is_string() && line["level"].is_string(),
            "{line}"
        );
    }
}
