//! What is told to a subscriber, and subscribers that panic.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use highwater_client::Client;
use tokio::io::DuplexStream;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fake::{Fake, Manners};
use crate::{acquiring, domain, granted, released, wait};

/// Counts the events that tell of a panic, and all.
#[derive(Clone, Default)]
struct Listener {
    of_panics: Arc<AtomicU32>,
    all: Arc<AtomicU32>,
    panics: bool,
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("highwater")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.all.fetch_add(1, Ordering::SeqCst);
        if message.0.contains("panic") {
            self.of_panics.fetch_add(1, Ordering::SeqCst);
        }
        assert!(!self.panics, "the subscriber panics on purpose");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_dialer_that_panics_again_and_again_is_told_of_once_for_each_connection() {
    let listener = Listener::default();
    let _guard = tracing::subscriber::set_default(listener.clone());
    let dialer = || async { panic!("the dialer panics on purpose") };
    let builder = Client::builder("fake:1").dialer::<_, _, DuplexStream>(dialer);
    assert!(builder.connect().await.is_err());
    assert_eq!(listener.of_panics.load(Ordering::SeqCst), 2);
    // Each attempt is told of as one that failed.
    assert!(listener.all.load(Ordering::SeqCst) > 6);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_at_every_event_ends_no_connection() {
    let listener = Listener {
        panics: true,
        ..Listener::default()
    };
    let _guard = tracing::subscriber::set_default(listener.clone());
    let mut fake = Fake::start(Manners::Full(domain(1))).await;
    let (client, peers) = fake.client().await;
    for peer in peers {
        peer.close();
        fake.closed(peer.number).await;
    }
    let (first, second) = (fake.opened().await, fake.opened().await);
    let acquire = acquiring(&client, "k", wait(5_000));
    let (peer, request) = fake.request().await;
    peer.reply(granted(&request, 1));
    // In the background.
    drop(acquire.await.unwrap().unwrap());
    let (peer, request) = fake.request().await;
    peer.reply(released(&request));
    let heard = listener.all.load(Ordering::SeqCst);
    client.close().await;
    fake.closed(first.number).await;
    fake.closed(second.number).await;
    assert!(listener.all.load(Ordering::SeqCst) > heard);
    assert_eq!(client.stats().released, 1);
}
