//! `highwater lock`, against a server in this process.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, Key};
use highwater_server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A server, and a client to look at it with.
struct Base {
    server: Server,
    client: Client,
}

impl Base {
    async fn new() -> Self {
        let builder = Server::builder().in_memory().no_auth();
        let server = builder.listen(([127, 0, 0, 1], 0).into()).start().await;
        let server = server.expect("starts");
        let client = Client::builder(server.local_addr()).connect().await;
        Self {
            server,
            client: client.expect("connects"),
        }
    }

    /// `highwater lock a …`
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command
            .args(["lock", "a", "--server"])
            .arg(self.server.local_addr().to_string())
            .args(arguments)
            .env_remove("HIGHWATER_CLIENT_TOKEN")
            .stdin(Stdio::null());
        command
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("no panic")
            .expect("runs")
    }

    /// Starts a shell that sets a trap and then loops, or runs a script, and waits until it is there.
    async fn start(&self, options: &[&str], trap: &str, script: &str) -> Running {
        let script = format!("{trap}; echo ready; {script}");
        let arguments = [options, &["--", "sh", "-c", &script]].concat();
        let mut command = self.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("is piped"));
        tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("reads");
            assert_eq!(line, "ready\n");
            Running {
                child,
                _stdout: stdout,
            }
        })
        .await
        .expect("no panic")
    }

    /// Takes the lock, if it is free.
    async fn is_free(&self) -> bool {
        let options = AcquireOptions::new().wait(Duration::ZERO);
        match self.client.acquire(&key(), options).await {
            Ok(ticket) => {
                ticket.release().await.expect("releases");
                true
            }
            Err(AcquireError::TimedOut) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

struct Running {
    child: Child,
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("is there");
    }

    /// Its exit status and what it wrote to standard error.
    async fn end(mut self) -> (i32, String) {
        tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            let mut stderr = self.child.stderr.take().expect("is piped");
            stderr.read_to_string(&mut said).expect("reads");
            let status = self.child.wait().expect("waits");
            (status.code().expect("no signal ended it"), said)
        })
        .await
        .expect("no panic")
    }
}

const LOOP: &str = "while :; do sleep 0.01; done";

fn key() -> Key {
    Key::new("a").expect("a key")
}

