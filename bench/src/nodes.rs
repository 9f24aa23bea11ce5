//! A cluster of three nodes, each a process of its own on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_client::{Builder, Client, Domain, Secret};
use tokio::time::sleep;

use crate::process::{Directory, Process, ProcessError, TRIES, announced, free_port, highwater};

/// Where the nodes keep the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// On disk, synced before anything is answered.
    Durable,
    /// In memory alone: a process that starts again is a new node.
    Volatile,
}

/// Three nodes that have begun. They end, and their files go, when this is dropped.
#[derive(Debug)]
pub struct Nodes {
    program: PathBuf,
    kept: Kept,
    clients: Vec<String>,
    identity: Domain,
    secret: Secret,
    nodes: Vec<Option<Process>>,
    // After the processes, so that it goes after them.
    folder: Directory,
}

impl Nodes {
    /// Starts them with this `highwater` program, and begins the cluster.
    ///
    /// # Errors
    /// Something of it fails.
    pub async fn start(program: &Path, kept: Kept) -> Result<Self, ProcessError> {
        let mut failed = ProcessError::Silent;
        // Another program may take one of the ports before it is used.
        for _ in 0..TRIES {
            match Self::start_once(program, kept).await {
                Ok(nodes) => return Ok(nodes),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn start_once(program: &Path, kept: Kept) -> Result<Self, ProcessError> {
        let folder = Directory::new().map_err(ProcessError::System)?;
        let files = folder.path().join("files");
        let mut command = highwater(program, ["cluster", "new"]);
        command.arg(&files);
        if kept == Kept::Volatile {
            command.arg("--volatile");
        }
        let mut clients = Vec::new();
        for _ in 0..NODES {
            let address = format!("127.0.0.1:{}", free_port()?);
            command.arg("--node");
            command.arg(format!("{address},127.0.0.1:{}", free_port()?));
            clients.push(address);
        }
        let said = succeed("cluster new", command).await?;
        let identity = said
            .lines()
            .find_map(|line| line.strip_prefix("identity "))
            .and_then(|digits| digits.trim().parse().ok())
            .ok_or(ProcessError::Silent)?;
        let secret = fs::read(files.join("client.token")).map_err(ProcessError::System)?;
        let secret = Secret::from_file_content(secret).map_err(|_| ProcessError::Silent)?;
        let mut nodes = Self {
            program: program.to_owned(),
            kept,
            clients,
            identity,
            secret,
            nodes: (0..NODES).map(|_| None).collect(),
            folder,
        };
        for slot in 0..NODES {
            nodes.start_node(slot).await?;
        }
        let mut command = highwater(program, ["cluster", "init", "--cluster"]);
        command.arg(nodes.file());
        succeed("cluster init", command).await?;
        // Tells that a node leads.
        nodes.leader().await?;
        Ok(nodes)
    }

    /// A client of them, to be connected.
    pub fn client(&self) -> Builder {
        Client::cluster(&self.clients, self.identity).token(self.secret.clone())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("files/cluster.toml")
    }

    /// Starts the node of a slot, whose process has ended.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_node(&mut self, slot: usize) -> Result<(), ProcessError> {
        let files = self.folder.path().join("files");
        let mut words: Vec<std::ffi::OsString> = vec!["serve".into(), "--cluster".into()];
        words.push(self.file().into());
        words.push("--cluster-slot".into());
        words.push(slot.to_string().into());
        words.push("--client-token-file".into());
        words.push(files.join("client.token").into());
        match self.kept {
            Kept::Durable => {
                words.push("--data-dir".into());
                words.push(self.folder.path().join(format!("data-{slot}")).into());
            }
            Kept::Volatile => {}
        }
        let (process, _) = announced(&self.program, words).await?;
        self.nodes[slot] = Some(process);
        Ok(())
    }

    /// Takes the process of a slot, to end it.
    pub fn take(&mut self, slot: usize) -> Option<Process> {
        self.nodes.get_mut(slot).and_then(Option::take)
    }

    /// What the nodes say of themselves, those that answer.
    ///
    /// # Errors
    /// The command does not run.
    pub async fn status(&self) -> Result<Vec<Status>, ProcessError> {
        let mut command = highwater(&self.program, ["cluster", "status", "--json", "--cluster"]);
        command.arg(self.file());
        // It fails if nobody leads, and tells all the same.
        let output = command.output().await.map_err(ProcessError::System)?;
        serde_json::from_slice(&output.stdout).map_err(|_| ProcessError::Command {
            command: "cluster status".to_owned(),
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Waits until a node leads; gives its slot.
    ///
    /// # Errors
    /// None does within ten seconds.
    pub async fn leader(&self) -> Result<usize, ProcessError> {
        self.wait(|all| {
            all.iter()
                .find(|node| node.role == "leader")
                .map(|node| node.slot)
        })
        .await
    }

    /// Waits until the leader says that any one of the nodes may go.
    ///
    /// # Errors
    /// It does not within ten seconds.
    pub async fn whole(&self) -> Result<usize, ProcessError> {
        self.wait(|all| {
            let leader = all.iter().find(|node| node.role == "leader")?;
            leader.whole.then_some(leader.slot)
        })
        .await
    }

    async fn wait(
        &self,
        found: impl Fn(&[Status]) -> Option<usize>,
    ) -> Result<usize, ProcessError> {
        for _ in 0..LOOKS {
            if let Some(slot) = found(&self.status().await?) {
                return Ok(slot);
            }
            sleep(BETWEEN_LOOKS).await;
        }
        Err(ProcessError::Command {
            command: "cluster status".to_owned(),
            said: "the cluster did not come into the state that was waited for".to_owned(),
        })
    }
}

/// What `highwater cluster status --json` says of a node, as far as it is used here.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Status {
    /// Which node.
    pub slot: usize,
    /// `leader`, `follower` or `leaderless`.
    pub role: String,
    /// Of the leader: whether any one of the nodes may go.
    pub whole: bool,
}

async fn succeed(
    words: &str,
    mut command: tokio::process::Command,
) -> Result<String, ProcessError> {
    let output = command.output().await.map_err(ProcessError::System)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into()),
        false => Err(ProcessError::Command {
            command: words.to_owned(),
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
    }
}

const NODES: usize = 3;
const LOOKS: u32 = 200;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
