//! `highwater cluster`: makes a cluster, begins it, and looks after it.
//!
//! The node that is asked is reached on its listener for peers, with the peer secret beside the
//! cluster file.

mod resize;
mod whole;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use highwater_server::cluster::{
    self, ClusterFile, ClusterFileError, ClusterMode, NodeAddresses, NodeRole, NodeStatus,
    OperatorError, Place,
};
use highwater_server::{TlsError, tls_client_from_pem_file};
use rustls::ClientConfig;

/// Make a cluster of three or five nodes, begin it, and look after it.
///
/// The nodes agree on every grant, release and expiry before it is answered; locks and tokens
/// survive as long as a majority of the data directories does, or of the processes with --volatile.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(New),
    Init(Init),
    Status(Status),
    StepDown(StepDown),
    Replace(Replace),
    Grow(resize::Grow),
    Remove(resize::Remove),
}

/// Write the files of a new cluster: its identity, the addresses of its nodes, a secret for them
/// and a token for clients.
///
/// Copy the directory to every node, and start each of them with `highwater serve --cluster FILE
/// --cluster-slot N`. Then begin the cluster once, with `highwater cluster init`.
///
/// Examples:
///   highwater cluster new /etc/highwater --node a:5225,a:5227 --node b:5225,b:5227 \
///       --node c:5225,c:5227
///   highwater serve --cluster /etc/highwater/cluster.toml --cluster-slot 0 \
///       --client-token-file /etc/highwater/client.token
///   highwater cluster init --cluster /etc/highwater/cluster.toml
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct New {
    /// Where to write them. No file of a cluster may be there.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A node: the address for clients and the one for the other nodes, each HOST:PORT. Three or
    /// five; the first one has slot 0.
    #[arg(long = "node", value_name = "CLIENTS,PEERS", required = true, value_parser = node)]
    nodes: Vec<NodeAddresses>,
    /// Keep nothing on disk but a mark that the identity is used. Locks survive as long as a majority of
    /// the processes does; a process that starts again is a new node, which takes its slot over by
    /// itself. Restart one at a time: if a majority goes at once, the cluster is dead and needs to be made
    /// anew.
    #[arg(long)]
    volatile: bool,
}

/// Begin a cluster, once in its life, when all of its nodes have been started.
///
/// Waits until a node leads. If it fails with "no node leads", it has begun all the same: see `status`.
///
/// No node may have been part of it before: there is no other way to begin a cluster again than a
/// new one, with a new identity, because nobody could tell which tokens the old one gave out.
#[derive(Args)]
struct Init {
    #[command(flatten)]
    files: Files,
    /// The node that does it.
    #[arg(long, value_name = "SLOT", default_value_t = 0)]
    slot: u8,
}

/// Show what each node is and how far it has come.
///
/// The line of the leader ends with `whole` if any one node may go: all are there, have caught up, and know
/// of each other, as the leader says and each of them confirms. `other secrets` counts those who talk to a
/// node with another peer secret than its first. Fails if no node leads, and says so if none ever will: `dead` is
/// a volatile cluster of which a majority has lost its memory.
#[derive(Args)]
struct Status {
    #[command(flatten)]
    files: Files,
    /// As JSON: a list with one object for each node that answers.
    #[arg(long)]
    json: bool,
}

/// Have the leader hand over to another node, before its machine is taken down, say.
///
/// SIGTERM does the same before it ends a node.
#[derive(Args)]
struct StepDown {
    #[command(flatten)]
    files: Files,
    /// The node that leads; without it the nodes are asked who does.
    #[arg(long, value_name = "SLOT")]
    slot: Option<u8>,
}

/// Put a new node in the place of one that is gone for good, with its data directory, say.
///
/// Tells with which generation the new node has to be started: on an empty data directory, with the
/// same slot, where the cluster file says. Then waits until that has caught up, and lets it vote in
/// the place of the old one, which must not come back. One node at a time; a majority must be there.
///
/// Example:
///   highwater cluster replace --cluster /etc/highwater/cluster.toml --slot 1
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct Replace {
    #[command(flatten)]
    files: Files,
    /// The slot of the node that is gone.
    #[arg(long, value_name = "SLOT")]
    slot: u8,
    /// How long to wait for the new node, in seconds. It can be waited for again.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
}

#[derive(Args)]
struct Files {
    /// The cluster file.
    #[arg(long = "cluster", value_name = "FILE", env = "HIGHWATER_CLUSTER")]
    file: PathBuf,
    /// The authorities that have signed the certificates of the nodes, in PEM, if they use TLS.
    #[arg(long, value_name = "FILE", env = "HIGHWATER_PEER_TLS_CA")]
    peer_tls_ca: Option<PathBuf>,
}

type Tls = Option<Arc<ClientConfig>>;

