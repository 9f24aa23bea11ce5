//! The signals that are passed on to the command.

use std::io::{self, IsTerminal as _};

use nix::sys::signal::{Signal as Number, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM.
pub(super) const TERMINATE: i32 = Number::SIGTERM as i32;

/// What would otherwise end this process or be lost on it.
pub(super) struct Forwarded {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
    /// The terminal sends Ctrl-C and Ctrl-\ to the command too.
    terminal: bool,
}

impl Forwarded {
    /// From here on they do not end this process.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            terminal: io::stdin().is_terminal(),
        })
    }

    /// The next one that the command should get; cancelling it loses none.
    pub(super) async fn next(&mut self) -> i32 {
        loop {
            let (signal, from_terminal) = tokio::select! {
                _ = self.terminate.recv() => (SignalKind::terminate(), false),
                _ = self.hangup.recv() => (SignalKind::hangup(), false),
                _ = self.user1.recv() => (SignalKind::user_defined1(), false),
                _ = self.user2.recv() => (SignalKind::user_defined2(), false),
                _ = self.interrupt.recv() => (SignalKind::interrupt(), self.terminal),
                _ = self.quit.recv() => (SignalKind::quit(), self.terminal),
            };
            if !from_terminal {
                return signal.as_raw_value();
            }
        }
    }
}

/// Sends a signal to a command that has not been waited for.
pub(super) fn send(child: &Child, signal: i32) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let (Some(pid), Ok(signal)) = (pid, Number::try_from(signal)) {
        // A command that has just ended is no longer in need of it.
        kill(Pid::from_raw(pid), signal).ok();
    }
}