fn status(output: &Output) -> i32 {
    output.status.code().expect("no signal ended it")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_knows_its_key_and_token_and_its_status_is_passed_on() {
    let base = Base::new().await;
    let script =
        "echo \"$HIGHWATER_LOCK_KEY $HIGHWATER_FENCING_TOKEN $HIGHWATER_FENCING_DOMAIN\"; exit 7";
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let output = base.run(&["--", "sh", "-c", script]).await;
        assert_eq!(status(&output), 7, "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let words: Vec<&str> = text.split_whitespace().collect();
        let domain = base.server.domain().to_string();
        assert_eq!((words[0], words[2]), ("a", domain.as_str()));
        tokens.push(words[1].parse::<u64>().expect("a number"));
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    assert!(base.is_free().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_others_keeps_the_command_from_running() {
    let base = Base::new().await;
    let ticket = base.client.acquire(&key(), AcquireOptions::new()).await;
    let ticket = ticket.expect("is free");
    for (options, expected) in [
        (&["--wait", "0s"][..], 75),
        (&["--wait", "0s", "--not-acquired-status", "5"], 5),
    ] {
        let arguments = [options, &["--", "echo", "it ran"]].concat();
        let output = base.run(&arguments).await;
        assert_eq!(status(&output), expected, "{}", said(&output));
        assert!(output.stdout.is_empty());
        assert!(said(&output).contains("was not free within"));
    }
    drop(ticket);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lock_is_lost_is_told_and_then_ended() {
    let base = Base::new().await;
    let short = ["--lease", "300ms", "--kill-after", "300ms"];
    let told = base.start(&short, "trap 'exit 3' TERM", LOOP);
    let (code, text) = told.await.end().await;
    assert_eq!(code, 76, "{text}");
    assert!(text.contains("was lost while the command ran"), "{text}");
    // It does not listen. What it started itself must not outlive it and hold the pipe.
    let deaf = base.start(&short, "trap '' TERM", "while :; do :; done");
    let (code, text) = deaf.await.end().await;
    assert_eq!(code, 76, "{text}");
    let other = [&short[..], &["--lost-status", "9"]].concat();
    let told = base.start(&other, "trap 'exit 3' TERM", LOOP);
    assert_eq!(told.await.end().await.0, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_lock_outlives_its_lease() {
    let base = Base::new().await;
    let options = ["--lease", "1s", "--extend"];
    let running = base.start(&options, ":", "sleep 3; exit 4").await;
    assert!(!base.is_free().await);
    let (code, text) = running.end().await;
    assert_eq!(code, 4, "{text}");
    assert!(base.is_free().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_command() {
    let base = Base::new().await;
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        if is_ignored(signal) {
            eprintln!("{name} is left out: these tests were started with it ignored, as by nohup");
            continue;
        }
        let trap = format!("trap 'exit 9' {name}");
        let running = base.start(&[], &trap, LOOP).await;
        running.signal(signal);
        let (code, text) = running.end().await;
        assert_eq!(code, 9, "{name}: {text}");
        assert!(base.is_free().await);
    }
}

/// Whether this process ignores it, and so everything that it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    ignored.unwrap_or(0) & (1 << (signal as i32 - 1)) != 0
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_ignored_stays_ignored() {
    let base = Base::new().await;
    let program = env!("CARGO_BIN_EXE_highwater");
    let address = base.server.local_addr().to_string();
    // As with `nohup`. The command must not see it either, and tells by USR1 that it is still there.
    let script = "trap '' HUP; exec \"$@\"";
    let inner = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.01; done";
    let mut command = Command::new("sh");
    command.args([
        "-c", script, "sh", program, "lock", "a", "--server", &address,
    ]);
    command
        .args(["--", "sh", "-c", inner])
        .env_remove("HIGHWATER_CLIENT_TOKEN");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("reads");
    let running = Running {
        child,
        _stdout: stdout,
    };
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGUSR1);
    let (code, text) = running.end().await;
    assert_eq!(code, 9, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_the_wait_gives_the_place_up() {
    let base = Base::new().await;
    let ticket = base.client.acquire(&key(), AcquireOptions::new()).await;
    let ticket = ticket.expect("is free");
    let mut command = base.command(&["--wait", "1m", "--", "echo", "it ran"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let stdout = child.stdout.take().expect("is piped");
    let running = Running {
        child,
        _stdout: BufReader::new(stdout),
    };
    while base.server.counts().waiters == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.signal(Signal::SIGTERM);
    let (code, text) = running.end().await;
    assert_eq!(code, 128 + 15, "{text}");
    ticket.release().await.expect("releases");
    assert!(base.is_free().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_has_a_status_of_its_own() {
    let base = Base::new().await;
    for (command, expected) in [
        (&["--", "/nowhere/to/be/found"][..], 127),
        (&["--", "/"], 126),
        (&["--", "sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["--lease", "0s", "--", "true"], 2),
        (&["--wait", "5", "--", "true"], 2),
        (&[], 2),
    ] {
        let output = base.run(command).await;
        assert_eq!(status(&output), expected, "{command:?}: {}", said(&output));
        assert!(base.is_free().await, "{command:?}");
    }
    // Nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = free.local_addr().expect("has one").to_string();
    drop(free);
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    let command = command.args([
        "lock", "a", "--server", &address, "--wait", "0s", "--", "true",
    ]);
    let output = command.env_remove("HIGHWATER_CLIENT_TOKEN").output();
    assert_eq!(status(&output.expect("runs")), 69);
}
