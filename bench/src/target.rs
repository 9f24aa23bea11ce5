//! What is measured, behind one face.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use highwater_client::{AcquireOptions, Builder, Client, Key, Release, Secret, Ticket};

use crate::BenchError;
use crate::load::Broken;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The server that keeps nothing, see [`echo`](crate::echo).
    Echo,
    /// The lock server.
    Highwater,
    /// Three nodes that keep their log on disk.
    Cluster,
    /// Three nodes that keep it in memory.
    #[serde(rename = "cluster-volatile")]
    ClusterVolatile,
    /// etcd, by its own lock service.
    Etcd,
    /// Redis, asked for the lock and then for a token.
    Redis,
    /// Redis, asked for both in one message.
    #[serde(rename = "redis-one-message")]
    RedisOneMessage,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Highwater => "highwater",
            Self::Cluster => "cluster",
            Self::ClusterVolatile => "cluster-volatile",
            Self::Etcd => "etcd",
            Self::Redis => "redis",
            Self::RedisOneMessage => "redis-one-message",
        })
    }
}

/// A target with its client connected.
pub struct Target {
    kind: Kind,
    client: Connected,
    /// How many keys it is to hold besides those of the load.
    held: u64,
}

enum Connected {
    Highwater(Client, AcquireOptions),
    #[cfg(feature = "redis")]
    Redis(crate::redis::Locks),
    Other(Box<dyn Locks>),
}

/// Another lock service.
pub trait Locks: Send + Sync {
    /// Waits for its turn and takes the lock of a key; leaves it to its lease if that fails.
    fn acquire<'a>(&'a self, key: &'a str) -> Answer<'a, OtherHeld>;
    /// Gives it back, and waits until that is certain.
    fn release(&self, held: OtherHeld) -> Answer<'_, ()>;
}

/// What comes of it, or what went wrong.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A lock of another service.
#[derive(Clone, Debug)]
pub struct OtherHeld {
    /// What rises from holder to holder.
    pub token: u64,
    /// How the service knows it.
    pub name: Vec<u8>,
}

/// A lock that is held.
pub(crate) enum Held {
    Highwater(Ticket),
    #[cfg(feature = "redis")]
    Redis(crate::redis::Held),
    Other(OtherHeld),
}

impl Held {
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Highwater(ticket) => ticket.token().get(),
            #[cfg(feature = "redis")]
            Self::Redis(held) => held.token,
            Self::Other(held) => held.token,
        }
    }
}

impl Target {
    /// The lock server or the echo, at `HOST:PORT`.
    ///
    /// # Errors
    /// [`BenchError::Connect`].
    pub async fn highwater(
        kind: Kind,
        address: &str,
        secret: Option<Secret>,
    ) -> Result<Self, BenchError> {
        let mut builder = Client::builder(address);
        if let Some(secret) = secret {
            builder = builder.token(secret);
        }
        Self::connect(kind, builder).await
    }

    /// What this client is to be connected to.
    ///
    /// # Errors
    /// [`BenchError::Connect`].
    pub async fn connect(kind: Kind, builder: Builder) -> Result<Self, BenchError> {
        let client = builder.connect().await;
        let client = client.map_err(|source| BenchError::Connect {
            target: kind,
            source: source.into(),
        })?;
        let options = AcquireOptions::new().wait(WAIT).lease(LEASE);
        Ok(Self {
            kind,
            client: Connected::Highwater(client, options),
            held: 0,
        })
    }

    /// Redis, at `redis://…`, in one of its two ways.
    ///
    /// # Errors
    /// [`BenchError::Connect`]; [`BenchError::NoRedis`] in a build without it.
    pub async fn redis(kind: Kind, url: &str) -> Result<Self, BenchError> {
        #[cfg(feature = "redis")]
        {
            use crate::redis::{Locks, Way};

            let way = match kind {
                Kind::RedisOneMessage => Way::OneMessage,
                _ => Way::InTurn,
            };
            let locks = Locks::connect(url, way).await;
            let locks = locks.map_err(|source| BenchError::Connect {
                target: kind,
                source: source.into(),
            })?;
            Ok(Self {
                kind,
                client: Connected::Redis(locks),
                held: 0,
            })
        }
        #[cfg(not(feature = "redis"))]
        {
            let _ = (kind, url);
            Err(BenchError::NoRedis)
        }
    }

