//! A TCP proxy between a driver and its server that counts flights and cuts connections.
//!
//! A *flight* is everything that a client sends before it waits for an answer: what a round trip
//! costs is paid once per flight. Where a connection is cut is chosen by a [`Plan`]: at the message
//! that holds `COMMIT`, or at random.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use highwater_proof::adapter::{Adapter, Dialect};
use highwater_proof::relay::{Relay, ServerUrl};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Everything is passed on.
    Pass,
    /// The connection is closed as soon as the client sends `COMMIT`, which the server never sees.
    CutBeforeCommit,
    /// From `COMMIT` on the server's answers are not passed on.
    SwallowFromCommit,
    /// Each connection is cut at a flight of its own, chosen by a seeded generator: before the
    /// flight is passed on, or after the server answered it and before the answer is.
    Random,
    /// All connections are closed, and new ones too.
    Closed,
}

/// A proxy on a free port of the loopback interface. Dropping it closes all connections.
#[derive(Debug)]
pub struct Wire {
    url: String,
    shared: Arc<Shared>,
    _relay: Relay,
}

#[derive(Debug)]
struct Shared {
    plan: watch::Sender<Plan>,
    flights: AtomicUsize,
    cuts: AtomicUsize,
    random: AtomicU64,
    /// For how long answers are held back, in milliseconds.
    hold: AtomicU64,
}

impl Wire {
    /// A proxy for the server of this URL that passes everything on.
    ///
    /// # Errors
    /// There is no port to be had.
    pub async fn start(url: &str, seed: u64) -> io::Result<Self> {
        let url = ServerUrl::new(url);
        let shared = Arc::new(Shared {
            plan: watch::Sender::new(Plan::Pass),
            flights: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
            random: AtomicU64::new(seed),
            hold: AtomicU64::new(0),
        });
        let accepted = shared.clone();
        let relay = Relay::start(url.server().to_owned(), move |client, server| {
            pass(client, server, accepted.clone())
        });
        let relay = relay.await?;
        Ok(Self {
            url: url.at(relay.address()),
            shared,
            _relay: relay,
        })
    }

    /// The URL that leads through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes what happens; connections that are open follow, except that one which was opened
    /// under [`Plan::Random`] keeps its flight.
    pub fn plan(&self, plan: Plan) {
        self.shared.plan.send_replace(plan);
    }

    /// Holds every answer back for so long from now on, while everything is passed on: what a client
    /// sends without having seen the answer then arrives before it, and counts as one flight.
    pub fn hold(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.shared.hold.store(millis, Ordering::SeqCst);
    }

    /// The flights of all clients so far.
    pub fn flights(&self) -> usize {
        self.shared.flights.load(Ordering::SeqCst)
    }

    /// The connections that were cut at random or at `COMMIT` so far.
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.plan(Plan::Closed);
    }
}

impl Shared {
    /// A number below `limit`.
    fn below(&self, limit: u64) -> u64 {
        let state = self
            .random
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
        random(state) % limit
    }

    fn hold(&self) -> Duration {
        match *self.plan.borrow() {
            Plan::Pass => Duration::from_millis(self.hold.load(Ordering::SeqCst)),
            _ => Duration::ZERO,
        }
    }

    fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }
}

/// One step of splitmix64, the generator of the Java class `SplittableRandom` (Steele, Lea and
/// Flood, 2014): an output for each state, where states are apart by an odd constant.
pub fn random(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Where one connection is cut under [`Plan::Random`].
struct Doom {
    flight: u64,
    before: bool,
    /// Only flights with `COMMIT` count.
    at_commit: bool,
}

/// Which side sent last.
#[derive(PartialEq, Eq)]
enum Last {
    Client,
    Server,
}

/// Passes bytes between the two until one of them, or the plan, closes the connection.
async fn pass(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let mut plan = shared.plan.subscribe();
    let doom = Doom {
        at_commit: shared.below(2) == 0,
        flight: 1 + shared.below(16),
        before: shared.below(2) == 0,
    };
    let (mut last, mut flight, mut commits) = (Last::Server, 0, 0);
    let (mut swallow, mut doomed) = (false, false);
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            biased;
            () = closed(&mut plan) => return,
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                let hold = shared.hold();
                let until = Instant::now() + hold;
                while !hold.is_zero()
                    && let Ok(read) = timeout_at(until, client.read(&mut up)).await
                {
                    let Ok(sent @ 1..) = read else { return };
                    if server.write_all(&up[..sent]).await.is_err() {
                        return;
                    }
                }
                last = Last::Server;
                if doomed {
                    return shared.cut();
                }
                if !swallow && client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                let sent = &up[..count];
                if last == Last::Server {
                    flight += 1;
                    shared.flights.fetch_add(1, Ordering::SeqCst);
                }
                last = Last::Client;
                let commits_now = sent.windows(6).any(|word| word == b"COMMIT");
                commits += u64::from(commits_now);
                let now = *shared.plan.borrow();
                match now {
                    Plan::Pass => {}
                    Plan::Closed => return,
                    Plan::CutBeforeCommit if commits_now => return shared.cut(),
                    Plan::CutBeforeCommit => {}
                    Plan::SwallowFromCommit => swallow |= commits_now,
                    Plan::Random => {
                        let reached = if doom.at_commit {
                            commits_now && commits > doom.flight % 3
                        } else {
                            flight >= doom.flight
                        };
                        if reached && doom.before {
                            return shared.cut();
                        }
                        doomed |= reached;
                    }
                }
                if server.write_all(sent).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until the proxy is to close everything.
async fn closed(plan: &mut watch::Receiver<Plan>) {
    let _ = plan.wait_for(|plan| *plan == Plan::Closed).await;
}

/// The URL with which this adapter does not encrypt what it sends, so that the proxy can read it.
/// PostgreSQL's test servers do not offer TLS; MySQL does, and each driver has its own word for it.
pub fn in_the_clear(adapter: &dyn Adapter, url: &str) -> String {
    match (adapter.dialect(), adapter.name()) {
        (Dialect::MySql, "sqlx" | "sea-orm") => format!("{url}?ssl-mode=DISABLED"),
        (Dialect::MySql, "diesel") => format!("{url}?ssl_mode=disabled"),
        _ => url.to_owned(),
    }
}
