//! One line for every connection that does something wrong, and no secret in any.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use highwater_protocol::Secret;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::wire::*;

/// Keeps what is logged on its thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    fn lines(&self) -> Vec<(Level, String)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn warnings(&self) -> Vec<String> {
        let lines = self.lines().into_iter();
        let warnings = lines.filter(|(level, _)| *level <= Level::WARN);
        warnings.map(|(_, line)| line).collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("highwater")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = *event.metadata().level();
        let lines = self.0.lock();
        lines
            .unwrap_or_else(PoisonError::into_inner)
            .push((level, line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What a peer does, and what must stand in the line about it.
enum Act {
    Sends(Vec<u8>),
    Answers(Vec<u8>),
}

#[tokio::test]
async fn whoever_breaks_the_protocol_is_logged_with_the_reason() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let mut long_key = acquire(1, 0, 60, "k");
    long_key[1..3].copy_from_slice(&139_u16.to_be_bytes());
    let mut left_over = acquire_set(1, 0, 60, &["a", "b"]);
    left_over.push(0);
    left_over[2] += 1;
    let mut within = release_set(1, 7, &["a", "bc"]);
    within.pop();
    within[2] -= 1;
    let mut not_utf8 = query(1, 0, "key");
    not_utf8[15] = 0xff;
    let acts = [
        (Act::Sends(b"z".to_vec()), "there is no opcode 0x7a"),
        (
            Act::Sends(long_key),
            "a body of 139 bytes is not possible for opcode 0x41",
        ),
        (
            Act::Sends(left_over),
            "bytes are left over behind the last field",
        ),
        (Act::Sends(within), "the body ends within a field"),
        (Act::Sends(domain(0)), "zero is not a request number"),
        (Act::Sends(not_utf8), "a key is not UTF-8"),
        (
            Act::Sends([acquire(1, 60, 60, "held"), query(1, 0, "k")].concat()),
            "a request id was used again before its reply",
        ),
        (Act::Answers(vec![7; 32]), "wrong secret"),
    ];
    for (act, reason) in acts {
        // Each with a server of its own, so that no line is left out for being one of many.
        let server = server().await;
        let mut holder = Wire::open(&server).await;
        holder.take(1, "held").await;
        let before = log.warnings().len();
        match act {
            Act::Sends(bytes) => {
                let mut wire = Wire::open(&server).await;
                wire.send(&bytes).await;
                wire.expect_end().await;
            }
            Act::Answers(answer) => {
                let mut wire = Wire::dial(server.local_addr()).await;
                wire.read::<28>().await.expect("a hello");
                wire.send(&answer).await;
                assert_eq!(wire.read::<1>().await, Some([0]));
                wire.expect_end().await;
            }
        }
        eventually(|| log.warnings().len() > before).await;
        let warnings = log.warnings();
        assert_eq!(warnings.len(), before + 1, "one line: {warnings:?}");
        let line = &warnings[before];
        assert!(line.contains(reason), "{reason}: {line}");
        assert!(line.contains("peer=127.0.0.1:"), "{line}");
    }
}

#[tokio::test]
async fn no_secret_is_in_any_line() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let secret = Secret::new("a very secret client token").expect("a secret");
    let server = builder().client_token(secret.clone()).start().await;
    let server = server.expect("starts");
    let mut good = Wire::dial(server.local_addr()).await;
    assert_eq!(good.log_in(&secret).await, Some(1));
    good.take(1, "apple").await;
    let mut bad = Wire::dial(server.local_addr()).await;
    bad.read::<28>().await.expect("a hello");
    bad.send(b"another very secret client token").await;
    assert_eq!(bad.read::<1>().await, Some([0]));
    bad.expect_end().await;
    eventually(|| log.warnings().len() == 1).await;
    within(server.shutdown()).await;
    let lines = log.lines();
    assert!(lines.len() > 1, "something was logged: {lines:?}");
    for (_, line) in lines {
        assert!(!line.contains("very secret"), "{line}");
    }
}
