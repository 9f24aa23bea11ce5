//! What a case of the contract needs of a backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_client::leader::{
    Backend, Highwater, InProcess, LeaderElector, LeaderGroupElector, LeaderGroupOptions,
    LeaderOptions, LeaderOptionsBuilder,
};
use highwater_client::{Client, Key};
use highwater_server::{Admin, Server};
use highwater_tests::wait::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long something may take that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One lock service, and the length of a unit of time on it: short, where time is real.
pub(crate) struct World {
    service: Service,
    pub(crate) unit: Duration,
}

enum Service {
    InProcess(InProcess),
    Highwater {
        server: Mutex<Option<Server>>,
        address: std::net::SocketAddr,
        clients: Mutex<BTreeMap<String, Client>>,
    },
}

impl World {
    pub(crate) fn in_process() -> Self {
        Self {
            service: Service::InProcess(InProcess::new()),
            unit: Duration::from_secs(1),
        }
    }

    pub(crate) async fn highwater() -> Self {
        let server = start("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = server.local_addr();
        Self {
            service: Service::Highwater {
                server: Mutex::new(Some(server)),
                address,
                clients: Mutex::default(),
            },
            unit: Duration::from_millis(100),
        }
    }

    /// A backend for this node: with connections of its own.
    pub(crate) async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        match &self.service {
            Service::InProcess(service) => Arc::new(service.clone()),
            Service::Highwater {
                address, clients, ..
            } => {
                let known = clients.lock().unwrap().get(node).cloned();
                let client = match known {
                    Some(client) => client,
                    None => Client::builder(address).connect().await.unwrap(),
                };
                clients.lock().unwrap().insert(node.into(), client.clone());
                Arc::new(Highwater::new(client))
            }
        }
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

    /// Ends whatever holds a name, as an operator does.
    pub(crate) async fn force_release(&self, name: &str) {
        match &self.service {
            Service::InProcess(service) => service.force_release(&Key::new(name).unwrap()),
            Service::Highwater { server, .. } => {
                let admin = server.lock().unwrap().as_ref().unwrap().admin_addr();
                let path = format!("/v1/locks/{name}/release");
                request(admin.unwrap(), "POST", &path).await;
            }
        }
    }

    /// Asks the admin listener of the server.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> String {
        let Service::Highwater { server, .. } = &self.service else {
            panic!("there is no server");
        };
        let admin = server.lock().unwrap().as_ref().unwrap().admin_addr();
        request(admin.unwrap(), method, path).await
    }

    /// Starts the service anew, without its memory.
    pub(crate) async fn restart(&self) {
        match &self.service {
            Service::InProcess(service) => service.restart(),
            Service::Highwater {
                server, address, ..
            } => {
                self.stop();
                let again = eventually("the address is free again", PATIENCE, async || {
                    start(*address).await.ok()
                });
                let again = again.await;
                *server.lock().unwrap() = Some(again);
            }
        }
    }

    /// Stops a server, as in a crash.
    pub(crate) fn stop(&self) {
        if let Service::Highwater { server, .. } = &self.service {
            server.lock().unwrap().take();
        }
    }

    /// Waits until nothing holds a name and nobody waits for it.
    pub(crate) async fn is_free(&self, elector: &LeaderElector, name: &str) {
        self.until("the name is free", async || {
            let state = elector.state(name).await.unwrap();
            state.is_free() && state.waiting == 0
        })
        .await;
    }

    /// Waits until so many candidates stand in the queue.
    pub(crate) async fn waiting(&self, elector: &LeaderElector, name: &str, waiting: u32) {
        self.until("so many wait", async || {
            elector.state(name).await.unwrap().waiting == waiting
        })
        .await;
    }

    /// Waits for a condition; in virtual time each look takes a hundredth of a unit.
    pub(crate) async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let started = tokio::time::Instant::now();
        let patience = if self.is_virtual() {
            100 * self.unit
        } else {
            PATIENCE
        };
        while !condition().await {
            assert!(started.elapsed() < patience, "not in time: {what}");
            tokio::time::sleep(self.unit / 100).await;
        }
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        match &self.service {
            Service::Highwater { address, .. } => *address,
            Service::InProcess(_) => panic!("there is no server"),
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self.service, Service::InProcess(_))
    }

    /// Lets so many units pass.
    pub(crate) async fn pass(&self, units: u32) {
        tokio::time::sleep(units * self.unit).await;
    }
}

async fn request(admin: std::net::SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n\
         Connection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

async fn start(address: std::net::SocketAddr) -> Result<Server, highwater_server::StartError> {
    let builder = Server::builder().in_memory().listen(address).no_auth();
    let admin = Admin::on("127.0.0.1:0".parse().unwrap());
    builder.admin(admin).start().await
}
