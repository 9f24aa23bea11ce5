//! The story: three processes, and three things that happen to their leader.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write as _, stdout};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use highwater_server::Server;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::Failure;
use crate::ledger::Ledger;
use crate::node::{Node, Said};
use crate::worker::LEASE;

const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// The longest time without which a step counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Plays it; an error is a promise that was not kept.
pub(crate) async fn tell() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let database_url = format!("sqlite://{}/job.db", folder.path().display());
    let ledger = Ledger::open(&database_url).await?;
    ledger.create().await?;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::builder().in_memory().listen(listen).no_auth();
    let server = server.start().await?;

    let mut story = Story::begin(server.local_addr(), database_url).await?;
    let first = story.elected(None).await?;
    story.serve(first, 2).await?;
    let second = story.kill(first).await?;
    let third = story.freeze(second).await?;
    let fourth = story.partition(third).await?;
    story.serve(fourth, 1).await?;
    story.check(&ledger).await?;
    drop(story);
    server.shutdown().await;
    Ok(())
}

/// A process while it leads.
#[derive(Clone, Copy)]
struct Leader {
    node: usize,
    token: u64,
}

struct Story {
    started: Instant,
    server: SocketAddr,
    database_url: String,
    nodes: Vec<Node>,
    heard: mpsc::Receiver<(usize, Result<Said, String>)>,
    sender: mpsc::Sender<(usize, Result<Said, String>)>,
    /// Said, and not asked for yet.
    waiting: VecDeque<(usize, Said)>,
    /// What the processes said that is in the database: node and token.
    written: Vec<(String, String)>,
    refused: usize,
}

impl Story {
    async fn begin(server: SocketAddr, database_url: String) -> Result<Self, Failure> {
        let (sender, heard) = mpsc::channel(64);
        let mut story = Self {
            started: Instant::now(),
            server,
            database_url,
            nodes: Vec::new(),
            heard,
            sender,
            waiting: VecDeque::new(),
            written: Vec::new(),
            refused: 0,
        };
        for number in 0..NAMES.len() {
            let node = story.start(number).await?;
            story.nodes.push(node);
        }
        for number in 0..NAMES.len() {
            story.expect(number, |said| *said == Said::Ready).await?;
        }
        story.say(format!(
            "three processes campaign for one job, at {server}, with a lease of {LEASE:?}"
        ))?;
        Ok(story)
    }

    async fn start(&self, number: usize) -> Result<Node, Failure> {
        let (server, heard) = (self.server, self.sender.clone());
        Node::start(NAMES[number], number, server, &self.database_url, heard).await
    }

    /// `kill -9`: the process says nothing more, so its lease runs out.
    async fn kill(&mut self, leader: Leader) -> Result<Leader, Failure> {
        self.expect(leader.node, |said| *said == Said::Begins(leader.token))
            .await?;
        let name = NAMES[leader.node];
        self.nodes[leader.node].kill().await?;
        self.say(format!("{name} is killed in the middle of a run"))?;
        self.expect(leader.node, |said| *said == Said::Gone).await?;
        let next = self.elected(Some(leader)).await?;
        self.serve(next, 1).await?;
        self.nodes[leader.node] = self.start(leader.node).await?;
        self.expect(leader.node, |said| *said == Said::Ready)
            .await?;
        self.say(format!("{name} is started again, and campaigns"))?;
        Ok(next)
    }

    /// SIGSTOP past the lease: the process cannot know what it missed until it goes on.
    async fn freeze(&mut self, leader: Leader) -> Result<Leader, Failure> {
        self.expect(leader.node, |said| *said == Said::Begins(leader.token))
            .await?;
        let name = NAMES[leader.node];
        self.nodes[leader.node].freeze(true)?;
        self.say(format!("{name} is frozen in the middle of a run"))?;
        let next = self.elected(Some(leader)).await?;
        self.serve(next, 1).await?;
        self.nodes[leader.node].freeze(false)?;
        self.say(format!("{name} wakes up"))?;
        self.is_told(leader).await?;
        self.is_refused(leader, next).await?;
        Ok(next)
    }

    /// No byte gets to the lock server or back: the process runs, and looks at its own clock.
    async fn partition(&mut self, leader: Leader) -> Result<Leader, Failure> {
        self.expect(leader.node, |said| *said == Said::Begins(leader.token))
            .await?;
        let name = NAMES[leader.node];
        self.nodes[leader.node].proxy.cut(true);
        self.say(format!(
            "{name} is cut off from the lock server in the middle of a run"
        ))?;
        self.is_told(leader).await?;
        let next = self.elected(Some(leader)).await?;
        self.serve(next, 1).await?;
        self.is_refused(leader, next).await?;
        self.nodes[leader.node].proxy.cut(false);
        self.say(format!("{name} reaches the lock server again"))?;
        Ok(next)
    }

