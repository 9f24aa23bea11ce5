//! How long nobody gets a lock after the leader of a cluster has gone, at default settings.
//!
//! Three nodes on this machine. A client asks for a lock again and again, each time on a key that nobody has
//! used; the leader is killed with SIGKILL, or told to end with SIGTERM; what is counted is from then to
//! the moment at which the client has the next lock. Then the node is started again, and the next turn begins
//! when all three are level.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use highwater_bench::{Kept, Nodes};
use highwater_client::{AcquireError, AcquireOptions, Client, Key};
use tokio::time::{Instant, sleep, timeout};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(program), Some(times)) = (words.next(), words.next()) else {
        return Err("usage: failover PROGRAM TIMES [durable|volatile]".into());
    };
    let only = words.next();
    let (program, times) = (PathBuf::from(program), times.parse()?);
    for (name, kept) in [("durable", Kept::Durable), ("volatile", Kept::Volatile)] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for how in [How::Kill, How::Terminate] {
            let mut nodes = Nodes::start(&program, kept).await?;
            let client = nodes.client().connect().await?;
            let mut pauses = Vec::new();
            for turn in 0..times {
                let Turn { pause, failed } = turn_once(&mut nodes, &client, how, turn).await?;
                println!(
                    "{name}, {how:?}, {turn}: {} ms {failed:?}",
                    pause.as_millis()
                );
                pauses.push(pause);
            }
            pauses.sort_unstable();
            let millis = |pause: Option<&Duration>| pause.map_or(0, Duration::as_millis);
            println!(
                "{name}, {how:?}: median {} ms, worst of {times} {} ms, best {} ms",
                millis(pauses.get(pauses.len() / 2)),
                millis(pauses.last()),
                millis(pauses.first())
            );
            client.close().await;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// With SIGKILL.
    Kill,
    /// With SIGTERM.
    Terminate,
}

struct Turn {
    pause: Duration,
    /// What was said before, and when, in milliseconds.
    failed: Vec<(u128, AcquireError)>,
}

async fn turn_once(
    nodes: &mut Nodes,
    client: &Client,
    how: How,
    turn: u64,
) -> Result<Turn, Box<dyn Error>> {
    let leader = nodes.whole().await?;
    // The client knows the leader.
    lock(client, turn, 0).await?;
    let process = nodes.take(leader).ok_or("the leader has no process")?;
    let from = Instant::now();
    let gone = match how {
        How::Kill => tokio::spawn(process.kill()),
        How::Terminate => {
            let id = process.id().ok_or("the leader has ended by itself")?;
            let status = Command::new("kill").arg(id.to_string()).status()?;
            if !status.success() {
                return Err("the leader cannot be told to end".into());
            }
            tokio::spawn(process.ended())
        }
    };
    let (mut tried, mut failed) = (1, Vec::new());
    let taken = timeout(LIMIT, async {
        loop {
            match lock(client, turn, tried).await {
                Ok(()) => break Ok(from.elapsed()),
                Err(
                    error @ (AcquireError::Indeterminate
                    | AcquireError::NotConnected
                    | AcquireError::TimedOut),
                ) => {
                    failed.push((from.elapsed().as_millis(), error));
                    tried += 1;
                    sleep(BETWEEN_TRIES).await;
                }
                Err(error) => break Err(error),
            }
        }
    });
    let pause = taken.await??;
    gone.await??;
    nodes.start_node(leader).await?;
    Ok(Turn { pause, failed })
}

/// Takes a lock that nobody has, and gives it back.
async fn lock(client: &Client, turn: u64, tried: u64) -> Result<(), AcquireError> {
    let key = Key::new(format!("failover/{turn}/{tried}"));
    let key = key.map_err(|_| AcquireError::NotConnected)?;
    let options = AcquireOptions::new().wait(Duration::from_secs(10));
    let ticket = client.acquire(&key, options).await?;
    // In the background.
    drop(ticket);
    Ok(())
}

const LIMIT: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);
