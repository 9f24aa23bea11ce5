//! The blocking client: from plain threads, and from inside of async runtimes.
//!
//! The server of these tests lives in a runtime of its own, and time is real.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use highwater_client::blocking::{Builder, Client, Ticket};
use highwater_client::{AcquireError, ConnectError, ExtendError, Lost, Release, ReleaseError};
use tokio::runtime::Runtime;

use crate::fake::Manners;
use crate::model::{Fault, Kind, Model};
use crate::{domain, keys, wait};

const SECOND: Duration = Duration::from_secs(1);

/// A server that has a thread of its own.
struct Server {
    model: Model,
    _runtime: Runtime,
}

impl Server {
    fn start(manners: Manners) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (sender, model) = mpsc::channel();
        runtime.spawn(async move {
            sender
                .send(Model::start(manners, Duration::ZERO).await)
                .unwrap();
        });
        Self {
            model: model.recv().unwrap(),
            _runtime: runtime,
        }
    }

    fn polite() -> Self {
        Self::start(Manners::Polite(domain(1)))
    }

    fn builder(&self) -> Builder {
        let door = self.model.door();
        Client::builder("fake:1").dialer(move || std::future::ready(door.knock()))
    }

    fn client(&self) -> Client {
        self.builder().connect().unwrap()
    }

    /// Waits until so many locks are held.
    fn holds(&self, count: usize) {
        eventually(|| self.model.books(|books| books.held.len() == count));
    }

    fn errs(&self, to: Kind) {
        let (bytes, closes) = (5, false);
        self.model.errs(Some(Fault { to, bytes, closes }));
    }
}

fn eventually(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < crate::fake::PATIENCE,
            "it never happened"
        );
        thread::yield_now();
    }
}

fn ticket(client: &Client) -> Ticket {
    client.acquire_set(&keys(&["k"]), wait(5_000)).unwrap()
}

/// Everything that can be done with a client, by whatever thread this is.
fn a_whole_life(server: &Server) {
    let client = server.client();
    let held = ticket(&client);
    assert_eq!(held.domain(), domain(1));
    assert_eq!(held.keys(), &keys(&["k"]));
    assert_eq!(held.fence().marks()[0].token, held.token());
    assert!(held.is_valid() && held.valid_before() > Instant::now());
    assert!(held.remaining() > 20 * SECOND);
    held.extend(100 * SECOND).unwrap();
    assert!(held.remaining() > 90 * SECOND);
    assert_eq!(held.lost(Duration::from_millis(1)), None);
    assert_eq!(held.release(), Ok(Release::Released));
    let dropped = ticket(&client.clone());
    server.holds(1);
    drop(dropped);
    server.holds(0);
    assert_eq!(client.stats().acquired, 2);
    client.close();
    let error = client.acquire_set(&keys(&["k"]), wait(0)).unwrap_err();
    assert_eq!(error, AcquireError::Closed);
    drop(client);
    eventually(|| server.model.books(|books| books.open == 0));
}

#[test]
fn from_a_plain_thread() {
    a_whole_life(&Server::polite());
}

#[test]
fn inside_of_a_runtime_with_one_thread() {
    let server = Server::polite();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    // Everything is also dropped in there, where dropping a runtime would panic.
    runtime.block_on(async { a_whole_life(&server) });
}

#[test]
fn inside_of_a_runtime_with_several_threads_and_of_its_blocking_pool() {
    let server = Server::polite();
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async move {
        let task = tokio::spawn(async move {
            a_whole_life(&server);
            server
        });
        task.await.unwrap()
    });
    let task = runtime.spawn_blocking(move || a_whole_life(&server));
    runtime.block_on(task).unwrap();
}

#[test]
fn many_threads_share_a_client() {
    let server = Server::polite();
    let client = server.client();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || {
                for _ in 0..20 {
                    assert_eq!(ticket(&client).release(), Ok(Release::Released));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(client.stats().released, 160);
}

#[test]
fn a_ticket_keeps_the_client_and_the_last_one_ends_the_thread() {
    thread_local! {
        static ALIVE: RefCell<Option<mpsc::Sender<()>>> = const { RefCell::new(None) };
    }
    let server = Server::polite();
    let (alive, ended) = mpsc::channel();
    let door = server.model.door();
    let builder = Client::builder("fake:1").dialer(move || {
        // Goes when the thread does.
        ALIVE.set(Some(alive.clone()));
        std::future::ready(door.knock())
    });
    let client = builder.connect().unwrap();
    let (held, dropped) = (ticket(&client), ticket(&client));
    drop(client);
    assert_eq!(held.release(), Ok(Release::Released));
    server.holds(1);
    // What it leaves to do is still done.
    drop(dropped);
    server.holds(0);
    eventually(|| server.model.books(|books| books.open == 0));
    let ended = ended.recv_timeout(crate::fake::PATIENCE);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_kept_ticket_lives_on_while_the_application_computes() {
    let server = Server::polite();
    let client = server.client();
    let lease = Duration::from_millis(600);
    let options = wait(0).lease(lease).auto_extend(Duration::MAX);
    let held = client.acquire_set(&keys(&["k"]), options).unwrap();
    // No call is made meanwhile.
    eventually(|| server.model.books(|books| books.extends >= 6));
    assert!(held.is_valid());
    server.model.forgets();
    assert_eq!(held.lost(10 * SECOND), Some(Lost::NotHeld));
}

#[test]
fn every_call_ends_although_the_server_stops_in_the_middle_of_its_answer() {
    let server = Server::polite();
    let client = server.client();
    let (extended, released) = (ticket(&client), ticket(&client));
    let started = Instant::now();
    server.errs(Kind::Extend);
    thread::scope(|scope| {
        let extension = scope.spawn(|| extended.extend(SECOND));
        eventually(|| server.model.books(|books| books.extends > 0));
        server.errs(Kind::Release);
        assert_eq!(released.release(), Err(ReleaseError::Unknown));
        // Its later attempts were answered, or it gave up.
        let extension = extension.join().unwrap();
        assert!(matches!(extension, Ok(()) | Err(ExtendError::Unknown)));
    });
    server.errs(Kind::Acquire);
    let error = client.acquire_set(&keys(&["k"]), wait(300)).unwrap_err();
    assert_eq!(error, AcquireError::Indeterminate);
    drop(extended);
    client.close();
    assert!(started.elapsed() < Duration::from_secs(7 + 4 + 5));
}

#[test]
fn connecting_ends_in_time() {
    let server = Server::start(Manners::Partial {
        domain: domain(1),
        bytes: 3,
        stalls: true,
    });
    let started = Instant::now();
    let builder = server.builder().connect_time(Duration::from_millis(200));
    let error = builder.connect().unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(started.elapsed() < 3 * SECOND);
}
