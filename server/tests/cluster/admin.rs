//! What operators see and do at the nodes of a cluster.

use std::collections::BTreeMap;

use highwater_protocol::{Reply, Secret};
use highwater_server::config::Credentials;
use highwater_server::{ReloadError, Server};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::nodes::{LIMIT, Nodes, TOKEN, eventually};

/// The status and the body of an answer.
async fn send(server: &Server, method: &str, path: &str) -> (u16, String) {
    let asked = async {
        let mut stream = TcpStream::connect(server.admin_addr().unwrap())
            .await
            .unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(LIMIT, asked).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.parse().unwrap(), body.to_owned())
}

async fn json(server: &Server, method: &str, path: &str) -> (u16, Value) {
    let (status, body) = send(server, method, path).await;
    (status, serde_json::from_str(&body).unwrap())
}

async fn metric(server: &Server, series: &str) -> f64 {
    let (_, page) = send(server, "GET", "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in {page}"));
    line.trim().parse().unwrap()
}

#[tokio::test]
async fn a_force_release_is_agreed_on_and_only_the_leader_takes_it() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut holder = nodes.client(leader).await;
    let token = holder.lock("stock/apple", 0, 200).await;
    let mut waiter = nodes.client(leader).await;
    let waiting = waiter.ask("stock/apple", 60, 200).await;
    eventually("it queues", async || {
        (nodes.server(leader).counts().waiters == 1).then_some(())
    })
    .await;
    let path = "/v1/locks/stock%2Fapple/release";
    let follower = nodes.slots().find(|slot| *slot != leader).unwrap();
    let (status, problem) = json(nodes.server(follower), "POST", path).await;
    assert_eq!((status, &problem["leader"]), (421, &leader.into()));

    let (status, released) = json(nodes.server(leader), "POST", path).await;
    assert_eq!(status, 200, "{released}");
    assert_eq!(released["ended"][0]["token"], token.get().to_string());
    let burned: u64 = released["burned_token"].as_str().unwrap().parse().unwrap();
    let Reply::Granted { token: next, .. } = waiter.answer(waiting).await else {
        panic!("it is the next one's turn");
    };
    assert!(token.get() < burned && burned < next.get());
    assert_eq!(
        metric(nodes.server(leader), "highwater_force_releases_total").await,
        1.0
    );
    // All nodes know of it.
    let shown = next.get().to_string();
    eventually("the follower knows the next holder", async || {
        let path = "/v1/locks/stock%2Fapple";
        let (_, lock) = json(nodes.server(follower), "GET", path).await;
        (lock["holders"][0]["token"] == *shown).then_some(())
    })
    .await;
    let late = holder.release("stock/apple", token).await;
    assert!(matches!(late, Reply::NotHeld { .. }), "{late:?}");
}

#[tokio::test]
async fn without_a_majority_nobody_forces_anything_and_the_operator_is_told() {
    let mut nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    client.lock("k", 0, 200).await;
    for slot in 0..3 {
        if slot != leader {
            nodes.kill(slot);
        }
    }
    // It is proposed, or it is not any more; in both cases it is not said to be done.
    let (status, problem) = json(nodes.server(leader), "POST", "/v1/locks/k/release").await;
    assert!(matches!(status, 503 | 504), "{problem}");
    eventually("no leader is known", async || {
        let (status, state) = json(nodes.server(leader), "GET", "/readyz").await;
        (status == 503 && state["status"] == "no leader").then_some(())
    })
    .await;
    let (status, problem) = json(nodes.server(leader), "POST", "/v1/locks/k/release").await;
    assert_eq!(status, 503, "{problem}");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("nothing was done")
    );
    let (status, _) = send(nodes.server(leader), "GET", "/healthz").await;
    assert_eq!(status, 200);
    let (_, lock) = json(nodes.server(leader), "GET", "/v1/locks/k").await;
    assert_eq!(lock["taken"], 1);
}

#[tokio::test]
async fn every_node_shows_the_same_locks_and_its_own_part_in_the_cluster() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let mut client = nodes.client(leader).await;
    client.lock("jobs/close", 0, 200).await;
    client.lock("stock/apple", 0, 200).await;
    for slot in 0..3 {
        let server = nodes.server(slot);
        eventually("it has caught up", async || {
            (metric(server, "highwater_held_keys").await == 2.0).then_some(())
        })
        .await;
        let (_, list) = json(server, "GET", "/v1/locks?prefix=stock%2F").await;
        assert_eq!(list["locks"][0]["key"], "stock/apple", "{list}");
        let (_, list) = json(server, "GET", "/v1/leaders?prefix=jobs%2F").await;
        assert_eq!(list["leaders"][0]["name"], "jobs/close", "{list}");
        let (status, _) = send(server, "GET", "/readyz").await;
        assert_eq!(status, 200);
        let leads = f64::from(u8::from(slot == leader));
        for (series, expected) in [
            ("highwater_cluster_role{role=\"leader\"}", leads),
            ("highwater_cluster_role{role=\"follower\"}", 1.0 - leads),
            ("highwater_cluster_leader ", leader.into()),
            ("highwater_cluster_voters ", 3.0),
            ("highwater_cluster_dead ", 0.0),
            ("highwater_cluster_other_secrets ", 0.0),
            ("highwater_cluster_reigns_total ", leads),
        ] {
            assert_eq!(metric(server, series).await, expected, "{slot} {series}");
        }
        let last = metric(server, "highwater_cluster_last_entry ").await;
        assert!(last >= 2.0, "{last}");
    }
    let server = nodes.server(leader);
    assert!(metric(server, "highwater_cluster_batch_commands_count ").await >= 2.0);
    assert!(metric(server, "highwater_cluster_log_write_seconds_count ").await >= 2.0);
    for slot in nodes.slots().filter(|slot| *slot != leader) {
        let series = format!("highwater_cluster_behind_entries{{slot=\"{slot}\"}}");
        eventually("it is known that nobody is behind", async || {
            (metric(server, &series).await == 0.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_documentation_has_every_number_of_a_node_and_no_other() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let (_, page) = send(nodes.server(leader), "GET", "/metrics").await;
    let shown = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeMap<&str, &str> = shown.filter_map(|line| line.split_once(' ')).collect();
    let documented = include_str!("../../../docs/metrics.md");
    let rows = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        Some((cells.next()?, cells.next()?))
    });
    let documented: BTreeMap<&str, &str> = rows
        .filter(|(name, _)| name.starts_with("highwater_"))
        .collect();
    assert_eq!(documented, shown);
}

#[tokio::test]
async fn a_new_client_token_may_not_be_the_secret_of_the_nodes() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let files = nodes.data_dir(0);
    let secret = files.parent().unwrap().join("files/peer.secret");
    let secret = Secret::from_file_content(std::fs::read(secret).unwrap()).unwrap();
    let mut new = Credentials::default();
    new.client_tokens = vec![Secret::new(TOKEN).unwrap(), secret];
    let refused = nodes.server(leader).replace_credentials(&new);
    assert_eq!(refused, Err(ReloadError::SameSecret));
    new.client_tokens.pop();
    nodes.server(leader).replace_credentials(&new).unwrap();
}