    /// Another lock service.
    pub fn other(kind: Kind, locks: Box<dyn Locks>) -> Self {
        Self {
            kind,
            client: Connected::Other(locks),
            held: 0,
        }
    }

    /// Has the lock server hold so many other keys while it is measured. Any other target is left as it is.
    #[must_use]
    pub fn holding(mut self, keys: u64) -> Self {
        self.held = if self.kind == Kind::Highwater {
            keys
        } else {
            0
        };
        self
    }

    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Takes the keys that it is to hold. They end with its process, or an hour later.
    pub(crate) async fn fill(&self) -> Result<(), Broken> {
        let client = match &self.client {
            Connected::Highwater(client, _) => client,
            #[cfg(feature = "redis")]
            Connected::Redis(_) => return Ok(()),
            Connected::Other(_) => return Ok(()),
        };
        let take = async |number: u64| {
            let key = Key::new(format!("bench/held/{number}")).expect("a legal and short key");
            let options = AcquireOptions::new().wait(WAIT).lease(HELD_LEASE);
            let ticket = client.acquire(&key, options).await.map_err(failed)?;
            // It would be given back.
            std::mem::forget(ticket);
            Ok(())
        };
        let mut taken = stream::iter(0..self.held)
            .map(take)
            .buffer_unordered(FILLING);
        while let Some(taken) = taken.next().await {
            taken?;
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it keeps locks at all.
    pub(crate) fn locks(&self) -> bool {
        self.kind != Kind::Echo
    }

    pub(crate) async fn acquire(&self, key: &Key) -> Result<Held, Broken> {
        match &self.client {
            Connected::Highwater(client, options) => {
                let ticket = client.acquire(key, options.clone()).await;
                ticket.map(Held::Highwater).map_err(failed)
            }
            #[cfg(feature = "redis")]
            Connected::Redis(locks) => {
                let held = locks.acquire(key).await;
                held.map(Held::Redis).map_err(failed)
            }
            Connected::Other(locks) => {
                let held = locks.acquire(key.as_str()).await;
                held.map(Held::Other).map_err(Broken::Failed)
            }
        }
    }

    pub(crate) async fn release(&self, _key: &Key, held: Held) -> Result<(), Broken> {
        match held {
            Held::Highwater(ticket) => match ticket.release().await {
                Ok(Release::Released) => Ok(()),
                Ok(other) => Err(Broken::Failed(format!("the release answered {other:?}"))),
                Err(error) => Err(failed(error)),
            },
            #[cfg(feature = "redis")]
            Held::Redis(held) => match &self.client {
                Connected::Redis(locks) => match locks.release(_key, held).await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(Broken::Failed(
                        "the lock was gone before its release".into(),
                    )),
                    Err(error) => Err(failed(error)),
                },
                _ => Err(Broken::Failed("a lock of another target".into())),
            },
            Held::Other(held) => match &self.client {
                Connected::Other(locks) => locks.release(held).await.map_err(Broken::Failed),
                _ => Err(Broken::Failed("a lock of another target".into())),
            },
        }
    }

    /// Ends the client.
    pub async fn close(&self) {
        match &self.client {
            Connected::Highwater(client, _) => client.close().await,
            #[cfg(feature = "redis")]
            Connected::Redis(_) => {}
            Connected::Other(_) => {}
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

fn failed(error: impl std::error::Error) -> Broken {
    Broken::Failed(error.to_string())
}

/// The longest there is.
const HELD_LEASE: Duration = Duration::from_secs(3_600);
/// How many keys are asked for at once when many are to be held.
const FILLING: usize = 256;
const WAIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(60);
