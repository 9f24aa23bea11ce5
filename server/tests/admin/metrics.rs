//! What is counted, under which names.

use std::collections::BTreeMap;

use highwater_protocol::{LeaseMillis, Reply, Request};
use highwater_server::Server;
use tokio::io::AsyncWriteExt as _;

use crate::client::*;
use crate::http::*;

#[tokio::test]
async fn the_documentation_has_every_name_and_no_other() {
    let page = get(&server().await, "/metrics").await;
    let shown = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown = shown.filter_map(|line| line.split_once(' '));
    let shown: BTreeMap<&str, &str> = shown.collect();

    let documented = include_str!("../../../docs/metrics.md");
    let rows = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `highwater_"))
        // Only nodes have those, and are compared with it too.
        .filter(|row| !row.starts_with("cluster_"));
    let rows = rows.map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let name = cells.next().unwrap().trim_end_matches('`');
        (format!("highwater_{name}"), cells.next().unwrap())
    });
    let rows: Vec<(String, &str)> = rows.collect();
    let documented: BTreeMap<&str, &str> = rows.iter().map(|(n, kind)| (&**n, *kind)).collect();
    assert_eq!(documented.len(), rows.len(), "a name stands there twice");
    assert_eq!(documented, shown);
}

#[tokio::test]
async fn every_label_of_the_documentation_is_there() {
    let page = get(&server().await, "/metrics").await;
    let documented = include_str!("../../../docs/metrics.md");
    let rows = documented
        .lines()
        .filter(|line| line.starts_with("| `highwater_"))
        .filter(|line| !line.starts_with("| `highwater_cluster_"));
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let Some((label, values)) = cells[3].split_once(": ") else {
            continue;
        };
        let prefix = format!("{name}{{{}=\"", label.trim_matches('`'));
        let lines = page.lines().filter_map(|line| line.strip_prefix(&*prefix));
        let shown: Vec<&str> = lines.map(|line| line.split('"').next().unwrap()).collect();
        let values = values.split(", ").map(|value| value.trim_matches('`'));
        assert_eq!(shown, values.collect::<Vec<_>>(), "{name}");
    }
}

async fn expect(server: &Server, counts: &[(&str, f64)]) {
    for (series, expected) in counts {
        assert_eq!(metric(server, series).await, *expected, "{series}");
    }
}

#[tokio::test]
async fn the_life_of_locks_is_counted() {
    let server = server().await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    let token = one.take("apple").await;
    let acquire = two.acquire("apple", 0, 10);
    assert!(matches!(two.ask(&acquire).await, Reply::TimedOut { .. }));
    two.queue(&server, "apple").await;
    expect(
        &server,
        &[("highwater_waiters", 1.0), ("highwater_held_keys", 1.0)],
    )
    .await;

    let released = one.release("apple", token).await;
    assert!(matches!(released, Reply::Released { .. }));
    let handed = granted(&two.reply().await);
    let stale = one.release("apple", token).await;
    assert!(matches!(stale, Reply::NotHeld { .. }));
    one.queue(&server, "apple").await;
    let released = two.release("apple", handed).await;
    assert!(matches!(released, Reply::Released { .. }));
    granted(&one.reply().await);
    let counts = [
        ("highwater_grants_total{way=\"at_once\"}", 1.0),
        ("highwater_grants_total{way=\"handed_over\"}", 2.0),
        ("highwater_queued_total", 2.0),
        ("highwater_not_acquired_total{reason=\"not_free\"}", 1.0),
        ("highwater_releases_total", 2.0),
        ("highwater_stale_releases_total", 1.0),
        ("highwater_requests_total{kind=\"acquire\"}", 4.0),
        ("highwater_requests_total{kind=\"release\"}", 3.0),
        ("highwater_wait_seconds_count", 2.0),
        ("highwater_queue_depth_bucket{le=\"1\"}", 2.0),
        ("highwater_handover_seconds_count", 2.0),
        ("highwater_held_keys", 1.0),
        ("highwater_holds", 1.0),
        ("highwater_waiters", 0.0),
        ("highwater_clients", 2.0),
        ("highwater_connections", 2.0),
        ("highwater_connections_accepted_total", 2.0),
        ("highwater_expiries_total", 0.0),
    ];
    expect(&server, &counts).await;
}

