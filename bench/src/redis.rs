//! Locks on Redis, over a client that pipelines.
//!
//! Redis has no queue: whoever finds a key taken asks again at once, which is the most that it can give.
//! A release is a script that deletes the key if it still has its owner.

use std::sync::atomic::{AtomicU64, Ordering};

use highwater_client::Key;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, RedisError, Script, cmd, pipe};

use crate::target::LEASE;

/// As many connections as the lock server's client has to one address.
const CONNECTIONS: usize = 2;

/// How a lock is taken: `SET key owner NX PX lease`, and a token by `INCR`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The token once the key is taken, so a cycle has three round trips. The other way round a later
    /// holder could have the lower token.
    InTurn,
    /// Both in one message: two round trips, as on the lock server, and a number spent for each try.
    OneMessage,
}

pub(crate) struct Locks {
    way: Way,
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
    pub(crate) async fn connect(url: &str, way: Way) -> Result<Self, RedisError> {
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
            way,
            connections,
            next: AtomicU64::new(1),
            release,
        })
    }

    pub(crate) async fn acquire(&self, key: &Key) -> Result<Held, RedisError> {
        let owner = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.connection(owner);
        let (set, increment) = (set(key, owner), cmd_increment());
        loop {
            let token: Option<u64> = match self.way {
                Way::InTurn => {
                    let taken: Option<String> = set.query_async(&mut connection).await?;
                    match taken {
                        Some(_) => Some(increment.query_async(&mut connection).await?),
                        None => None,
                    }
                }
                Way::OneMessage => {
                    let mut both = pipe();
                    both.add_command(set.clone()).add_command(increment.clone());
                    let (taken, token): (Option<String>, u64) =
                        both.query_async(&mut connection).await?;
                    taken.map(|_| token)
                }
            };
            if let Some(token) = token {
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

fn set(key: &Key, owner: u64) -> Cmd {
    let lease = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
    let mut set = cmd("SET");
    set.arg(key.as_str())
        .arg(owner)
        .arg("NX")
        .arg("PX")
        .arg(lease);
    set
}

fn cmd_increment() -> Cmd {
    let mut increment = cmd("INCR");
    increment.arg(TOKEN);
    increment
}

/// A space cannot stand in the key of a lock.
const TOKEN: &str = "highwater-bench token";