    /// The next leader: another process than the last one, with a higher token.
    async fn elected(&mut self, last: Option<Leader>) -> Result<Leader, Failure> {
        let since = Instant::now();
        let (node, said) = self
            .find(|_, said| matches!(said, Said::Elected(_)))
            .await?;
        let Said::Elected(token) = said else {
            return Err("it was looked for".into());
        };
        let name = NAMES[node];
        let Some(last) = last else {
            self.say(format!("{name} is elected, with token {token}"))?;
            return Ok(Leader { node, token });
        };
        if node == last.node || token <= last.token {
            let (old, before) = (NAMES[last.node], last.token);
            return Err(format!("{name} with token {token} follows {old} with {before}").into());
        }
        let after = since.elapsed().as_secs_f64();
        self.say(format!(
            "{name} is elected {after:.1} s later, with token {token}"
        ))?;
        Ok(Leader { node, token })
    }

    /// Lets the leader do so many runs.
    async fn serve(&mut self, leader: Leader, runs: usize) -> Result<(), Failure> {
        let Leader { node, token } = leader;
        for _ in 0..runs {
            self.expect(node, |said| *said == Said::Begins(token))
                .await?;
            self.nodes[node].answer().await?;
            self.expect(node, |said| *said == Said::Written(token))
                .await?;
            let run = (NAMES[node].to_owned(), token.to_string());
            self.written.push(run);
        }
        let runs = match runs {
            1 => "a run".to_owned(),
            more => format!("{more} runs"),
        };
        self.say(format!("{} has written {runs}", NAMES[node]))?;
        Ok(())
    }

    /// A leader that was replaced is told so by its own elector.
    async fn is_told(&mut self, leader: Leader) -> Result<(), Failure> {
        let is_it = |said: &Said| matches!(said, Said::Told(token, _) if *token == leader.token);
        let said = self.expect(leader.node, is_it).await?;
        let Said::Told(_, reason) = said else {
            return Err("it was looked for".into());
        };
        self.say(format!(
            "{} is told that it leads no more: {reason}",
            NAMES[leader.node]
        ))?;
        Ok(())
    }

    /// The run that the old leader was in goes on, and the database refuses it.
    async fn is_refused(&mut self, old: Leader, new: Leader) -> Result<(), Failure> {
        self.nodes[old.node].answer().await?;
        let is_end = |said: &Said| matches!(said, Said::Written(_) | Said::Refused { .. });
        let said = self.expect(old.node, is_end).await?;
        let (name, offered, highest) = (NAMES[old.node], old.token, new.token);
        if said != (Said::Refused { offered, highest }) {
            return Err(format!("the stale write of {name} was not refused: {said:?}").into());
        }
        self.refused += 1;
        self.say(format!(
            "{name} writes all the same, and the database REFUSES it: token {offered} is stale, \
             {highest} has written"
        ))?;
        Ok(())
    }

    /// Compares what was said with what is in the database.
    async fn check(&mut self, ledger: &Ledger) -> Result<(), Failure> {
        let runs = ledger.runs().await?;
        if runs != self.written {
            return Err(format!("the database has {runs:?}, said was {:?}", self.written).into());
        }
        let tokens: Result<Vec<u64>, _> = runs.iter().map(|(_, token)| token.parse()).collect();
        if !tokens?.is_sorted() {
            return Err(format!("an old leader has written behind a new one: {runs:?}").into());
        }
        self.say(format!(
            "AS PROMISED: {} runs in the order of their tokens, {} stale writes refused",
            runs.len(),
            self.refused
        ))?;
        Ok(())
    }

    /// Waits for something that this process says.
    async fn expect(
        &mut self,
        node: usize,
        mut is_it: impl FnMut(&Said) -> bool,
    ) -> Result<Said, Failure> {
        let found = self.find(|from, said| from == node && is_it(said)).await;
        let name = NAMES[node];
        let (_, said) = found.map_err(|failure| format!("waiting for {name}: {failure}"))?;
        Ok(said)
    }

    async fn find(
        &mut self,
        mut is_it: impl FnMut(usize, &Said) -> bool,
    ) -> Result<(usize, Said), Failure> {
        let known = self
            .waiting
            .iter()
            .position(|(node, said)| is_it(*node, said));
        if let Some(known) = known.and_then(|place| self.waiting.remove(place)) {
            return Ok(known);
        }
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await;
            let heard = heard.map_err(|_| format!("nothing for {PATIENCE:?}"))?;
            let (node, said) = heard.ok_or("all processes are gone")?;
            let said = said.map_err(|line| format!("{} says {line:?}", NAMES[node]))?;
            if is_it(node, &said) {
                return Ok((node, said));
            }
            if said == Said::Gone {
                return Err(format!("{} has ended by itself", NAMES[node]).into());
            }
            self.waiting.push_back((node, said));
        }
    }

    fn say(&self, what: impl Display) -> io::Result<()> {
        let seconds = self.started.elapsed().as_secs_f64();
        writeln!(stdout(), "{seconds:6.1} s  {what}")
    }
}
