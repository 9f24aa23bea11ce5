//! A cluster of three that becomes one of five and goes back to three, while one of its nodes is killed, frozen or cut off.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use highwater_server::cluster::{self, ClusterFile, Members, OperatorError, Place};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::{HEALING, Nodes, SHORT, addresses, lead_through_proxies};
use crate::Failure;
use crate::network::{PLACES, Rules, address};
use crate::random::Random;

/// What the leader is asked for. Asked again, it does not do it twice.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// To let two learn.
    Open,
    /// To let them vote. In a volatile cluster nobody has to ask for that.
    LetVote,
    Remove([u8; 2]),
}

/// What happens meanwhile. Never more than one process is gone at once: a volatile cluster of three does not
/// survive that.
#[derive(Clone, Copy, Debug)]
enum Strike {
    KillLeader,
    /// Of those that come.
    KillNewcomer(u8),
    FreezeLeader(Duration),
    /// From the other nodes. It hears the operator, and may try on its own what it was asked for.
    CutLeaderOff(Duration),
    StepDown,
}

/// When that is, where two come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The slots are opened.
    Opening,
    /// They learn, and are to vote when both have caught up.
    Learning,
    /// They have just begun to vote.
    Voting,
}

/// A strike, and how long after the leader was asked it comes.
type Due = (Duration, Strike);

impl Nodes {
    /// Makes five nodes of three and three of five again, or the other way round. The two that go are any two.
    pub(crate) async fn grow_and_shrink(&mut self, random: &mut Random) -> Result<(), Failure> {
        if self.members.len() < usize::from(PLACES) {
            self.grow(random).await?;
            self.shrink(random).await
        } else {
            self.shrink(random).await?;
            self.grow(random).await
        }
    }

    async fn grow(&mut self, random: &mut Random) -> Result<(), Failure> {
        self.know_five()?;
        let newcomers = (0..PLACES).filter(|slot| !self.members.contains(slot));
        let newcomers: Vec<u8> = newcomers.collect();
        let strike = of_leader(random);
        let newcomer = Strike::KillNewcomer(*random.choose(&newcomers));
        let (opening, learning) = (random.millis(0..60), random.millis(0..600));
        let plan: Option<(Moment, Due)> = match random.number(0..5) {
            0 => Some((Moment::Opening, (opening, strike))),
            1 => Some((Moment::Learning, (learning, strike))),
            2 => Some((Moment::Learning, (learning, newcomer))),
            3 => Some((Moment::Voting, (Duration::ZERO, strike))),
            _ => None,
        };
        println!("          {newcomers:?} come; meanwhile: {plan:?}");
        let due = |moment| plan.filter(|(when, _)| *when == moment).map(|(_, due)| due);
        self.step(Step::Open, due(Moment::Opening)).await?;
        for slot in newcomers {
            self.members.insert(slot);
            self.start(slot)?;
        }
        self.step(Step::LetVote, due(Moment::Learning)).await?;
        if let Some((_, strike)) = due(Moment::Voting) {
            self.strike(strike).await?;
        }
        self.whole().await
    }

    async fn shrink(&mut self, random: &mut Random) -> Result<(), Failure> {
        let members: Vec<u8> = self.all().collect();
        let one = *random.choose(&members);
        let others: Vec<u8> = members.into_iter().filter(|slot| *slot != one).collect();
        let leaving = [one, *random.choose(&others)];
        let due = (random.millis(0..60), of_leader(random));
        let due = random.percent(75).then_some(due);
        println!("          {leaving:?} go; meanwhile: {due:?}");
        for slot in leaving {
            self.node(slot).leaves = true;
        }
        self.step(Step::Remove(leaving), due).await?;
        let begun = Instant::now();
        for slot in leaving {
            // It hears of its removal, and ends with status 0.
            while self.node(slot).process.is_some() {
                self.look()?;
                if begun.elapsed() > HEALING {
                    return Err(format!("node {slot} was removed and goes on").into());
                }
                sleep(SHORT).await;
            }
            self.node(slot).leaves = false;
            self.members.remove(&slot);
            let data = self.disk(slot).join("data");
            if data.exists() {
                std::fs::remove_dir_all(data)?;
            }
        }
        self.whole().await
    }

