//! A cluster of three processes for the published client's tests, whose nodes are replaced one after
//! the other while those run.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Result;

/// Three nodes. Dropping it ends their processes.
pub(super) struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    mode: Mode,
    nodes: [Node; 3],
    /// What the published client needs to know.
    pub(super) identity: String,
    pub(super) token: String,
}

/// What its nodes keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Everything, in a data directory: a node that has lost it is replaced by command.
    Durable,
    /// Nothing: a process that starts again takes its slot over by itself.
    Volatile,
}

struct Node {
    process: Option<Child>,
    generation: u64,
}

impl Cluster {
    /// A new cluster in an empty folder, which has begun. Clients reach it where the package's tests
    /// expect it.
    ///
    /// # Errors
    /// An address is in use, or the nodes do not begin.
    pub(super) fn begin(program: &Path, folder: &Path, mode: Mode) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        let files = folder.join("files");
        let mut new = Command::new(program);
        new.args(["cluster", "new"]).arg(&files);
        if mode == Mode::Volatile {
            new.arg("--volatile");
        }
        for clients in CLIENTS {
            // Free now, and asked for again at once.
            let peers = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            new.args(["--node", &format!("{clients},{peers}")]);
        }
        let said = output(&mut new)?;
        let identity = said
            .lines()
            .find_map(|line| line.strip_prefix("identity "))
            .ok_or("the new cluster has no identity")?;
        let mut cluster = Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            mode,
            nodes: std::array::from_fn(|_| Node {
                process: None,
                generation: 1,
            }),
            identity: identity.to_owned(),
            token: fs::read_to_string(files.join("client.token"))?
                .trim()
                .to_owned(),
        };
        for slot in 0..cluster.nodes.len() {
            cluster.start(slot)?;
        }
        let begun = Instant::now();
        // The nodes may not listen yet.
        while let Err(error) = output(
            cluster
                .operator()
                .args(["init", "--cluster"])
                .arg(cluster.file()),
        ) {
            if begun.elapsed() > HEALING {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("files/cluster.toml")
    }

    fn data(&self, slot: usize) -> PathBuf {
        self.folder.join(format!("data-{slot}"))
    }

    fn operator(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("cluster");
        command
    }

    fn start(&mut self, slot: usize) -> Result<()> {
        let log = self.folder.join(format!("node-{slot}.log"));
        let log = fs::File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--cluster-slot", &slot.to_string()]);
        if self.mode == Mode::Durable {
            let generation = self.nodes[slot].generation.to_string();
            command.args(["--cluster-generation", &generation]);
            command.arg("--data-dir").arg(self.data(slot));
        }
        command.arg("--cluster").arg(self.file());
        command.arg("--client-token-file");
        command.arg(self.folder.join("files/client.token"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.nodes[slot].process = Some(command.stderr(log).spawn()?);
        Ok(())
    }

    fn kill(&mut self, slot: usize) -> Result<()> {
        if let Some(mut process) = self.nodes[slot].process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Replaces one node after the other until it is told to stop; gives how many.
    ///
    /// # Errors
    /// A replacement does not come to its end.
    pub(super) fn replace_until(&mut self, stop: &AtomicBool) -> Result<u32> {
        let mut replaced = 0;
        while !stop.load(Ordering::Relaxed) {
            let slot = replaced as usize % self.nodes.len();
            self.replace(slot)
                .map_err(|error| format!("node {slot} is not replaced: {error}"))?;
            // The next one only when all voters have caught up.
            self.wait_until_whole()?;
            replaced += 1;
        }
        Ok(replaced)
    }

    /// kill -9, its data is gone, and a new node comes in its place.
    fn replace(&mut self, slot: usize) -> Result<()> {
        self.kill(slot)?;
        if self.mode == Mode::Volatile {
            return self.start(slot);
        }
        fs::remove_dir_all(self.data(slot))?;
        let begun = Instant::now();
        while let Err(error) = self.try_replace(slot) {
            // Nobody may lead for a moment, when it was the leader.
            if begun.elapsed() > HEALING {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn try_replace(&mut self, slot: usize) -> Result<()> {
        let mut replace = self.operator();
        replace.args(["replace", "--wait", "30", "--slot", &slot.to_string()]);
        replace.arg("--cluster").arg(self.file());
        replace.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut replace = replace.spawn()?;
        let stdout = replace.stdout.take().ok_or("a pipe was asked for")?;
        let mut line = String::new();
        // Kept to the end: the command has more to say, and somebody has to be there.
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line)?;
        let generation = number_after(&line, "--cluster-generation");
        if let Some(generation) = generation
            && self.nodes[slot].process.is_none()
        {
            self.nodes[slot].generation = generation;
            self.start(slot)?;
        }
        let ended = replace.wait_with_output()?;
        drop(stdout);
        match ended.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&ended.stderr).into()),
        }
    }

    /// Waits until all nodes vote, follow one leader, and have what it has.
    fn wait_until_whole(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = output(
                self.operator()
                    .args(["status", "--cluster"])
                    .arg(self.file()),
            );
            let status = status.unwrap_or_default();
            if is_whole(&status, self.nodes.len()) {
                return Ok(());
            }
            if begun.elapsed() > HEALING {
                return Err(format!("the cluster does not become whole: {status}").into());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for slot in 0..self.nodes.len() {
            // It may have ended by itself.
            let _ = self.kill(slot);
        }
    }
}

/// Whether `highwater cluster status` shows so many nodes that follow one leader, and the leader finds
/// that the next one may go.
fn is_whole(status: &str, nodes: usize) -> bool {
    let lines = status.lines().filter(|line| line.starts_with("slot "));
    let is = |line: &&str, word: &str| line.split(' ').any(|is| is == word);
    let followers = lines.clone().filter(|line| is(line, "follower")).count();
    let mut leaders = lines.filter(|line| is(line, "leader"));
    let whole = leaders.next().is_some_and(|line| is(&line, "whole"));
    whole && leaders.next().is_none() && followers + 1 == nodes
}

fn number_after(line: &str, word: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    words.find(|is| *is == word)?;
    let digits = words.next()?.trim_matches(|c: char| !c.is_ascii_digit());
    digits.parse().ok()
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// Where the package's tests expect a cluster.
const CLIENTS: [&str; 3] = ["127.0.0.1:5225", "127.0.0.1:5226", "127.0.0.1:5227"];
const HEALING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_whole_when_all_follow_one_leader_that_says_so() {
        let line = |slot, role: &str, end: &str| {
            let numbers = "term 2 entries 900 applied 900 held 0 waiting 0";
            format!("slot {slot} generation 1 {role} {numbers}{end}\n")
        };
        let [one, two] = [line(1, "follower", ""), line(2, "follower", "")];
        assert!(is_whole(&(line(0, "leader", " whole") + &one + &two), 3));
        let broken = [
            line(0, "leader", "") + &one + &two,
            line(0, "leader", " whole") + &one,
            line(0, "leader", " whole") + &one + &line(2, "learner", ""),
            line(0, "leader", " whole") + &one + &line(2, "leader", " whole") + &two,
            line(0, "leader", " whole") + &one + "slot 2 at 127.0.0.1:1 does not answer: gone\n",
            one.clone() + &two,
        ];
        for status in broken {
            assert!(!is_whole(&status, 3), "{status}");
        }
    }

    #[test]
    fn the_generation_is_read_from_what_the_command_says() {
        let line =
            "start the new node of slot 1 with --cluster-generation 12, on an empty data directory";
        assert_eq!(number_after(line, "--cluster-generation"), Some(12));
        assert_eq!(number_after(line, "--generation"), None);
    }
}
