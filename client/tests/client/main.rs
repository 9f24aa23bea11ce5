//! The client against a server that follows a script, also where real servers never would.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod acquire;
#[cfg(feature = "blocking")]
mod blocking;
mod cancel;
mod close;
mod connect;
mod extend;
mod fake;
mod hang;
mod leader;
mod model;
mod moved;
mod nodes;
mod release;
mod steps;
mod timed;
#[cfg(feature = "tracing")]
mod told;

use std::time::Duration;

use highwater_client::{
    AcquireError, AcquireOptions, Client, Domain, FencingToken, Key, KeySet, Ticket,
};
use highwater_protocol::{Reply, Request, RequestNumber, Shape};
use tokio::task::JoinHandle;

use fake::{Fake, Manners, Peer};

fn domain(number: u8) -> Domain {
    Domain::from_bytes([number; 32])
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn keys(names: &[&str]) -> KeySet {
    KeySet::new(names.iter().map(|name| Key::new(name).unwrap())).unwrap()
}

fn wait(milliseconds: u64) -> AcquireOptions {
    AcquireOptions::new().wait(Duration::from_millis(milliseconds))
}

fn granted(request: &Request, number: u64) -> Reply {
    match request {
        Request::Acquire { id, keys, .. } => Reply::Granted {
            id: *id,
            shape: Shape::of(keys),
            token: token(number),
        },
        Request::AcquireTimed { id, .. } => Reply::GrantedTimed {
            id: *id,
            token: token(number),
            waited_ms: 0,
        },
        Request::AcquireSlot { id, slots, .. } => Reply::GrantedSlot {
            id: *id,
            token: token(number),
            waited_ms: 0,
            slot: slots.get() - 1,
        },
        other => panic!("not an acquire: {other:?}"),
    }
}

fn released(request: &Request) -> Reply {
    match request {
        Request::Release { id, keys, .. } => Reply::Released {
            id: *id,
            shape: Shape::of(keys),
        },
        Request::Retain { id, .. } => Reply::Retained { id: *id },
        other => panic!("not a release: {other:?}"),
    }
}

/// The keys of an acquire, as text.
#[track_caller]
fn acquired(request: &Request) -> String {
    match request {
        Request::Acquire { keys, .. } | Request::AcquireTimed { keys, .. } => keys.to_string(),
        Request::AcquireSlot { name, .. } => name.to_string(),
        other => panic!("not an acquire: {other:?}"),
    }
}

fn cancel_of(request: &Request) -> (RequestNumber, RequestNumber) {
    match request {
        Request::Cancel { id, acquire } => (*id, *acquire),
        other => panic!("not a cancel: {other:?}"),
    }
}

fn release_of(request: &Request) -> (String, u64) {
    match request {
        Request::Release { keys, token, .. } | Request::Retain { keys, token, .. } => {
            (keys.to_string(), token.get())
        }
        other => panic!("not a release: {other:?}"),
    }
}

type Acquiring = JoinHandle<Result<Ticket, AcquireError>>;

fn acquiring(client: &Client, name: &str, options: AcquireOptions) -> Acquiring {
    let client = client.clone();
    let keys = keys(&[name]);
    tokio::spawn(async move { client.acquire_set(&keys, options).await })
}

/// A polite server, its client, and a ticket for `name` under token 1.
async fn ticket(name: &str) -> (Fake, Client, [Peer; 2], Ticket) {
    let mut fake = Fake::start(Manners::Polite(domain(1))).await;
    let (client, peers) = fake.client().await;
    let acquire = acquiring(&client, name, wait(5_000));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 1));
    let ticket = acquire.await.unwrap().unwrap();
    (fake, client, peers, ticket)
}
