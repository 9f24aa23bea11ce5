//! What this process has open, and how much memory it takes.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::wire::*;

/// Lets this process have so many files open.
///
/// # Panics
/// The system does not allow it, and how to change that.
pub(crate) fn allow_files(count: usize) {
    let count = count as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if soft >= count {
        return;
    }
    assert!(
        hard >= count,
        "this test needs {count} open files and may have {hard}: raise the hard limit (ulimit -Hn)"
    );
    setrlimit(Resource::RLIMIT_NOFILE, count, hard).expect("below the hard limit");
}

/// How many files this process has open.
pub(crate) fn open_files() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("a list of open files");
    open.count()
}

/// How much memory this process takes, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// When no more files can be opened, those who are in go on, and the others get in later.
pub(crate) async fn no_file_is_left() {
    let server = server().await;
    let mut inside = Wire::open(&server).await;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // The lowest number that is free is the only one that can still be opened.
    let lowest = File::open("/dev/null").expect("opens").as_raw_fd();
    let only_one = u64::try_from(lowest).expect("a number") + 1;
    setrlimit(Resource::RLIMIT_NOFILE, only_one, hard).expect("lowers");
    let mut outside = Wire::dial(server.local_addr()).await;
    for id in 1..200 {
        inside.take(id, &format!("inside-{id}")).await;
    }
    let mut hello = [0; 28];
    let early = tokio::time::timeout(
        Duration::from_millis(100),
        outside.stream.read_exact(&mut hello),
    );
    assert!(early.await.is_err(), "it cannot have been accepted");
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raises");
    within(outside.stream.read_exact(&mut hello))
        .await
        .expect("a hello");
    assert_eq!(&hello[..7], b"TCKCLI3");
}

/// Half of them leave half a frame in each round.
const PEERS: u64 = 600;

/// One round of peers that send much and read nothing, begin and do not finish, or send noise.
async fn round(server: &highwater_server::Server, number: u64) -> usize {
    let address = server.local_addr();
    let mut peers = JoinSet::new();
    for _ in 0..16 {
        let mut wire = Wire::open_narrow(server, None).await;
        peers.spawn(async move {
            // Until the server gives it up.
            let requests: Vec<u8> = (1..=2_000).flat_map(|id| release(id, 7, "free")).collect();
            let sent = async { while wire.stream.write_all(&requests).await.is_ok() {} };
            within(sent).await;
            requests.len()
        });
    }
    for peer in 0..PEERS {
        let mut wire = Wire::open_at(address).await;
        peers.spawn(async move {
            let mut longest = extend(1, 7, 1, &["k"]);
            longest.resize(2_087, 0);
            longest[1..3].copy_from_slice(&2_085_u16.to_be_bytes());
            // One that stays in the middle of a frame, and one that is wrong at once.
            if peer % 2 == 0 {
                let _ = wire.stream.write_all(&longest).await;
            } else {
                longest[0] = b'Z';
                longest[1] = (number + peer) as u8;
                let _ = wire.stream.write_all(&longest.repeat(30)).await;
            }
            let mut rest = Vec::new();
            let _ = within(wire.stream.read_to_end(&mut rest)).await;
            2_087
        });
    }
    peers.join_all().await.into_iter().sum()
}

pub(crate) async fn hostile_peers() {
    const ROUNDS: u64 = 8;
    let server = server_with(|limits| {
        limits.output_stall_time = Duration::from_millis(150);
        limits.frame_time = Duration::from_millis(150);
    })
    .await;
    let mut bystander = Wire::open(&server).await;
    let mut sent = 0;
    let mut resident = Vec::new();
    let files = open_files();
    for number in 0..ROUNDS {
        sent += round(&server, number).await;
        eventually(|| server.counts().connections == 1).await;
        eventually(|| open_files() <= files).await;
        bystander
            .take(number + 1, &format!("between-{number}"))
            .await;
        resident.push(resident_kib());
    }
    println!(
        "{} MB were sent, resident {resident:?} KiB",
        sent / 1_000_000
    );
    // The first rounds bring the allocator to its size, and every figure is a little by chance: the
    // smallest of some is not.
    let smallest = |rounds: &[u64]| rounds.iter().copied().min().expect("some rounds");
    let growth = smallest(&resident[5..]).saturating_sub(smallest(&resident[1..4]));
    // The buffers of the half frames alone, if they stayed, in the four rounds in between.
    let kept = 4 * PEERS / 2 * 2_087 / 1_024;
    assert!(growth < kept / 2, "{growth} KiB more after {ROUNDS} rounds");
    assert_eq!(server.counts().waiters, 0);
}
