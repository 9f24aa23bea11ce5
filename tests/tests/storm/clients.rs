//! A process of nothing but clients.
//!
//! It opens what it is asked for, says so in one line on its output, and holds it until it is
//! killed or its input ends.

use std::io::{BufRead as _, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::wire::*;

const ADDRESS: &str = "HIGHWATER_TEST_STORM_ADDRESS";
const COUNT: &str = "HIGHWATER_TEST_STORM_COUNT";

/// A running process of clients. Dropping it kills it, and so ends all connections at once.
pub(crate) struct Clients(Child);

impl Clients {
    /// Opens so many connections; each takes a key of its own, and every tenth queues for `wanted`.
    pub(crate) async fn start(address: SocketAddr, count: usize) -> Self {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .env(ADDRESS, address.to_string())
            .env(COUNT, count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("a process of clients");
        let output = child.stdout.take().expect("a pipe");
        let said = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            let read = std::io::BufReader::new(output).read_line(&mut line);
            read.map(|_| line)
        });
        let line = said.await.expect("no panic").expect("a line");
        assert_eq!(line.trim(), format!("{count} open"), "the clients failed");
        Self(child)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process is to be the clients, and of which server.
pub(crate) fn asked_for() -> Option<SocketAddr> {
    let address = std::env::var(ADDRESS).ok()?;
    Some(address.parse().expect("an address"))
}

/// Is the clients, until the input ends.
pub(crate) fn run(address: SocketAddr) {
    let count = std::env::var(COUNT).expect("a count");
    let count: usize = count.parse().expect("a number");
    crate::leaks::allow_files(count + 100);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let open = runtime.block_on(open_all(address, count));
    println!("{} open", open.len());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(open);
}

async fn open_all(address: SocketAddr, count: usize) -> Vec<Wire> {
    // Fewer than the backlog of a listening socket, or some would be tried again after a second.
    let at_once = Arc::new(Semaphore::new(200));
    let mut opening = JoinSet::new();
    for number in 0..count {
        let at_once = Arc::clone(&at_once);
        opening.spawn(async move {
            let _permit = at_once.acquire().await.expect("never closed");
            let mut wire = Wire::open_at(address).await;
            wire.take(1, &format!("own-{number}")).await;
            if number % 10 == 0 {
                wire.send(&acquire(2, 250, 60, "wanted")).await;
            }
            wire
        });
    }
    opening.join_all().await
}
