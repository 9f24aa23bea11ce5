//! A server under test, and what a test can do to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::leader::contract::{Memory, Service};
use highwater_client::leader::{
    Backend, Highwater, LeaderElector, LeaderGroupElector, LeaderGroupOptions, LeaderOptions,
    LeaderOptionsBuilder,
};
use highwater_client::{Client, Key};
use highwater_server::{Admin, Server};
use highwater_tests::wait::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::road::Road;

/// How long something may take that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server in memory, on the loopback interface, behind a road that can be closed.
pub(crate) struct World {
    server: Mutex<Option<Server>>,
    listens: SocketAddr,
    road: Road,
    clients: Mutex<BTreeMap<String, Client>>,
    /// A length of time that is short.
    pub(crate) unit: Duration,
}

impl World {
    pub(crate) async fn highwater() -> Self {
        let server = start("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let listens = server.local_addr();
        Self {
            server: Mutex::new(Some(server)),
            listens,
            road: Road::to(listens).await,
            clients: Mutex::default(),
            unit: Duration::from_millis(100),
        }
    }

    /// A backend for this node: with connections of its own.
    pub(crate) async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        let known = self.clients.lock().unwrap().get(node).cloned();
        let client = match known {
            Some(client) => client,
            None => Client::builder(self.address()).connect().await.unwrap(),
        };
        let mut clients = self.clients.lock().unwrap();
        clients.insert(node.into(), client.clone());
        Arc::new(Highwater::new(client))
    }

    /// One try, a lease of 20 units.
    pub(crate) fn options(&self) -> LeaderOptionsBuilder {
        let options = LeaderOptions::builder().wait(Duration::ZERO);
        options.lease(20 * self.unit)
    }

    pub(crate) async fn elector(&self, node: &str, options: LeaderOptionsBuilder) -> LeaderElector {
        let options = options.node(node).build().unwrap();
        LeaderElector::new(self.backend(node).await, options)
    }

    pub(crate) async fn candidate(&self, node: &str) -> LeaderElector {
        self.elector(node, self.options()).await
    }

    pub(crate) async fn group(&self, node: &str, slots: u32) -> LeaderGroupElector {
        let options = LeaderGroupOptions::builder().slots(slots);
        let options = options.wait(Duration::ZERO).lease(20 * self.unit);
        let options = options.node(node).build().unwrap();
        LeaderGroupElector::new(self.backend(node).await, options)
    }

    /// Asks the admin listener of the server.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> String {
        request(self.admin(), method, path).await
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        let server = self.server.lock().unwrap();
        server.as_ref().unwrap().admin_addr().unwrap()
    }

    /// Stops a server, as in a crash.
    pub(crate) fn stop(&self) {
        self.server.lock().unwrap().take();
    }

    /// Waits for a condition.
    pub(crate) async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        eventually(what, PATIENCE, async || condition().await.then_some(())).await;
    }

    /// Where clients find the server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.road.address
    }
}

impl Service for World {
    fn unit(&self) -> Duration {
        self.unit
    }

    async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        self.backend(node).await
    }

    async fn force_release(&self, name: &Key) {
        self.ask("POST", &format!("/v1/locks/{name}/release")).await;
    }

    async fn restart(&self) -> Memory {
        self.stop();
        let again = eventually("the address is free again", PATIENCE, async || {
            start(self.listens).await.ok()
        });
        let again = again.await;
        *self.server.lock().unwrap() = Some(again);
        Memory::Lost
    }

    async fn outage(&self, lasts: bool) {
        self.road.close(lasts);
    }
}

/// Asks an admin listener, which must agree.
pub(crate) async fn request(admin: SocketAddr, method: &str, path: &str) -> String {
    let answer = try_request(admin, method, path).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The same, whatever it answers.
pub(crate) async fn try_request(admin: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n\
         Connection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn start(address: std::net::SocketAddr) -> Result<Server, highwater_server::StartError> {
    let builder = Server::builder().in_memory().listen(address).no_auth();
    let admin = Admin::on("127.0.0.1:0".parse().unwrap());
    builder.admin(admin).start().await
}