    /// Asks whoever leads until it is done, and strikes once meanwhile. Whoever was killed comes back at once,
    /// unless it is to go.
    async fn step(&mut self, step: Step, mut due: Option<Due>) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut last: Option<Result<(), OperatorError>> = None;
        while begun.elapsed() < HEALING {
            self.look()?;
            for slot in self.all() {
                if !self.node(slot).leaves {
                    self.start(slot)?;
                }
            }
            if let Some(leads) = self.leading().await {
                if due.is_none() && self.is_done(step, leads.members.as_ref()) {
                    return Ok(());
                }
                let asked = tokio::spawn(ask(step, self.told(step)?, leads.slot));
                if let Some((after, strike)) = due.take() {
                    sleep(after).await;
                    self.strike(strike).await?;
                }
                last = Some(asked.await?);
            }
            sleep(SHORT).await;
        }
        let statuses = self.statuses().await;
        Err(format!("{step:?} is not done: {last:?}, {statuses:?}").into())
    }

    /// Whether a majority has agreed on it. Notes with which generations new nodes have to start.
    fn is_done(&mut self, step: Step, members: Option<&Members>) -> bool {
        let Some(members) = members.filter(|members| members.committed) else {
            return false;
        };
        let [voters] = &members.voters[..] else {
            return false;
        };
        let voters: BTreeSet<u8> = voters.iter().map(|place| place.slot).collect();
        match step {
            Step::Open => {
                let learners = members.learners.iter();
                let new: Vec<&Place> = learners
                    .filter(|place| !voters.contains(&place.slot))
                    .collect();
                for place in &new {
                    self.node(place.slot).generation = place.generation;
                }
                voters.len() + new.len() == usize::from(PLACES)
            }
            Step::LetVote => voters == self.members,
            Step::Remove(gone) => {
                let stay = self.all().filter(|slot| !gone.contains(slot));
                voters.iter().copied().eq(stay) && members.learners.is_empty()
            }
        }
    }

    async fn strike(&mut self, strike: Strike) -> Result<(), Failure> {
        if let Strike::KillNewcomer(slot) = strike {
            return self.kill(slot);
        }
        let Some(leader) = self.leader().await else {
            return Ok(());
        };
        match strike {
            Strike::FreezeLeader(span) => {
                self.signal(leader, Signal::SIGSTOP)?;
                sleep(span).await;
                self.signal(leader, Signal::SIGCONT)?;
            }
            Strike::CutLeaderOff(span) => {
                let others = self.all().filter(|slot| *slot != leader);
                let rules = Rules::cut_off(others.map(address));
                self.network.drop_at(leader, &rules).await?;
                sleep(span).await;
                self.network.drop_at(leader, &Rules::default()).await?;
            }
            // It may be refused: the members may be changing.
            Strike::StepDown => drop(cluster::step_down(&self.file, leader, None).await),
            Strike::KillLeader | Strike::KillNewcomer(_) => self.kill(leader)?,
        }
        Ok(())
    }

    /// The operator's file has five nodes from now on, and so have those of nodes that start. Those that run have
    /// the old one.
    fn know_five(&mut self) -> Result<(), Failure> {
        let known: BTreeSet<u8> = self.file.nodes().map(|(slot, _)| slot).collect();
        let copies = (0..PLACES).map(|slot| format!("files-{slot}"));
        for folder in copies.chain(["files".to_owned()]) {
            let file = self.work.join(&folder).join("cluster.toml");
            let mut text = std::fs::read_to_string(&file)?;
            for slot in (0..PLACES).filter(|slot| !known.contains(slot)) {
                let at = addresses(slot);
                text.push_str(&format!(
                    "\n[[node]]\nslot = {slot}\nclients = \"{}\"\npeers = \"{}\"\n",
                    at.clients, at.peers
                ));
            }
            std::fs::write(&file, text)?;
            if self.has_proxies && folder != "files" {
                lead_through_proxies(&file)?;
            }
        }
        self.file = ClusterFile::read(self.work.join("files/cluster.toml"))?;
        Ok(())
    }

    /// With which file the leader is asked. Where new nodes are it learns from that, and looks for them as it does
    /// for the others: through its own proxies, if it has some.
    fn told(&self, step: Step) -> Result<ClusterFile, Failure> {
        match step {
            Step::Open => Ok(ClusterFile::read(self.work.join("files-0/cluster.toml"))?),
            Step::LetVote | Step::Remove(_) => Ok(self.file.clone()),
        }
    }
}

/// Something that happens to the leader.
fn of_leader(random: &mut Random) -> Strike {
    let span = random.millis(1_500..2_500);
    match random.number(0..6) {
        0 => Strike::FreezeLeader(span),
        1 | 2 => Strike::CutLeaderOff(span),
        3 => Strike::StepDown,
        _ => Strike::KillLeader,
    }
}

async fn ask(step: Step, file: ClusterFile, leader: u8) -> Result<(), OperatorError> {
    use cluster::ClusterMode::Volatile;
    match step {
        Step::Open => cluster::grow(&file, leader, None).await.map(drop),
        Step::LetVote if file.mode() == Volatile => Ok(()),
        Step::LetVote => cluster::admit(&file, leader, None).await.map(drop),
        Step::Remove(gone) => cluster::remove(&file, leader, &gone, None).await,
    }
}
