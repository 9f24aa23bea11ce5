//! Network namespaces with a bridge between them, and what is dropped on the way.
//!
//! Everything has the number of the outer process in its name, and is in namespaces of its own: the
//! interfaces, addresses and tables of the machine are not touched.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::Failure;
use crate::process::{run, run_with};

/// The names of one run.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    tag: String,
}

const PREFIX: &str = "hwchaos";

impl Network {
    /// The network of this outer process.
    pub(crate) fn new(outer: u32) -> Self {
        let tag = format!("{PREFIX}{outer}");
        Self { tag }
    }

    /// The namespace of a node. There is one for each place, also where no node is yet.
    pub(crate) fn node(&self, slot: u8) -> String {
        format!("{}-n{slot}", self.tag)
    }

    /// The namespace of the clients.
    pub(crate) fn clients(&self) -> String {
        format!("{}-c", self.tag)
    }

    fn bridge(&self) -> String {
        format!("{}-br", self.tag)
    }

    fn all(&self) -> Vec<String> {
        let nodes = (0..PLACES).map(|slot| self.node(slot));
        nodes.chain([self.clients(), self.bridge()]).collect()
    }

    /// Makes all of it.
    pub(crate) async fn make(&self) -> Result<(), Failure> {
        let bridge = self.bridge();
        for name in self.all() {
            run(&["ip", "netns", "add", &name]).await?;
            run(&["ip", "-n", &name, "link", "set", "lo", "up"]).await?;
        }
        let link = ["ip", "-n", &bridge, "link"];
        run(&[&link[..], &["add", "br0", "type", "bridge"]].concat()).await?;
        run(&[&link[..], &["set", "br0", "up"]].concat()).await?;
        let nodes = (0..PLACES).map(|slot| (self.node(slot), address(slot)));
        for (place, (name, address)) in nodes.chain([(self.clients(), CLIENTS)]).enumerate() {
            let port = format!("p{place}");
            let at = ["ip", "-n", &name];
            let add = ["link", "add", "eth0", "type", "veth", "peer", "name", &port];
            run(&[&at[..], &add, &["netns", &bridge]].concat()).await?;
            run(&[&link[..], &["set", &port, "master", "br0", "up"]].concat()).await?;
            let address = format!("{address}/24");
            run(&[&at[..], &["addr", "add", &address, "dev", "eth0"]].concat()).await?;
            run(&[&at[..], &["link", "set", "eth0", "up"]].concat()).await?;
        }
        Ok(())
    }

    /// Ends every process in the namespaces and takes them away. Nothing stops it half-way.
    pub(crate) async fn take_away(&self) {
        for name in self.all() {
            take_away(&name).await;
        }
    }

    /// Has a node drop what these rules say, and nothing else.
    pub(crate) async fn drop_at(&self, slot: u8, rules: &Rules) -> Result<(), Failure> {
        let words = ["ip", "netns", "exec", &self.node(slot), "nft", "-f", "-"];
        run_with(&words, &rules.to_string()).await.map(drop)
    }
}

/// The outer processes that are not there any more, while something of their networks is.
pub(crate) async fn left_behind() -> Result<BTreeSet<u32>, Failure> {
    let listed = run(&["ip", "netns", "list"]).await?;
    let numbers = listed.lines().filter_map(|line| {
        let (number, _) = line.strip_prefix(PREFIX)?.split_once('-')?;
        number.parse::<u32>().ok()
    });
    let is_dead = |number: &u32| !Path::new(&format!("/proc/{number}")).exists();
    Ok(numbers.filter(is_dead).collect())
}

async fn take_away(name: &str) {
    for _ in 0..2 {
        let Ok(pids) = run(&["ip", "netns", "pids", name]).await else {
            break;
        };
        let pids: Vec<i32> = pids.lines().filter_map(|pid| pid.parse().ok()).collect();
        for pid in &pids {
            // It may have ended by itself.
            let pid = nix::unistd::Pid::from_raw(*pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
    // It may never have been made.
    let _ = run(&["ip", "netns", "del", name]).await;
}

/// Where a node is.
pub(crate) const fn address(slot: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, 10 + slot)
}

/// How many nodes a cluster can have.
pub(crate) const PLACES: u8 = 5;

const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// What one node drops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whatever comes from these.
    pub(crate) from: BTreeSet<Ipv4Addr>,
    /// Whatever goes to these.
    pub(crate) to: BTreeSet<Ipv4Addr>,
    /// So many of a hundred packets that come in, at random.
    pub(crate) loss: u8,
}

impl Rules {
    /// Drops whatever comes from these addresses and goes to them.
    pub(crate) fn cut_off(others: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        let from: BTreeSet<_> = others.into_iter().collect();
        let to = from.clone();
        Self { from, to, loss: 0 }
    }
}

/// The address of the clients, for those who cut it off.
pub(crate) const fn clients() -> Ipv4Addr {
    CLIENTS
}

impl std::fmt::Display for Rules {
    /// As input of `nft`, which replaces what was there in one step.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut incoming = String::new();
        let mut outgoing = String::new();
        for address in &self.from {
            writeln!(incoming, "    ip saddr {address} drop")?;
        }
        for address in &self.to {
            writeln!(outgoing, "    ip daddr {address} drop")?;
        }
        if self.loss > 0 {
            writeln!(
                incoming,
                "    meta l4proto tcp numgen random mod 100 < {} drop",
                self.loss
            )?;
        }
        write!(
            f,
            "table inet chaos {{}}\ndelete table inet chaos\ntable inet chaos {{\n  \
             chain incoming {{\n    type filter hook input priority 0; policy accept;\n{incoming}  }}\n  \
             chain outgoing {{\n    type filter hook output priority 0; policy accept;\n{outgoing}  }}\n}}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_replace_those_before_and_drop_what_they_say() {
        let mut rules = Rules::cut_off([address(1)]);
        rules.loss = 30;
        let text = rules.to_string();
        let expected = [
            "delete table inet chaos",
            "ip saddr 10.99.0.11 drop",
            "ip daddr 10.99.0.11 drop",
            "numgen random mod 100 < 30 drop",
        ];
        for line in expected {
            assert!(text.contains(line), "{text}");
        }
        assert!(!Rules::default().to_string().contains("drop"));
    }
}