impl Files {
    fn read(&self) -> Result<(ClusterFile, Tls), ClusterError> {
        let tls = self.peer_tls_ca.as_ref().map(tls_client_from_pem_file);
        Ok((ClusterFile::read(&self.file)?, tls.transpose()?))
    }
}

fn node(text: &str) -> Result<NodeAddresses, String> {
    match text.split_once(',') {
        Some((clients, peers)) => Ok(NodeAddresses {
            clients: clients.trim().to_owned(),
            peers: peers.trim().to_owned(),
        }),
        None => Err("two addresses with a comma between them are wanted".to_owned()),
    }
}

/// Does what was asked for.
pub(crate) fn run(options: Options) -> Result<(), ClusterError> {
    let asked = async {
        match options.command {
            Command::New(new) => make(&new),
            Command::Init(init) => {
                let (file, tls) = init.files.read()?;
                cluster::init(&file, init.slot, tls.clone()).await?;
                say("the cluster has begun\n")?;
                wait_for_leader(&file, &tls).await
            }
            Command::Status(status) => show(&status).await,
            Command::Replace(replace) => put_in_place(&replace).await,
            Command::Grow(grow) => resize::grow(&grow).await,
            Command::Remove(remove) => resize::remove(&remove).await,
            Command::StepDown(step_down) => hand_over(&step_down).await,
        }
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClusterError::Runtime)?
        .block_on(asked)
}

fn make(new: &New) -> Result<(), ClusterError> {
    let mode = match new.volatile {
        true => ClusterMode::Volatile,
        false => ClusterMode::Durable,
    };
    let made = ClusterFile::create_as(mode, &new.folder, &new.nodes)?;
    say(&format!(
        "identity {}\ncluster file {}\npeer secret {}\nclient token {}\n",
        made.identity,
        made.file.display(),
        made.peer_secret.display(),
        made.client_token.display()
    ))
}

/// What every node says, or why it says nothing.
async fn ask_all(file: &ClusterFile, tls: &Tls) -> Vec<(u8, Result<NodeStatus, OperatorError>)> {
    let mut asked = tokio::task::JoinSet::new();
    for (slot, _) in file.nodes() {
        let (file, tls) = (file.clone(), tls.clone());
        asked.spawn(async move { (slot, cluster::status(&file, slot, tls).await) });
    }
    let mut said = asked.join_all().await;
    said.sort_by_key(|(slot, _)| *slot);
    said
}

async fn show(options: &Status) -> Result<(), ClusterError> {
    let (file, tls) = options.files.read()?;
    let mut said = ask_all(&file, &tls).await;
    whole::confirm(&mut said);
    let nodes: Vec<&NodeStatus> = said
        .iter()
        .filter_map(|(_, said)| said.as_ref().ok())
        .collect();
    if options.json {
        let text = serde_json::to_string_pretty(&nodes).map_err(std::io::Error::from);
        say(&(text.map_err(ClusterError::Output)? + "\n"))?;
    } else {
        let mut lines = String::new();
        for (_, said) in &said {
            lines.push_str(&match said {
                Ok(status) => line(status),
                Err(error) => format!("{error}\n"),
            });
        }
        say(&lines)?;
    }
    let leads = nodes.iter().any(|node| node.role == NodeRole::Leader);
    let dead = nodes.iter().any(|node| node.dead);
    match (leads, dead) {
        (true, _) => Ok(()),
        (false, true) => Err(ClusterError::Dead),
        (false, false) => Err(ClusterError::NoLeader),
    }
}

/// Whether it follows and does not vote yet, as far as it knows.
fn learns(status: &NodeStatus) -> bool {
    let mut learners = status.members.iter().flat_map(|members| &members.learners);
    learners.any(|one| (one.slot, one.generation) == (status.slot, status.generation))
}

fn line(status: &NodeStatus) -> String {
    let role = match status.role {
        NodeRole::Leader => "leader",
        NodeRole::Follower if learns(status) => "learner",
        NodeRole::Follower => "follower",
        NodeRole::Joining => "joining",
        _ if !status.begun => "not begun",
        _ => "leaderless",
    };
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let mut line = format!(
        "slot {} generation {} {role} term {} entries {} applied {} held {} waiting {} clock {}",
        status.slot,
        status.generation,
        status.term,
        number(status.last_entry),
        number(status.applied),
        status.held_keys,
        status.waiters,
        status.clock.health.name()
    );
    if let Some(waits_for) = &status.waits_for {
        line.push_str(&format!(" waits for {waits_for}"));
    }
    if status.other_secrets > 0 {
        line.push_str(&format!(" other secrets {}", status.other_secrets));
    }
    if status.whole {
        line.push_str(" whole");
    }
    if status.dead {
        line.push_str(" dead");
    }
    line + "\n"
}

/// The leader, of those that have said how they are.
fn leading(said: &[(u8, Result<NodeStatus, OperatorError>)]) -> Option<&NodeStatus> {
    let mut nodes = said.iter().filter_map(|(_, said)| said.as_ref().ok());
    nodes.find(|node| node.role == NodeRole::Leader)
}

