//! Locks on Redis as they are commonly done, over a client that pipelines.
//!
//! `SET key owner NX PX lease` and `INCR` for the token travel in one message, and a script deletes the
//! key if it still has its owner. So a cycle has two round trips, as on the lock server. Redis has no
//! queue: whoever finds a key taken asks again at once, which is the most that it can give.

use std::sync::atomic::{AtomicU64, Ordering};

use highwater_client::Key;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, Script, pipe};

use crate::target::LEASE;

/// As many connections as the lock server's client has to one address.
const CONNECTIONS: usize = 2;

pub(crate) struct Locks {
    connections: [MultiplexedConnection; CONNECTIONS],
    /// Numbers the owners.
    next: AtomicU64,
    release: Script,
}

pub(crate) struct Held {
    pub(crate) token: u64,
    owner: u64,
}

impl Locks {
    pub(crate) async fn connect(url: &str) -> Result<Self, RedisError> {
        let client = Client::open(url)?;
        let connections = [
            client.get_multiplexed_async_connection().await?,
            client.get_multiplexed_async_connection().await?,
        ];
        let release = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        );
        release.load_async(&mut connections[0].clone()).await?;
        Ok(Self {
            connections,
            next: AtomicU64::new(1),
            release,
        })
    }

    pub(crate) async fn acquire(&self, key: &Key) -> Result<Held, RedisError> {
        let owner = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.connection(owner);
        let lease = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        loop {
            let (set, token): (Option<String>, u64) = pipe()
                .cmd("SET")
                .arg(key.as_str())
                .arg(owner)
                .arg("NX")
                .arg("PX")
                .arg(lease)
                .cmd("INCR")
                .arg(TOKEN)
                .query_async(&mut connection)
                .await?;
            if set.is_some() {
                return Ok(Held { token, owner });
            }
            tokio::task::yield_now().await;
        }
    }

    /// Whether it was still held.
    pub(crate) async fn release(&self, key: &Key, held: Held) -> Result<bool, RedisError> {
        let mut connection = self.connection(held.owner);
        let mut release = self.release.key(key.as_str());
        release.arg(held.owner).invoke_async(&mut connection).await
    }

    fn connection(&self, owner: u64) -> MultiplexedConnection {
        let index = usize::from(owner % 2 == 1);
        self.connections[index].clone()
    }
}

/// A space cannot stand in the key of a lock.
const TOKEN: &str = "highwater-bench token";
