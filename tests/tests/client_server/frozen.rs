//! A whole process that is stopped past its lease.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use highwater_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{client_of, key, server, wait};

const SERVER: &str = "HIGHWATER_TEST_FROZEN_SERVER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_finds_its_kept_ticket_lost_when_it_wakes() {
    // This test is also the program that is frozen.
    if let Ok(address) = std::env::var(SERVER) {
        return holder(&address).await;
    }
    let server = server().await;
    let client = client_of(&server).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg("frozen::a_frozen_process_finds_its_kept_ticket_lost_when_it_wakes")
        .env(SERVER, server.local_addr().to_string())
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
    let token: u64 = next("held by ").parse().unwrap();
    kill(process, Signal::SIGSTOP).unwrap();
    // It does not extend any more, so its lease ends.
    let successor = client.acquire(&key("k"), wait(20_000)).await.unwrap();
    assert!(successor.token().get() > token);
    kill(process, Signal::SIGCONT).unwrap();
    assert_eq!(next("lost: "), "Expired, valid: false");
    assert!(child.wait().unwrap().success());
    assert!(successor.is_valid());
}

async fn holder(address: &str) {
    let client = Client::builder(address).connect().await.unwrap();
    let lease = Duration::from_secs(1);
    let options = wait(0).lease(lease).auto_extend(Duration::MAX);
    let ticket = client.acquire(&key("k"), options).await.unwrap();
    // Alone in its line, whatever the test harness has begun to print.
    println!("\nheld by {}", ticket.token());
    let lost = ticket.lost().await;
    println!("\nlost: {lost:?}, valid: {}", ticket.is_valid());
}
