//! The command as a process: how it starts, refuses, and is ended.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) fn highwater(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command
        .args(arguments)
        .env_remove("HIGHWATER_CLIENT_TOKEN")
        .env_remove("DATABASE_URL")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("runs")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command fails, says this, and prints nothing to standard output.
#[track_caller]
pub(crate) fn refuses(command: &mut Command, reason: &str) {
    let mut process = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    while process.try_wait().expect("a process of ours").is_none() {
        if Instant::now() >= deadline {
            let _ = process.kill();
            panic!("it runs instead of saying {reason:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = process.wait_with_output().expect("reads");
    let said = stderr(&output);
    assert!(!output.status.success());
    assert!(said.contains(reason), "{said}");
    assert!(output.stdout.is_empty());
}

/// A server in a process of its own; killed when the test ends.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) domain: String,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// The address for operators.
    pub(crate) fn admin(&mut self) -> SocketAddr {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("reads");
        let address = line.trim_end().strip_prefix("highwater admin listens on ");
        address.expect("its line").parse().expect("an address")
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).expect("reads");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., "on", address, "domain", domain] = words.as_slice() else {
            let _ = process.kill();
            panic!("not the line of a server: {line:?}");
        };
        Self {
            address: address.parse().expect("an address"),
            domain: (*domain).to_owned(),
            process,
            stdout,
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().try_into().expect("a process id"));
        kill(pid, signal).expect("a process of ours");
    }

    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.process.try_wait().expect("a process of ours") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The exit code, and all it wrote to its log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let code = self.exit_code();
        let mut log = String::new();
        let stderr = self.process.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut log).expect("reads");
        (code, log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
