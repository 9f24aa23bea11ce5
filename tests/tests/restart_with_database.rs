//! The lock server starts anew under an application that writes fenced: the new holder is never
//! refused in favour of the old one.
//!
//! A server forgets its locks, so after a restart two programs can believe that they hold one key.
//! What the database then admits is decided here: for a server in memory, which is a new domain, and
//! for a durable one, which is not.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, Ticket};
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Domain, DomainPolicy, Fence, FenceOptions, migrate};
use highwater_lock::Key;
use highwater_server::{AfterRestart, Server};
use highwater_tests::wait::eventually;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    folder: TempDir,
    durable: bool,
    pool: SqlitePool,
    address: SocketAddr,
    server: Option<Server>,
    client: Client,
    key: Key,
}

impl World {
    async fn new() -> Self {
        Self::with(false).await
    }

    async fn with(durable: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("shop.db"))
            .create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        migrate::sqlite::run(&pool).await.unwrap();
        sqlx::raw_sql("CREATE TABLE sales (holder TEXT NOT NULL) STRICT")
            .execute(&pool)
            .await
            .unwrap();
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = start(any_port, durable.then_some(folder.path()));
        let server = server.await.unwrap();
        let address = server.local_addr();
        let client = Client::builder(address).connect().await.unwrap();
        Self {
            folder,
            durable,
            pool,
            address,
            server: Some(server),
            client,
            key: Key::new("stock/apple").unwrap(),
        }
    }

    async fn acquire(&self) -> Ticket {
        let options = AcquireOptions::new()
            .wait(Duration::from_secs(20))
            .lease(Duration::from_secs(60));
        loop {
            match self.client.acquire(&self.key, options.clone()).await {
                Ok(ticket) => return ticket,
                // It was sent to the server that has just ended.
                Err(AcquireError::Indeterminate) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// The server is gone without a goodbye, and another one has its address.
    async fn restart(&mut self) {
        drop(self.server.take());
        let folder = self.durable.then_some(self.folder.path());
        let again = async || start(self.address, folder).await.ok();
        let server = eventually("the address is free again", PATIENCE, again).await;
        self.server = Some(server);
    }

    async fn sell(
        &self,
        fence: Fence,
        policy: DomainPolicy,
        holder: &'static str,
    ) -> Result<(), FenceError> {
        let fence = FenceOptions::new().domain_policy(policy).apply(fence);
        fence
            .transaction(&self.pool, async |tx| {
                sqlx::query("INSERT INTO sales (holder) VALUES (?1)")
                    .bind(holder)
                    .execute(&mut *tx)
                    .await?;
                Ok::<_, FenceError>(())
            })
            .await
    }

    async fn sales(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT holder FROM sales ORDER BY rowid")
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }
}

async fn start(
    listen: SocketAddr,
    folder: Option<&Path>,
) -> Result<Server, highwater_server::StartError> {
    let builder = match folder {
        Some(folder) => Server::builder().data_dir(folder.join("locks")),
        None => Server::builder().in_memory(),
    };
    // At once, so that the old holder still believes in its lease.
    let builder = builder.after_restart(AfterRestart::TrustFencing);
    builder.listen(listen).no_auth().start().await
}

#[tokio::test]
async fn with_adoption_the_new_holder_goes_on_and_the_old_one_is_refused() {
    let policy = DomainPolicy::AdoptHigher;
    let mut world = World::new().await;
    let old = world.acquire().await;
    world.sell(old.fence(), policy, "old").await.unwrap();
    for round in 0..3 {
        world.restart().await;
        let new = world.acquire().await;
        assert_ne!(new.domain(), old.domain());
        world.sell(new.fence(), policy, "new").await.unwrap();
        let refused = world.sell(old.fence(), policy, "old").await.unwrap_err();
        assert!(
            matches!(refused, FenceError::DomainMismatch { .. }),
            "round {round}: {refused:?}"
        );
        world.sell(new.fence(), policy, "new").await.unwrap();
    }
    assert_eq!(
        world.sales().await,
        ["old", "new", "new", "new", "new", "new", "new"]
    );
}

#[tokio::test]
async fn without_adoption_the_new_holder_is_told_of_the_domain_and_never_called_stale() {
    let policy = DomainPolicy::Strict;
    let mut world = World::new().await;
    let old = world.acquire().await;
    world.sell(old.fence(), policy, "old").await.unwrap();
    world.restart().await;
    let new = world.acquire().await;
    let refused = world.sell(new.fence(), policy, "new").await.unwrap_err();
    let FenceError::DomainMismatch { offered, found, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((offered, found), (new.domain(), old.domain()));
    // A key that the old domain never marked belongs to whoever comes first, and to no other.
    let other =
        |ticket: &Ticket| Fence::new(ticket.domain(), Key::new("other").unwrap(), ticket.token());
    world.sell(other(&new), policy, "new").await.unwrap();
    assert!(world.sell(other(&old), policy, "old").await.is_err());
}

#[tokio::test]
async fn for_clients_that_know_no_domain_the_new_holder_has_the_higher_token() {
    // The published client has one constant for every single server.
    let policy = DomainPolicy::Strict;
    let domain = Domain::named("a single server").unwrap();
    let mut world = World::new().await;
    let fence = |ticket: &Ticket| Fence::new(domain, Key::new("k").unwrap(), ticket.token());
    let mut old = world.acquire().await;
    world.sell(fence(&old), policy, "old").await.unwrap();
    for _ in 0..3 {
        world.restart().await;
        let new = world.acquire().await;
        world.sell(fence(&new), policy, "new").await.unwrap();
        let refused = world.sell(fence(&old), policy, "old").await.unwrap_err();
        let FenceError::Stale {
            offered, highest, ..
        } = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((offered, highest), (old.token(), new.token()));
        old = new;
    }
}

#[tokio::test]
async fn with_a_durable_server_nothing_is_adopted_and_the_old_holder_is_stale() {
    let policy = DomainPolicy::Strict;
    let mut world = World::with(true).await;
    let mut old = world.acquire().await;
    world.sell(old.fence(), policy, "old").await.unwrap();
    for _ in 0..3 {
        world.restart().await;
        // Nobody has written since: the old holder still may.
        world.sell(old.fence(), policy, "old").await.unwrap();
        let new = world.acquire().await;
        assert_eq!(new.domain(), old.domain());
        world.sell(new.fence(), policy, "new").await.unwrap();
        let refused = world.sell(old.fence(), policy, "old").await.unwrap_err();
        assert!(matches!(refused, FenceError::Stale { .. }), "{refused:?}");
        old = new;
    }
}
