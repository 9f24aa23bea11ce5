//! The list of locks, and one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use highwater_protocol::{Reply, Request};
use highwater_server::{AdminLimits, Server};
use serde_json::{Value, json};

use tokio::io::AsyncWriteExt as _;

use crate::client::*;
use crate::http::*;

/// Walks the list page by page and gives the keys of each page.
async fn walk(server: &Server, first: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut path = first.to_owned();
    loop {
        let page = get_json(server, &path).await;
        let locks = page["locks"].as_array().unwrap().iter();
        pages.push(
            locks
                .map(|lock| lock["key"].as_str().unwrap().to_owned())
                .collect(),
        );
        match &page["next"] {
            Value::String(next) => path.clone_from(next),
            other => {
                assert_eq!(*other, Value::Null);
                return pages;
            }
        }
    }
}

fn held_by(view: &Value) -> (&str, &str) {
    (
        view["token"].as_str().unwrap(),
        view["state"].as_str().unwrap(),
    )
}

#[tokio::test]
async fn a_walk_sees_every_key_once_in_order_and_only_those_of_the_prefix() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    let mut names: Vec<String> = (0..25).map(|number| format!("stock/{number}")).collect();
    names.extend(
        [
            "a",
            "stoc",
            "stock",
            "stock0",
            "z",
            "stock/a+b&c=%2F",
            "stock/\u{e9}",
        ]
        .map(Into::into),
    );
    for name in &names {
        client.take(name).await;
    }
    names.sort();
    assert_eq!(walk(&server, "/v1/locks").await, [names.clone()]);
    for limit in [1, 7, 31, 32, 33] {
        let pages = walk(&server, &format!("/v1/locks?limit={limit}")).await;
        let lengths: Vec<usize> = pages.iter().map(Vec::len).collect();
        let (last, full) = lengths.split_last().unwrap();
        assert!(full.iter().all(|length| *length == limit), "{lengths:?}");
        assert!((1..=limit).contains(last), "{lengths:?}");
        assert_eq!(pages.concat(), names, "by {limit}");
    }
    names.retain(|name| name.starts_with("stock/"));
    for limit in [1, 5, 27, 100] {
        let pages = walk(&server, &format!("/v1/locks?prefix=stock%2F&limit={limit}")).await;
        assert_eq!(pages.concat(), names, "by {limit}");
    }
    let after = get_json(&server, "/v1/locks?prefix=stock/&after=stock/%C3%A9").await;
    assert_eq!(after, json!({"locks": [], "next": null}));
    let before = get_json(&server, "/v1/locks?prefix=z&after=a").await;
    assert_eq!(before["locks"][0]["key"], "z");
}

