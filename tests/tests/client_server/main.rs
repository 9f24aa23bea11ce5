//! The client and the server together, over loopback.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod blocking;
mod cancel;
mod frozen;
mod kept;
mod locks;
mod restart;
mod secure;
mod timed;

use std::net::SocketAddr;
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, Key, KeySet, Ticket};
use highwater_server::Server;
use highwater_tests::wait::eventually;
use tokio::task::JoinHandle;

/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(15);

async fn server() -> Server {
    server_at("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

async fn server_at(address: SocketAddr) -> Result<Server, highwater_server::StartError> {
    let builder = Server::builder().in_memory().listen(address);
    builder.no_auth().start().await
}

async fn client_of(server: &Server) -> Client {
    Client::builder(server.local_addr())
        .connect()
        .await
        .unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn keys(names: &[&str]) -> KeySet {
    KeySet::new(names.iter().map(|name| key(name))).unwrap()
}

fn wait(milliseconds: u64) -> AcquireOptions {
    AcquireOptions::new()
        .wait(Duration::from_millis(milliseconds))
        .lease(Duration::from_secs(60))
}

type Acquiring = JoinHandle<Result<Ticket, AcquireError>>;

fn acquiring(client: &Client, name: &str, options: AcquireOptions) -> Acquiring {
    let (client, key) = (client.clone(), key(name));
    tokio::spawn(async move { client.acquire(&key, options).await })
}

/// Waits until so many acquires stand in the server's queues.
async fn queued(server: &Server, waiters: usize) {
    eventually("the queue has this length", PATIENCE, async || {
        (count(server.counts().waiters) == waiters).then_some(())
    })
    .await;
}

/// Waits until nothing is held and nobody waits.
async fn all_free(server: &Server) {
    eventually("everything is free", PATIENCE, async || {
        let counts = server.counts();
        (count(counts.held_keys) == 0 && count(counts.waiters) == 0).then_some(())
    })
    .await;
}

fn count(number: impl TryInto<usize>) -> usize {
    number.try_into().ok().unwrap()
}
