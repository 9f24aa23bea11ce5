//! The signals that are passed on to the command.

use std::io::{self, IsTerminal as _};
use std::task::Poll;

use nix::sys::signal::{Signal as Number, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM.
pub(super) const TERMINATE: i32 = Number::SIGTERM as i32;

/// What would otherwise end this process or be lost on it.
///
/// A signal that is ignored, as `nohup` and shells do for those of a command in the background, stays
/// so, and the command inherits that.
pub(super) struct Forwarded {
    signals: Vec<(i32, Signal)>,
    /// The terminal sends Ctrl-C and Ctrl-\ to the command too.
    terminal: bool,
}

impl Forwarded {
    /// From here on they do not end this process.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let mut signals = Vec::new();
        for kind in [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ] {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) == 0 {
                signals.push((number, signal(kind)?));
            }
        }
        Ok(Self {
            signals,
            terminal: io::stdin().is_terminal(),
        })
    }

    /// The next one; cancelling it loses none.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, signal) in &mut self.signals {
                if signal.poll_recv(cx) == Poll::Ready(Some(())) {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that a running command should get and has not got by itself; cancelling it loses
    /// none.
    pub(super) async fn next_for_command(&mut self) -> i32 {
        let by_itself = [SignalKind::interrupt(), SignalKind::quit()];
        let by_itself = by_itself.map(|kind| kind.as_raw_value());
        loop {
            let number = self.next().await;
            if !self.terminal || !by_itself.contains(&number) {
                return number;
            }
        }
    }
}

/// The signals that this process ignores, as a set of bits from 1 on; where the system does not tell, none.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

/// Sends a signal to a command that has not been waited for.
pub(super) fn send(child: &Child, signal: i32) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let (Some(pid), Ok(signal)) = (pid, Number::try_from(signal)) {
        // A command that has just ended is no longer in need of it.
        kill(Pid::from_raw(pid), signal).ok();
    }
}