#[tokio::test]
async fn extensions_cancels_and_ends_are_counted() {
    let server = server().await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    let token = one.take("apple,pear").await;
    let mut extend = |names| Request::Extend {
        id: one.id(),
        keys: keys(names),
        token,
        lease: LeaseMillis::new(1_000_000).unwrap(),
    };
    let (good, stale) = (extend("apple,pear"), extend("apple"));
    one.ask(&good).await;
    one.ask(&stale).await;
    one.release("apple,pear", token).await;
    one.ask(&good).await;

    let short = one.acquire("plum", 0, 1);
    granted(&one.ask(&short).await);
    let waiting = two.acquire("plum", 250, 1);
    two.send(&waiting).await;
    // The one whose lease ends never hears of it; the next one does.
    granted(&two.reply().await);
    one.queue(&server, "plum").await;
    let id = one.id();
    let acquire = highwater_protocol::RequestNumber::new(id.get() - 1).unwrap();
    one.send(&Request::Cancel { id, acquire }).await;
    one.reply().await;
    one.reply().await;
    let counts = [
        ("highwater_extensions_total", 1.0),
        ("highwater_stale_extensions_total", 1.0),
        ("highwater_errors_total{code=\"group_mismatch\"}", 1.0),
        ("highwater_requests_total{kind=\"extend\"}", 3.0),
        ("highwater_requests_total{kind=\"cancel\"}", 1.0),
        ("highwater_not_acquired_total{reason=\"cancelled\"}", 1.0),
        ("highwater_expiries_total", 1.0),
        ("highwater_handover_seconds_count", 1.0),
    ];
    expect(&server, &counts).await;
}

#[tokio::test]
async fn every_limit_has_a_busy_of_its_own() {
    let limits = |limits: &mut highwater_server::Limits| {
        limits.locks.keys = 5;
        limits.locks.waiters = 4;
        limits.locks.waiters_per_key = 2;
        limits.locks.waiters_per_connection = 3;
        limits.connections = 3;
    };
    let server = server_with(limits, |admin| admin).await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    one.take("a").await;
    one.take("b").await;
    one.take("c,d,e").await;
    async fn is_busy(client: &mut Client, key: &str) {
        let acquire = client.acquire(key, 250, 1);
        assert!(matches!(client.ask(&acquire).await, Reply::Busy { .. }));
    }
    is_busy(&mut one, "f").await;
    one.queue(&server, "a").await;
    one.queue(&server, "a").await;
    is_busy(&mut two, "a").await;
    one.queue(&server, "b").await;
    is_busy(&mut one, "b").await;
    two.queue(&server, "c").await;
    is_busy(&mut two, "d").await;
    let third = Client::open(&server).await;
    let mut fourth = tokio::net::TcpStream::connect(server.local_addr())
        .await
        .unwrap();
    let hello = within(tokio::io::AsyncReadExt::read_u8(&mut fourth)).await;
    assert!(hello.is_err(), "closed before the hello");
    let counts = [
        ("highwater_busy_total{reason=\"keys\"}", 1.0),
        ("highwater_busy_total{reason=\"waiters_per_key\"}", 1.0),
        (
            "highwater_busy_total{reason=\"waiters_per_connection\"}",
            1.0,
        ),
        ("highwater_busy_total{reason=\"waiters\"}", 1.0),
        ("highwater_queue_depth_bucket{le=\"1\"}", 3.0),
        ("highwater_queue_depth_bucket{le=\"2\"}", 4.0),
        ("highwater_connections_refused_total", 1.0),
        ("highwater_limit{of=\"keys\"}", 5.0),
        ("highwater_limit{of=\"waiters\"}", 4.0),
        ("highwater_limit{of=\"waiters_per_key\"}", 2.0),
        ("highwater_limit{of=\"waiters_per_connection\"}", 3.0),
        ("highwater_limit{of=\"connections\"}", 3.0),
    ];
    expect(&server, &counts).await;
    drop(third);
}

#[tokio::test]
async fn connections_are_counted_by_how_they_end() {
    let server = server_with(
        |limits| {
            limits.handshake_time = std::time::Duration::from_millis(200);
            limits.frame_time = std::time::Duration::from_millis(200);
        },
        |admin| admin,
    )
    .await;
    let dial = async || {
        let stream = tokio::net::TcpStream::connect(server.local_addr()).await;
        stream.unwrap()
    };
    let silent = dial().await;
    let mut stranger = dial().await;
    stranger.write_all(&[7; 32]).await.unwrap();
    let mut malformed = Client::open(&server).await;
    malformed.send_bytes(b"\0\0\0").await;
    let mut unfinished = Client::open(&server).await;
    unfinished.send_bytes(b"A").await;
    drop(Client::open(&server).await);
    for reason in [
        "setup_time",
        "wrong_secret",
        "malformed",
        "frame_time",
        "by_peer",
    ] {
        let series = format!("highwater_connections_closed_total{{reason=\"{reason}\"}}");
        until(async || metric(&server, &series).await == 1.0).await;
    }
    expect(&server, &[("highwater_connections", 0.0)]).await;
    drop((silent, stranger, malformed, unfinished));
}
