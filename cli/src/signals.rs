//! The signals that a server obeys.

/// The signals that ask for an end, and the one that asks to read files again.
#[cfg(unix)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one, of those that ask for an end; `None` for the one that does not.
    pub(crate) async fn next(&mut self) -> Option<&'static str> {
        tokio::select! {
            _ = self.terminate.recv() => Some("SIGTERM"),
            _ = self.interrupt.recv() => Some("SIGINT"),
            _ = self.hangup.recv() => None,
        }
    }
}

/// The signals that ask for an end.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    /// The next one. There is none that only asks to read files again.
    pub(crate) async fn next(&mut self) -> Option<&'static str> {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Some("Ctrl-C"),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Signals {
    /// The next one that asks for an end.
    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            if let Some(signal) = self.next().await {
                return signal;
            }
        }
    }
}
