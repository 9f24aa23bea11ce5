//! The list of elections.

use highwater_server::AdminLimits;
use serde_json::{Value, json};

use crate::client::*;
use crate::http::*;

fn names(page: &Value) -> Vec<&str> {
    let leaders = page["leaders"].as_array().unwrap().iter();
    leaders
        .map(|election| election["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn what_is_held_as_elections_hold_it_is_shown_with_its_leaders() {
    let server = server().await;
    let mut one = Client::open(&server).await;
    let mut two = Client::open(&server).await;
    let single = one.take("close/eu").await.to_string();
    let mut group = Vec::new();
    for _ in 0..2 {
        group.push(one.take_slot("mail", 3).await.to_string());
    }
    two.queue(&server, "close/eu").await;
    // A set is no election, and a name that is only queued for has no leader.
    one.take("a,b").await;
    two.queue(&server, "a,wanted").await;

    let page = get_json(&server, "/v1/leaders").await;
    assert_eq!(names(&page), ["close/eu", "mail"]);
    assert_eq!(page["next"], Value::Null);
    let election = &page["leaders"][0];
    assert_eq!(
        (
            &election["slots"],
            &election["leading"],
            &election["candidates"]
        ),
        (&Value::Null, &json!(1), &json!(1))
    );
    let leader = &election["leaders"][0];
    assert_eq!(
        (
            &leader["token"],
            &leader["slot"],
            &leader["fence_key"],
            &leader["state"]
        ),
        (
            &json!(single),
            &Value::Null,
            &json!("close/eu"),
            &json!("leading")
        )
    );
    let (led, left) = (&leader["led_ms"], &leader["expires_in_ms"]);
    let lease = led.as_u64().unwrap() + left.as_u64().unwrap();
    assert!((59_998..=60_000).contains(&lease), "{leader}");
    let election = &page["leaders"][1];
    assert_eq!(
        (&election["slots"], &election["leading"], &election["more"]),
        (&json!(3), &json!(2), &Value::Null)
    );
    for (slot, token) in group.iter().enumerate() {
        let leader = &election["leaders"][slot];
        assert_eq!(
            (&leader["token"], &leader["slot"], &leader["fence_key"]),
            (&json!(token), &json!(slot), &json!(format!("mail {slot}")))
        );
    }
}

#[tokio::test]
async fn a_walk_sees_every_election_once_and_can_be_kept_to_a_prefix() {
    let mut limits = AdminLimits::default();
    limits.page = 10;
    let server = server_with(|_| {}, |admin| admin.limits(limits)).await;
    let mut client = Client::open(&server).await;
    let mut expected: Vec<String> = (0..25).map(|number| format!("jobs/{number:02}")).collect();
    for name in &expected {
        client.take(name).await;
    }
    client.take("jobs/03+a,jobs/03+b,jobs/03+c").await;
    client.take("other").await;
    for (first, all) in [
        ("/v1/leaders?limit=4", true),
        ("/v1/leaders?limit=4&prefix=jobs%2F", false),
    ] {
        if all {
            expected.push("other".to_owned());
        } else {
            expected.pop();
        }
        let (mut seen, mut path) = (Vec::new(), first.to_owned());
        loop {
            let page = get_json(&server, &path).await;
            assert!(names(&page).len() <= 4);
            seen.extend(names(&page).into_iter().map(str::to_owned));
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut path),
                None => break,
            }
            assert!(path.starts_with(first), "{path}");
        }
        assert_eq!(seen, expected, "{first}");
    }
}

#[tokio::test]
async fn a_large_group_is_told_in_pieces() {
    let server = server().await;
    let mut client = Client::open(&server).await;
    for _ in 0..20 {
        client.take_slot("a/group", 100).await;
    }
    let page = get_json(&server, "/v1/leaders").await;
    let group = &page["leaders"][0];
    assert_eq!(
        (
            &group["leading"],
            group["leaders"].as_array().unwrap().len()
        ),
        (&json!(20), 16)
    );
    let more = get_json(&server, group["more"].as_str().unwrap()).await;
    let slots: Vec<u64> = more["holders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|holder| holder["slot"].as_u64().unwrap())
        .collect();
    assert_eq!(slots, [16, 17, 18, 19]);
}

#[tokio::test]
async fn what_makes_no_sense_is_told() {
    let server = server().await;
    for (method, path, status) in [
        ("GET", "/v1/leaders?limit=0", 400),
        ("GET", "/v1/leaders?limit=1001", 400),
        ("GET", "/v1/leaders?slot=1", 400),
        ("GET", "/v1/leaders?prefix=a%20b", 400),
        ("GET", "/v1/leaders/a", 404),
        ("POST", "/v1/leaders", 405),
    ] {
        send(&server, method, path, "").await.problem(status);
    }
}
