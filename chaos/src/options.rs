//! What the command line says.

use std::path::PathBuf;

use crate::faults::Fault;

pub(crate) const USAGE: &str = "\
usage: cargo xtask chaos [--scenario NAME] [--seconds N] [--seed N] [--seeds N] [--nodes 3|5]
                         [--volatile] [--program FILE] [--keep FOLDER]

  --scenario  `tour`: every fault once, one after the other; `random`: several at once, chosen by the
              seed; or the name of one fault (`list` names them) or of several, with + between
              them. Without it: random
  --seconds   how long the cluster is broken and mended, for each seed. Without it: 30
  --seed      the first seed. Without it one is made up and printed
  --seeds     how many seeds, one after the other, each with a new cluster. Without it: 1
  --nodes     how many nodes. Without it: 3
  --volatile  a cluster that keeps nothing on disk. What would lose a majority's memory is left out
  --program   the `highwater` to run
  --keep      where logs and histories go. Without it: target/chaos
  --probe     only find out whether it can be run here";

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) scenario: Scenario,
    pub(crate) seconds: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) seeds: u64,
    pub(crate) nodes: u8,
    pub(crate) program: PathBuf,
    pub(crate) keep: PathBuf,
    pub(crate) volatile: bool,
    pub(crate) probe: bool,
    pub(crate) list: bool,
    /// For the proxies of a node, which the inner process starts: where the delay stands.
    pub(crate) proxy: Option<PathBuf>,
    /// For the inner process, which the outer one starts.
    pub(crate) inside: Option<Inside>,
}

/// What the outer process tells the inner one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) outer: u32,
}

/// How a cluster is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    Tour,
    Random,
    /// These at the same time, again and again.
    These(Vec<Fault>),
}

impl Options {
    /// # Errors
    /// What is wrong with the words.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            scenario: Scenario::Random,
            seconds: 30,
            seed: None,
            seeds: 1,
            nodes: 3,
            program: "target/debug/highwater".into(),
            keep: "target/chaos".into(),
            volatile: false,
            probe: false,
            list: false,
            proxy: None,
            inside: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let flag = match &**word {
                "--probe" => Some(&mut options.probe),
                "--volatile" => Some(&mut options.volatile),
                _ => None,
            };
            if let Some(flag) = flag {
                *flag = true;
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let number = || {
                let number = value.parse::<u64>();
                number.map_err(|_| format!("{word} needs a number"))
            };
            match &**word {
                "--scenario" if value == "list" => options.list = true,
                "--scenario" => options.scenario = scenario(value)?,
                "--seconds" => options.seconds = number()?,
                "--seed" => options.seed = Some(number()?),
                "--seeds" => options.seeds = number()?.max(1),
                "--nodes" => {
                    options.nodes = match number()? {
                        3 => 3,
                        5 => 5,
                        _ => return Err("a cluster has 3 or 5 nodes".into()),
                    }
                }
                "--program" => options.program = value.into(),
                "--keep" => options.keep = value.into(),
                "--proxy" => options.proxy = Some(value.into()),
                "--inside" => {
                    let outer = number()?.try_into();
                    let outer = outer.map_err(|_| "--inside needs a process")?;
                    options.inside = Some(Inside { outer });
                }
                _ => return Err(format!("{word} is not an option")),
            }
        }
        if let Scenario::These(faults) = &options.scenario
            && !options.allows(faults)
        {
            return Err("a volatile cluster does not survive that".into());
        }
        Ok(options)
    }

    /// Whether nodes reach each other through proxies, which can keep what passes: where that is asked
    /// for, and with an odd seed.
    pub(crate) fn has_proxies(&self) -> bool {
        match &self.scenario {
            Scenario::These(faults) => faults.contains(&Fault::Delay),
            Scenario::Random => self.seed.is_some_and(|seed| seed % 2 == 1),
            Scenario::Tour => false,
        }
    }

    /// Whether these can be done at the same time, and the cluster has to survive it. A volatile one forgets with every
    /// process that ends, so no more than one may.
    pub(crate) fn allows(&self, faults: &[Fault]) -> bool {
        if faults.contains(&Fault::Delay) && !self.has_proxies() {
            return false;
        }
        let ends = faults.iter();
        let ends = ends.filter(|fault| fault.ends_one() || !fault.combines());
        !self.volatile
            || ends.count() <= 1
                && !faults.contains(&Fault::KillAll)
                && !faults.contains(&Fault::FullDisk)
    }
}

fn scenario(name: &str) -> Result<Scenario, String> {
    match name {
        "tour" => Ok(Scenario::Tour),
        "random" => Ok(Scenario::Random),
        _ => {
            let fault = |name: &str| {
                let mut all = Fault::ALL.into_iter();
                let named = all.find(|fault| fault.name() == name);
                named.ok_or(format!("{name} is not a scenario"))
            };
            let faults = name.split('+').map(fault);
            Ok(Scenario::These(faults.collect::<Result<_, _>>()?))
        }
    }
}

impl std::fmt::Display for Scenario {
    /// As it is said on the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tour => f.write_str("tour"),
            Self::Random => f.write_str("random"),
            Self::These(faults) => {
                let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
                f.write_str(&names.join("+"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn a_line_says_what_to_run() {
        let options = parse("--scenario kill-leader+loss --seed 7 --seconds 9 --nodes 5").unwrap();
        let these = vec![Fault::KillLeader, Fault::Loss];
        assert_eq!(options.scenario, Scenario::These(these));
        assert_eq!(options.scenario.to_string(), "kill-leader+loss");
        assert_eq!(
            (options.seed, options.seconds, options.nodes),
            (Some(7), 9, 5)
        );
        assert!(parse("--scenario list").unwrap().list);
    }

    #[test]
    fn a_volatile_cluster_never_loses_two_processes_at_once() {
        let options = parse("--volatile").unwrap();
        assert!(options.allows(&[Fault::KillLeader, Fault::MuteFollower, Fault::Loss]));
        assert!(!options.allows(&[Fault::KillLeader, Fault::KillFollower]));
        assert!(!options.allows(&[Fault::KillAll]));
        assert!(options.allows(&[Fault::GrowAndShrink]));
        assert!(!options.allows(&[Fault::KillLeader, Fault::GrowAndShrink]));
        assert!(parse("--volatile --scenario kill-all").is_err());
    }

    #[test]
    fn what_is_not_an_option_is_refused() {
        for line in [
            "--nodes 4",
            "--seed x",
            "--seed",
            "--scenario no",
            "--scenario loss+",
            "seed 7",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
