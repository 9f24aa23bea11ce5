//! What can happen to leaders, second by second, in virtual time: nothing is waited for, and each run
//! prints the same.
//!
//! `cargo run --release -p highwater-examples --example timeline` needs no server. Candidates node-a, node-b and node-c share
//! a lock service within this process, [`InProcess`](highwater_client::leader::InProcess), which is
//! the lock core of the server. `output.txt` is what it prints, and a test compares the two.
//!
//! Read `scenarios.rs`: each scenario is a script. `stage.rs` watches what comes of it, and prints.

mod ledger;
mod scenarios;
mod stage;

use std::error::Error;
use std::io::{Write as _, stdout};

/// Runs every scenario on a clock of its own, and gives the tables.
fn timeline() -> Result<String, Box<dyn Error>> {
    let mut text = String::from(HEAD);
    for scenario in scenarios::ALL {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        let table = runtime.block_on(async {
            let stage = stage::Stage::new();
            (scenario.play)(&stage).await?;
            stage.end().await
        })?;
        text.push_str(&format!(
            "\n== {} ==\n{}\n\n{table}\n",
            scenario.title, scenario.about
        ));
    }
    Ok(text)
}

const HEAD: &str = "\
Leader election in virtual time. Ticks are seconds. Token and TTL are those of the candidate in this row,
as the lock service has them behind the tick: what is left of its lease, or of its minimum lease.
";

fn main() -> Result<(), Box<dyn Error>> {
    stdout().write_all(timeline()?.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    /// After a change that is meant: `cargo run --example timeline > examples/timeline/output.txt`
    #[test]
    fn it_prints_what_it_printed() {
        for _ in 0..3 {
            assert_eq!(super::timeline().unwrap(), include_str!("output.txt"));
        }
    }
}
