//! What is measured, behind one face.

use std::fmt;
use std::time::Duration;

use highwater_client::{AcquireOptions, Client, Key, Release, Secret, Ticket};

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
    /// Redis.
    Redis,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Highwater => "highwater",
            Self::Redis => "redis",
        })
    }
}

/// A target with its client connected.
pub struct Target {
    kind: Kind,
    client: Connected,
}

enum Connected {
    Highwater(Client, AcquireOptions),
    #[cfg(feature = "redis")]
    Redis(crate::redis::Locks),
}

/// A lock that is held.
pub(crate) enum Held {
    Highwater(Ticket),
    #[cfg(feature = "redis")]
    Redis(crate::redis::Held),
}

impl Held {
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Highwater(ticket) => ticket.token().get(),
            #[cfg(feature = "redis")]
            Self::Redis(held) => held.token,
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
        let client = builder.connect().await;
        let client = client.map_err(|source| BenchError::Connect {
            target: kind,
            source: source.into(),
        })?;
        let options = AcquireOptions::new().wait(WAIT).lease(LEASE);
        Ok(Self {
            kind,
            client: Connected::Highwater(client, options),
        })
    }

    /// Redis, at `redis://…`.
    ///
    /// # Errors
    /// [`BenchError::Connect`]; [`BenchError::NoRedis`] in a build without it.
    pub async fn redis(url: &str) -> Result<Self, BenchError> {
        #[cfg(feature = "redis")]
        {
            let locks = crate::redis::Locks::connect(url).await;
            let locks = locks.map_err(|source| BenchError::Connect {
                target: Kind::Redis,
                source: source.into(),
            })?;
            Ok(Self {
                kind: Kind::Redis,
                client: Connected::Redis(locks),
            })
        }
        #[cfg(not(feature = "redis"))]
        {
            let _ = url;
            Err(BenchError::NoRedis)
        }
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
                Connected::Highwater(..) => Err(Broken::Failed("a lock of another target".into())),
            },
        }
    }

    /// Ends the client.
    pub async fn close(&self) {
        match &self.client {
            Connected::Highwater(client, _) => client.close().await,
            #[cfg(feature = "redis")]
            Connected::Redis(_) => {}
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

const WAIT: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(60);
