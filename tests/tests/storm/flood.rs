//! Ten thousand connections, and thousands that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clients::Clients;
use crate::leaks::{allow_files, open_files};
use crate::wire::*;

const MANY: usize = 10_000;

pub(crate) async fn ten_thousand_connections() {
    allow_files(MANY + 200);
    let server = server_with(|limits| {
        limits.connections = MANY;
        limits.handshake_time = PATIENCE;
    })
    .await;
    let mut holder = Wire::open(&server).await;
    holder.take(1, "wanted").await;
    let files = open_files();

    let began = Instant::now();
    let clients = Clients::start(server.local_addr(), MANY - 1).await;
    println!("{MANY} connections in {:?}", began.elapsed());
    eventually(|| server.counts().waiters == MANY / 10).await;
    let counts = server.counts();
    assert_eq!((counts.connections, counts.held_keys), (MANY, MANY));
    // Not one more, and those who are in are served.
    for _ in 0..10 {
        let mut refused = Wire::dial(server.local_addr()).await;
        assert_eq!(refused.read::<1>().await, None);
    }
    let asked = Instant::now();
    holder
        .expect(&acquire(2, 0, 60, "own-7"), timed_out(2))
        .await;
    println!("one more question took {:?}", asked.elapsed());

    let began = Instant::now();
    drop(clients);
    eventually(|| server.counts().connections == 1).await;
    println!("all gone in {:?}", began.elapsed());
    // Their places in the queue went with them; what they had been granted is theirs.
    let counts = server.counts();
    assert_eq!((counts.waiters, counts.held_keys), (0, MANY));
    eventually(|| open_files() <= files).await;
    Wire::open(&server).await.take(1, "free-again").await;
}

/// The ways in which a client can go.
const WAYS: u64 = 6;

/// One client that comes, does something and goes; gives the number of keys that it leaves held.
async fn visit(address: std::net::SocketAddr, number: u64) -> u64 {
    if number % WAYS < 2 {
        let stream = within(TcpStream::connect(address)).await.expect("connects");
        // Before the challenge: in silence, and with a reset.
        if number % WAYS == 1 {
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        return 0;
    }
    let mut wire = Wire::open_at(address).await;
    match number % WAYS {
        2 => {
            let token = wire.take(1, &format!("visit-{number}")).await;
            let given = release(2, token, &format!("visit-{number}"));
            wire.expect(&given, released(2)).await;
            0
        }
        3 => {
            wire.take(1, &format!("visit-{number}")).await;
            1
        }
        4 => {
            wire.send(&acquire(1, 250, 250, "wanted")).await;
            // So that it surely stands in the queue when it goes.
            assert_eq!(wire.ask(&domain(2)).await.opcode, 'd');
            0
        }
        _ => {
            let request = acquire(1, 0, 60, "half");
            let _ = wire.stream.write_all(&request[..9]).await;
            0
        }
    }
}

pub(crate) async fn connections_come_and_go() {
    const VISITS: u64 = 2_400;
    allow_files(1_000);
    let server = server().await;
    let address = server.local_addr();
    let mut holder = Wire::open(&server).await;
    let token = holder.take(1, "wanted").await;
    // One round before anything is measured, so that what stays for good is there.
    let mut left = 0;
    for number in 0..WAYS {
        left += visit(address, number).await;
    }
    eventually(|| server.counts().connections == 1).await;
    let files = open_files();

    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(WAYS));
    let mut visitors = JoinSet::new();
    for _ in 0..24 {
        let next = Arc::clone(&next);
        visitors.spawn(async move {
            let mut left = 0;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= WAYS + VISITS {
                    return left;
                }
                left += visit(address, number).await;
            }
        });
    }
    left += visitors.join_all().await.into_iter().sum::<u64>();
    let took = began.elapsed();
    let rate = VISITS as f64 / took.as_secs_f64();
    println!("{VISITS} connections came and went in {took:?}, {rate:.0} a second");

    eventually(|| server.counts().connections == 1).await;
    let counts = server.counts();
    assert_eq!((counts.waiters, counts.held_keys as u64), (0, left + 1));
    eventually(|| open_files() <= files).await;
    holder
        .expect(&release(2, token, "wanted"), released(2))
        .await;
    assert_eq!(server.counts().held_keys as u64, left);
}
