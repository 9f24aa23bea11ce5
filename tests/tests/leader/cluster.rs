//! Three nodes of a durable cluster in this process, under the contract of leader elections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_client::leader::contract::{Memory, Service};
use highwater_client::leader::{Backend, Highwater};
use highwater_client::{Client, Key, Secret};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::nodes::{LIMIT, Nodes, TOKEN};
use crate::world::request;

/// Each of them writes to disk and counts the time: with many at once the machine is what is tested.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

pub(crate) struct Cluster {
    nodes: Mutex<Nodes>,
    clients: Mutex<BTreeMap<String, Client>>,
    _place: SemaphorePermit<'static>,
}

impl Cluster {
    pub(crate) async fn begun() -> Self {
        Self {
            _place: AT_ONCE.acquire().await.unwrap(),
            nodes: Mutex::new(Nodes::begun(3).await),
            clients: Mutex::default(),
        }
    }

    pub(crate) async fn client(&self, node: &str) -> Client {
        let nodes = self.nodes.lock().await;
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(node) {
            return client.clone();
        }
        let builder = Client::cluster(&nodes.addresses, nodes.file.identity());
        let builder = builder.token(Secret::new(TOKEN).unwrap());
        let client = builder.connect_time(LIMIT).connect().await.unwrap();
        clients.insert(node.to_owned(), client.clone());
        client
    }

    pub(crate) async fn nodes(&self) -> tokio::sync::MutexGuard<'_, Nodes> {
        self.nodes.lock().await
    }
}

impl Service for Cluster {
    fn unit(&self) -> Duration {
        Duration::from_millis(150)
    }

    fn rounds(&self) -> u32 {
        // Each round is a few writes to three disks.
        400
    }

    async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        Arc::new(Highwater::new(self.client(node).await))
    }

    async fn force_release(&self, name: &Key) {
        let nodes = self.nodes.lock().await;
        let leader = nodes.leader().await;
        let admin = nodes.server(leader).admin_addr().unwrap();
        request(admin, "POST", &format!("/v1/locks/{name}/release")).await;
    }

    async fn restart(&self) -> Memory {
        let mut nodes = self.nodes.lock().await;
        for slot in 0..3 {
            nodes.kill(slot);
        }
        for slot in 0..3 {
            nodes.start(slot).await;
        }
        nodes.leader().await;
        Memory::Kept
    }

    /// No node hears another one.
    async fn outage(&self, lasts: bool) {
        let nodes = self.nodes.lock().await;
        if !lasts {
            nodes.heal();
            nodes.leader().await;
            return;
        }
        for slot in 0..3 {
            nodes.isolate(slot);
        }
    }
}
