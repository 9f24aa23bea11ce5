//! One process as the story sees it: what it says, and what can be done to it.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::Failure;
use crate::proxy::Proxy;
use crate::worker::setting;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Ready,
    /// It leads.
    Elected(u64),
    /// A run has begun, and waits for an answer before it writes.
    Begins(u64),
    /// The run is in the database.
    Written(u64),
    /// The database refused it.
    Refused {
        offered: u64,
        highest: u64,
    },
    /// It was told that it leads no more.
    Told(u64, String),
    /// Nothing more: it has ended.
    Gone,
}

/// A process and its way to the lock server. It is killed when this is dropped, frozen or not.
pub(crate) struct Node {
    pub(crate) proxy: Proxy,
    child: Child,
    answers: ChildStdin,
}

impl Node {
    /// Starts a process; what it says comes under its number.
    pub(crate) async fn start(
        name: &'static str,
        number: usize,
        server: SocketAddr,
        database_url: &str,
        heard: mpsc::Sender<(usize, Result<Said, String>)>,
    ) -> Result<Self, Failure> {
        let proxy = Proxy::start(server).await?;
        let mut child = Command::new(env::current_exe()?)
            .env(setting::NODE, name)
            .env(setting::SERVER, proxy.address.to_string())
            .env(setting::DATABASE_URL, database_url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(answers), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process without pipes".into());
        };
        tokio::spawn(listen(said, number, heard));
        Ok(Self {
            proxy,
            child,
            answers,
        })
    }

    /// Lets the run that has begun write.
    pub(crate) async fn answer(&mut self) -> io::Result<()> {
        self.answers.write_all(b"go\n").await
    }

    /// Ends the process as nothing else does: it cannot say or give back anything any more.
    pub(crate) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Stops the process, or lets it go on.
    pub(crate) fn freeze(&self, is_frozen: bool) -> Result<(), Failure> {
        let id = self.child.id().ok_or("the process has ended")?;
        let signal = match is_frozen {
            true => Signal::SIGSTOP,
            false => Signal::SIGCONT,
        };
        kill(Pid::from_raw(i32::try_from(id)?), signal)?;
        Ok(())
    }
}

async fn listen(
    said: ChildStdout,
    number: usize,
    heard: mpsc::Sender<(usize, Result<Said, String>)>,
) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if heard.send((number, parse(&line))).await.is_err() {
            return;
        }
    }
    let _ = heard.send((number, Ok(Said::Gone))).await;
}

fn parse(line: &str) -> Result<Said, String> {
    let fields: Vec<&str> = line.split('\t').collect();
    let number = |text: &str| text.parse().map_err(|_| line.to_owned());
    Ok(match fields[..] {
        ["ready"] => Said::Ready,
        ["elected", token] => Said::Elected(number(token)?),
        ["begins", token] => Said::Begins(number(token)?),
        ["written", token] => Said::Written(number(token)?),
        ["refused", offered, highest] => Said::Refused {
            offered: number(offered)?,
            highest: number(highest)?,
        },
        ["told", token, reason] => Said::Told(number(token)?, reason.to_owned()),
        _ => return Err(line.to_owned()),
    })
}
