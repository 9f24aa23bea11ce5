//! A whole process that leads and is stopped past its lease.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use highwater_client::Client;
use highwater_client::leader::{Highwater, LeaderElector, LeaderOptions, LeaderResult};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::world::World;

const SERVER: &str = "HIGHWATER_TEST_FROZEN_LEADER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_leader_is_told_when_it_wakes_and_its_action_does_not_go_on() {
    // This test is also the program that is frozen.
    if let Ok(address) = std::env::var(SERVER) {
        return lead(&address).await;
    }
    let world = World::highwater().await;
    let options = world
        .options()
        .wait(Duration::from_secs(20))
        .auto_extend(true);
    let successor = world.elector("b", options).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg("frozen::a_frozen_leader_is_told_when_it_wakes_and_its_action_does_not_go_on")
        .env(SERVER, world.address().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = |word: &str| loop {
        let line = told.next().expect("it ended early").unwrap();
        if let Some((_, rest)) = line.split_once(word) {
            return rest.to_owned();
        }
    };
    let token: u64 = next("led by ").parse().unwrap();
    kill(process, Signal::SIGSTOP).unwrap();
    let guard = successor.try_acquire("job").await.unwrap().unwrap();
    assert!(guard.token().get() > token);
    kill(process, Signal::SIGCONT).unwrap();
    assert_eq!(
        next("result: "),
        "lost: Expired, cut off: true, leader: false"
    );
    assert!(child.wait().unwrap().success());
    assert!(guard.check().is_ok());
}

async fn lead(address: &str) {
    let client = Client::builder(address).connect().await.unwrap();
    let options = LeaderOptions::builder()
        .lease(Duration::from_secs(2))
        .auto_extend(true);
    let elector = LeaderElector::new(Highwater::new(client), options.build().unwrap());
    let level = elector.watch("job").unwrap();
    let result = elector.run_if_leader_result("job", |leader| async move {
        // Alone in its line, whatever the test harness has begun to print.
        println!("\nled by {}", leader.token().unwrap());
        // It is stopped at any moment from now on, so first it waits.
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if leader.check().is_err() {
                break;
            }
        }
        // Only if it goes on for a step after the loss.
        Ok::<(), ()>(())
    });
    let LeaderResult::LeaseLost {
        reason, outcome, ..
    } = result.await.unwrap()
    else {
        panic!("the lease is lost");
    };
    let leader = level.is_leader();
    println!(
        "\nresult: lost: {reason:?}, cut off: {}, leader: {leader}",
        outcome.is_none()
    );
}