async fn leader(file: &ClusterFile, tls: &Tls) -> Result<u8, ClusterError> {
    let said = ask_all(file, tls).await;
    Ok(leading(&said).ok_or(ClusterError::NoLeader)?.slot)
}

/// Until the first election is over, so that what is done next finds a cluster that works.
async fn wait_for_leader(file: &ClusterFile, tls: &Tls) -> Result<(), ClusterError> {
    let until = tokio::time::Instant::now() + FIRST_ELECTION;
    loop {
        match leader(file, tls).await {
            Err(ClusterError::NoLeader) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            found => return found.map(drop),
        }
    }
}

/// Whether the members are agreed on, and the node of this slot that votes has this generation.
fn is_voter(leader: &NodeStatus, slot: u8, generation: u64) -> bool {
    leader.members.as_ref().is_some_and(|members| {
        let is_it = |place: &Place| (place.slot, place.generation) == (slot, generation);
        members.committed && members.voters.len() == 1 && members.voters.iter().flatten().any(is_it)
    })
}

async fn put_in_place(options: &Replace) -> Result<(), ClusterError> {
    let (file, tls) = options.files.read()?;
    let slot = options.slot;
    let asked = leader(&file, &tls).await?;
    let generation = cluster::replace(&file, asked, slot, tls.clone()).await?;
    say(&format!(
        "start the new node of slot {slot} with --cluster-generation {generation}, on an empty data \
         directory\n"
    ))?;
    let until = tokio::time::Instant::now() + Duration::from_secs(options.wait);
    let mut refused = None;
    loop {
        let mut votes = false;
        if let Some(leader) = leading(&ask_all(&file, &tls).await) {
            // A change that a leader could not finish, or not tell of, may be made by the next one.
            votes = is_voter(leader, slot, generation);
            if !votes {
                match cluster::promote(&file, leader.slot, slot, tls.clone()).await {
                    Ok(promoted) => votes = promoted,
                    Err(error) => refused = Some(error),
                }
            }
        }
        if votes {
            return say(&format!("slot {slot} votes with generation {generation}\n"));
        }
        if tokio::time::Instant::now() >= until {
            return Err(refused.map_or(ClusterError::NotThere { slot }, Into::into));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

async fn hand_over(options: &StepDown) -> Result<(), ClusterError> {
    let (file, tls) = options.files.read()?;
    let slot = match options.slot {
        Some(slot) => slot,
        None => leader(&file, &tls).await?,
    };
    cluster::step_down(&file, slot, tls).await?;
    say(&format!("slot {slot} has handed over\n"))
}

/// How long the first election may take before that is an error.
const FIRST_ELECTION: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

fn say(text: &str) -> Result<(), ClusterError> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written
        .and_then(|()| stdout.flush())
        .map_err(ClusterError::Output)
}

/// Why a cluster was not looked after.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(transparent)]
    File(#[from] ClusterFileError),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("no node leads")]
    NoLeader,
    #[error(
        "the cluster is dead: a majority of its nodes has lost its memory; make a new one with `highwater cluster new`"
    )]
    Dead,
    #[error("the new node of slot {slot} has not caught up; start it, and wait for it again")]
    NotThere { slot: u8 },
    #[error("the new nodes have not caught up; start them, and wait for them again")]
    NotThereYet,
    #[error("the system refuses what the command needs")]
    Runtime(#[source] std::io::Error),
    #[error("standard output takes nothing")]
    Output(#[source] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_is_done_when_the_new_node_votes_and_that_is_agreed_on() {
        let status = |members: &str| -> NodeStatus {
            let text = format!(
                r#"{{"slot":0,"generation":1,"role":"leader","term":3,"leader":0,"last_entry":9,"applied":9,
                    "snapshot":null,"voters":[0,1,2],"held_keys":0,"waiters":0,"begun":true,
                    "members":{{"term":3,"entry":8,{members}}}}}"#
            );
            serde_json::from_str(&text).expect("a status")
        };
        let old =
            r#"[{"slot":0,"generation":1},{"slot":1,"generation":1},{"slot":2,"generation":1}]"#;
        let new =
            r#"[{"slot":0,"generation":1},{"slot":1,"generation":2},{"slot":2,"generation":1}]"#;
        let cases = [
            (
                format!(r#""committed":true,"voters":[{new}],"learners":[]"#),
                true,
            ),
            (
                format!(r#""committed":false,"voters":[{new}],"learners":[]"#),
                false,
            ),
            (
                format!(r#""committed":true,"voters":[{old},{new}],"learners":[]"#),
                false,
            ),
            (
                format!(
                    r#""committed":true,"voters":[{old}],"learners":[{{"slot":1,"generation":2}}]"#
                ),
                false,
            ),
        ];
        for (members, done) in cases {
            assert_eq!(is_voter(&status(&members), 1, 2), done, "{members}");
        }
    }
}
