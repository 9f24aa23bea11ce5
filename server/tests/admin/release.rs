//! Force-release.

use std::io;
use std::sync::{Arc, Mutex};

use highwater_protocol::Reply;
use highwater_server::AdminToken;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::client::*;
use crate::http::*;

async fn release(server: &highwater_server::Server, key: &str) -> serde_json::Value {
    let answer = send(server, "POST", &format!("/v1/locks/{key}/release"), "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn number(token: &serde_json::Value) -> u64 {
    token.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_next_one_gets_a_token_above_the_burned_one_and_the_old_one_is_out() {
    let server = server().await;
    let mut old = Client::open(&server).await;
    let mut next = Client::open(&server).await;
    let token = old.take("apple").await;
    next.queue(&server, "apple").await;

    let released = release(&server, "apple").await;
    let burned = number(&released["burned_token"]);
    assert!(burned > token.get(), "{released}");
    assert_eq!(released["key"], "apple");
    assert_eq!(released["domain"], server.domain().to_string());
    assert_eq!(
        released["ended"],
        json!([{"token": token.to_string(), "slot": null, "keys": ["apple"]}])
    );
    assert_eq!(released["fence_keys"], json!(["apple"]));

    let handed = granted(&next.reply().await);
    assert!(handed.get() > burned);
    let late = old.release("apple", token).await;
    assert!(matches!(late, Reply::NotHeld { .. }), "{late:?}");
    assert_eq!(metric(&server, "highwater_force_releases_total").await, 1.0);
}

#[tokio::test]
async fn a_set_ends_as_a_whole() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    client.take("apple,stock/pear").await;
    client.take("plum").await;
    let released = release(&server, "stock%2Fpear").await;
    assert_eq!(released["fence_keys"], json!(["apple", "stock/pear"]));
    assert_eq!(server.counts().held_keys, 1);
    client.take("apple").await;
}

#[tokio::test]
async fn all_slots_of_a_name_end_together() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(client.take_slot("group", 3).await.get());
    }
    let released = release(&server, "group").await;
    assert_eq!(released["fence_keys"], json!(["group 0", "group 1"]));
    let slots = released["ended"].as_array().unwrap().iter();
    let slots: Vec<(u64, u64)> = slots
        .map(|hold| (hold["slot"].as_u64().unwrap(), number(&hold["token"])))
        .collect();
    assert_eq!(slots, [(0, tokens[0]), (1, tokens[1])]);
    assert!(number(&released["burned_token"]) > tokens[1]);
    assert_eq!(server.counts().held_keys, 0);
}

#[tokio::test]
async fn a_token_is_burned_even_if_nobody_holds_the_key() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    let before = client.take("apple").await.get();
    let released = release(&server, "free").await;
    let burned = number(&released["burned_token"]);
    assert!(burned > before);
    assert_eq!(
        (&released["ended"], &released["fence_keys"]),
        (&json!([]), &json!(["free"]))
    );
    let after = client.take("pear").await.get();
    assert!(after > burned);
    let again = number(&release(&server, "free").await["burned_token"]);
    assert!(again > after);
}

#[tokio::test]
async fn a_release_while_the_server_drains_lets_it_end() {
    let server = server_with(|limits| limits.drain_time = PATIENCE, |admin| admin).await;
    let mut holder = Client::open(&server).await;
    holder.take("apple").await;
    let mut admin = connect(&server).await;
    let shutdown = tokio::spawn(server.shutdown());
    until(async || ask(&mut admin, "GET", "/readyz", "").await.status == 503).await;
    let released = ask(&mut admin, "POST", "/v1/locks/apple/release", "").await;
    assert_eq!(released.status, 200);
    within(shutdown).await.unwrap();
}

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_log_says_who_did_it_and_to_what_and_has_no_secret() {
    const SECRET: &str = "0123456789abcdef-secret";
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let token = AdminToken::from_file_content("alice", SECRET).unwrap();
    let server = server_with(|_| {}, |admin| admin.token(token)).await;
    let mut holder = Client::open(&server).await;
    let ended = holder.take("apple").await;

    let mut stream = connect(&server).await;
    let peer = stream.local_addr().unwrap();
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let path = "/v1/locks/apple/release";
    let answer = ask(&mut stream, "POST", path, &bearer).await;
    let burned = number(&answer.json()["burned_token"]);
    let wrong = format!("Authorization: Bearer {SECRET}0\r\n");
    ask(&mut stream, "POST", path, &wrong).await.problem(401);

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("force-release by an operator"));
    let line = line.unwrap_or_else(|| panic!("no such line in:\n{text}"));
    let parts = [
        " WARN ".to_owned(),
        format!("peer={peer}"),
        "operator=\"alice\"".to_owned(),
        "key=apple".to_owned(),
        format!("burned={burned}"),
        format!("ended=[{ended}]"),
    ];
    for part in parts {
        assert!(line.contains(&part), "no {part} in {line}");
    }
    assert!(text.contains("admin request refused"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}
