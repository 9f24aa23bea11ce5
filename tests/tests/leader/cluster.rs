//! Three nodes of a cluster in this process, durable or volatile, under the contract of leader elections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_client::leader::contract::{Memory, Service};
use highwater_client::leader::{Backend, Highwater};
use highwater_client::{Client, Key, Secret};
use highwater_server::cluster::ClusterMode;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::nodes::{LIMIT, Nodes, TOKEN, eventually};
use crate::world::try_request;

/// Each of them counts the time, and most write to disk: with many at once the machine is what is tested.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

pub(crate) struct Cluster {
    nodes: Mutex<Nodes>,
    clients: Mutex<BTreeMap<String, Client>>,
    _place: SemaphorePermit<'static>,
}

impl Cluster {
    pub(crate) async fn begun() -> Self {
        Self::of(Nodes::begun(3)).await
    }

    pub(crate) async fn volatile() -> Self {
        Self::of(Nodes::volatile(3)).await
    }

    async fn of(nodes: impl Future<Output = Nodes>) -> Self {
        Self {
            _place: AT_ONCE.acquire().await.unwrap(),
            nodes: Mutex::new(nodes.await),
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

    fn may_leave_leases(&self) -> bool {
        true
    }

    fn rounds(&self) -> u32 {
        // Each round is a few writes to three disks, or at least a few turns between three nodes.
        200
    }

    async fn backend(&self, node: &str) -> Arc<dyn Backend> {
        Arc::new(Highwater::new(self.client(node).await))
    }

    async fn force_release(&self, name: &Key) {
        let nodes = self.nodes.lock().await;
        let path = format!("/v1/locks/{name}/release");
        eventually("the leader does it", async || {
            let leader = nodes.leader().await;
            let admin = nodes.server(leader).admin_addr()?;
            let answer = try_request(admin, "POST", &path).await;
            // Another one leads by now, or none: it was not done.
            let is_away = ["421", "503"].map(|status| format!("HTTP/1.1 {status}"));
            if is_away.iter().any(|status| answer.starts_with(status)) {
                return None;
            }
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            Some(())
        })
        .await;
    }

    async fn restart(&self) -> Memory {
        let mut nodes = self.nodes.lock().await;
        if nodes.file.mode() == ClusterMode::Volatile {
            // All at once would be its end.
            for slot in 0..3 {
                whole(&nodes).await;
                nodes.kill(slot);
                nodes.start(slot).await;
            }
            whole(&nodes).await;
            return Memory::Kept;
        }
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

/// Waits until any one node may lose its memory.
async fn whole(nodes: &Nodes) {
    eventually("all nodes vote and have caught up", async || {
        let leader = nodes.leader().await;
        let status = nodes.server(leader).cluster_status()?;
        status.whole.then_some(())
    })
    .await;
}