#[tokio::test]
async fn a_lock_shows_its_holder_and_its_queue() {
    let server = server().await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    let token = one.take("apple,stock/pear").await.to_string();
    two.queue(&server, "apple").await;
    two.queue(&server, "apple,plum").await;

    let lock = get_json(&server, "/v1/locks/apple").await;
    assert_eq!((&lock["key"], &lock["queue"]), (&json!("apple"), &json!(2)));
    assert_eq!((&lock["slots"], &lock["taken"]), (&Value::Null, &json!(1)));
    let holder = &lock["holders"][0];
    assert_eq!(held_by(holder), (&*token, "held"));
    assert_eq!(holder["keys"], json!(["apple", "stock/pear"]));
    let expires = holder["expires_in_ms"].as_u64().unwrap();
    let held = holder["held_ms"].as_u64().unwrap();
    // The two are cut off to whole milliseconds.
    assert!((59_998..=60_000).contains(&(expires + held)), "{holder}");

    let encoded = get_json(&server, "/v1/locks/stock%2Fpear").await;
    assert_eq!(
        (&encoded["queue"], &encoded["holders"][0]["token"]),
        (&json!(0), &json!(token))
    );
    let queued = get_json(&server, "/v1/locks/plum").await;
    assert_eq!((&queued["queue"], &queued["taken"]), (&json!(1), &json!(0)));
    assert_eq!(queued["holders"], json!([]));
    let free = send(&server, "GET", "/v1/locks/other", "").await;
    free.problem(404);

    let list = get_json(&server, "/v1/locks").await;
    let of_list: Vec<(&str, u64)> = list["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| {
            (
                lock["key"].as_str().unwrap(),
                lock["queue"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(of_list, [("apple", 2), ("plum", 1), ("stock/pear", 0)]);
    assert_eq!(held_by(&list["locks"][0]["holder"]), (&*token, "held"));
    assert_eq!(list["locks"][1]["holder"], Value::Null);
}

#[tokio::test]
async fn the_holders_of_slots_come_in_pieces() {
    let mut limits = AdminLimits::default();
    limits.page = 2;
    let server = server_with(|_| {}, |admin| admin.limits(limits)).await;
    let mut client = Client::open(&server).await;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(client.take_slot("group", 7).await.to_string());
    }
    let mut shown = Vec::new();
    let mut from = 0;
    loop {
        let lock = get_json(&server, &format!("/v1/locks/group?from_slot={from}")).await;
        assert_eq!((&lock["slots"], &lock["taken"]), (&json!(7), &json!(5)));
        for holder in lock["holders"].as_array().unwrap() {
            assert_eq!(holder["slot"], json!(shown.len()));
            shown.push(holder["token"].as_str().unwrap().to_owned());
        }
        match lock["next_slot"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(shown, tokens);
    let list = get_json(&server, "/v1/locks").await;
    assert_eq!(list["locks"][0]["taken"], 5);
    assert_eq!(list["locks"][0]["holder"]["token"], tokens[0]);
}

#[tokio::test]
async fn what_makes_no_sense_is_told() {
    let server = server().await;
    let cases = [
        ("GET", "/v1/locks?limit=0", 400),
        ("GET", "/v1/locks?limit=1001", 400),
        ("GET", "/v1/locks?limit=-1", 400),
        ("GET", "/v1/locks?limit=all", 400),
        ("GET", "/v1/locks?pfx=a", 400),
        ("GET", "/v1/locks?after=", 400),
        ("GET", "/v1/locks?after=a%20b", 400),
        ("GET", "/v1/locks?prefix=a%20b", 400),
        ("GET", "/v1/locks?prefix=%ff", 400),
        ("GET", "/v1/locks/a%20b", 400),
        ("GET", "/v1/locks/%zz", 400),
        ("GET", "/v1/locks/a?from_slot=x", 400),
        ("GET", "/v1/locks/a?limit=1", 400),
        ("GET", "/v1/locks/", 404),
        ("GET", "/v1/locks/a/b", 404),
        ("GET", "/v1/locks//release", 404),
        ("GET", "/", 404),
        ("GET", "/v2/locks", 404),
        ("POST", "/v1/locks", 405),
        ("DELETE", "/v1/locks/a", 405),
        ("GET", "/v1/locks/a/release", 405),
        ("POST", "/metrics", 405),
        ("POST", "/healthz", 405),
    ];
    for (method, path, status) in cases {
        let answer = send(&server, method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_ne!(answer.problem(status), "", "{method} {path}");
    }
    let long = format!("/v1/locks/{}", "k".repeat(129));
    send(&server, "GET", &long, "").await.problem(400);
    let wrong = send(&server, "GET", "/v1/locks/a/release", "").await;
    assert_eq!(wrong.header("allow"), "POST");
}

/// Takes `count` keys over some connections, sixteen at a time.
async fn fill(server: &Server, count: usize) -> Client {
    let mut client = Client::open(server).await;
    for chunk in (0..count).collect::<Vec<_>>().chunks(16 * 256) {
        let mut sent = 0;
        for set in chunk.chunks(16) {
            let names: Vec<String> = set.iter().map(|number| format!("k{number:06}")).collect();
            let acquire = client.acquire(&names.join(","), 0, 60);
            client.send(&acquire).await;
            sent += 1;
        }
        for _ in 0..sent {
            granted(&client.reply().await);
        }
    }
    client
}

// One thread: whoever works does so alone, until it lets the others on.
#[tokio::test(flavor = "current_thread")]
async fn a_long_list_lets_the_locks_go_on() {
    const KEYS: usize = 200_000;
    const LISTED: usize = 40_000;
    let mut limits = AdminLimits::default();
    limits.page = LISTED;
    let server = server_with(|_| {}, |admin| admin.limits(limits)).await;
    let _holder = fill(&server, KEYS).await;
    assert_eq!(server.counts().held_keys, KEYS);

    let cycles = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut worker = Client::open(&server).await;
    let counted = (Arc::clone(&cycles), Arc::clone(&stop));
    let working = tokio::spawn(async move {
        while !counted.1.load(Ordering::Relaxed) {
            let token = worker.take("zebra").await;
            let released = worker.release("zebra", token).await;
            assert!(matches!(released, Reply::Released { .. }));
            counted.0.fetch_add(1, Ordering::Relaxed);
        }
    });
    eventually(|| cycles.load(Ordering::Relaxed) > 0).await;
    let mut stream = connect(&server).await;
    // All of them are held in sets, so none is an election; they are looked at all the same.
    for (list, listed) in [("locks", LISTED), ("leaders", 0)] {
        let path = format!("/v1/{list}?prefix=k&limit={LISTED}");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let before = cycles.load(Ordering::Relaxed);
        within(stream.write_all(request.as_bytes())).await.unwrap();
        // The first byte of an answer comes when all of it is made.
        within(stream.peek(&mut [0])).await.unwrap();
        let during = cycles.load(Ordering::Relaxed) - before;
        let page = read(&mut stream, false).await.unwrap().json();
        let locks = page[list].as_array().unwrap();
        assert_eq!(locks.len(), listed);
        for (number, lock) in locks.iter().enumerate() {
            assert_eq!(lock["key"], format!("k{number:06}"));
        }
        assert!(page["next"].is_string());
        // A list in one piece would let one or two on.
        assert!(
            during >= 40,
            "only {during} cycles while {list} were listed"
        );
    }
    stop.store(true, Ordering::Relaxed);
    within(working).await.unwrap();
}

#[tokio::test]
async fn a_walk_among_changes_sees_every_key_that_stays() {
    let server = server().await;
    let mut stable = Client::open(&server).await;
    let mut other = Client::open(&server).await;
    let kept: Vec<String> = (0..100)
        .map(|number| format!("{:03}", number * 2))
        .collect();
    for name in &kept {
        stable.take(name).await;
    }
    let mut seen = Vec::new();
    let mut path = "/v1/locks?limit=10".to_owned();
    let mut step = 1;
    loop {
        let page = get_json(&server, &path).await;
        for lock in page["locks"].as_array().unwrap() {
            seen.push(lock["key"].as_str().unwrap().to_owned());
        }
        // Keys come before and behind the place of the walk, and the one it stands on goes.
        for number in [1, step * 20 + 1, 199] {
            let id = other.id();
            let keys = keys(&format!("{number:03}"));
            let lease = highwater_protocol::LeaseSeconds::new(60).unwrap();
            other
                .ask(&Request::Acquire {
                    id,
                    keys,
                    wait_seconds: 0,
                    lease,
                })
                .await;
        }
        step += 1;
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut path),
            None => break,
        }
    }
    let mut sorted = seen.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted, seen, "in order, none twice");
    for name in &kept {
        assert!(seen.contains(name), "{name} is missing");
    }
}
