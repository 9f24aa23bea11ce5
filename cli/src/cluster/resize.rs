//! `highwater cluster grow` and `remove`: from three nodes to five, and back.

use std::time::Duration;

use clap::Args;
use highwater_server::cluster::{self, ClusterMode, OperatorError};

use super::{ClusterError, Files, leader, say};

/// Let a fourth and a fifth node join a cluster of three, without a stop.
///
/// The cluster file has to have all five nodes: add the two to it, and give the new file to every node and
/// the five addresses to every client first. Tells with which generation each new node has to be started,
/// on an empty data directory. Then waits until both have caught up, and lets them vote in one step: there
/// are never four voters.
///
/// Of a volatile cluster the new nodes are started like all others: without a generation and a data directory.
/// The leader lets them in from then on.
///
/// Example:
///   highwater cluster grow --cluster /etc/highwater/cluster.toml
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Grow {
    #[command(flatten)]
    files: Files,
    /// How long to wait for the new nodes, in seconds. They can be waited for again.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
}

/// Remove two nodes of a cluster of five, without a stop.
///
/// Both go in one step: there are never four voters. A node that leads hands over first. Each of them ends by
/// itself when it hears of it, and does not start again with its data directory; in a volatile cluster it is
/// not let in when it starts again. Two nodes that were to join and do not vote yet can be removed in the same way.
///
/// Example:
///   highwater cluster remove --cluster /etc/highwater/cluster.toml --slot 3 --slot 4
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Remove {
    #[command(flatten)]
    files: Files,
    /// A node to remove; given twice.
    #[arg(long = "slot", value_name = "SLOT", required = true)]
    slots: Vec<u8>,
}

pub(super) async fn grow(options: &Grow) -> Result<(), ClusterError> {
    let (file, tls) = options.files.read()?;
    let asked = leader(&file, &tls).await?;
    for place in cluster::grow(&file, asked, tls.clone()).await? {
        let (slot, generation) = (place.slot, place.generation);
        say(&match file.mode() {
            ClusterMode::Volatile => format!("start the new node of slot {slot}\n"),
            _ => format!(
                "start the new node of slot {slot} with --cluster-generation {generation}, on an empty data \
                 directory\n"
            ),
        })?;
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(options.wait);
    loop {
        // Another node may lead meanwhile, or an answer be lost.
        let admitted = match leader(&file, &tls).await {
            Ok(asked) => cluster::admit(&file, asked, tls.clone()).await,
            Err(_) => Ok(false),
        };
        if let Ok(true) = admitted {
            return say("five nodes vote\n");
        }
        if tokio::time::Instant::now() >= until {
            admitted?;
            return Err(ClusterError::NotThereYet);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

pub(super) async fn remove(options: &Remove) -> Result<(), ClusterError> {
    let (file, tls) = options.files.read()?;
    let mut tries = 0..MOST_TRIES;
    loop {
        let removed = match leader(&file, &tls).await {
            Ok(asked) => cluster::remove(&file, asked, &options.slots, tls.clone())
                .await
                .map_err(ClusterError::from),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => break,
            // A leader that was to go has handed over, or another one leads for other reasons.
            Err(ClusterError::Operator(OperatorError::Refused { .. }) | ClusterError::NoLeader)
                if tries.next().is_some() =>
            {
                tokio::time::sleep(PAUSE).await
            }
            Err(error) => return Err(error),
        }
    }
    for slot in &options.slots {
        say(&format!("slot {slot} is removed\n"))?;
    }
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(300);
const MOST_TRIES: u32 = 5;
