//! `cargo xtask simulate`: the lock core on replicas in a world that is nothing but a seed.
//!
//! The work is done by a program of its own, since no task depends on the product.

use crate::Result;
use crate::run::Command;

/// Hands the options over.
///
/// # Errors
/// A seed broke a promise, which is told with the command that repeats it, or an option is wrong.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    let program = [
        "run",
        "--quiet",
        "--locked",
        "--package",
        "highwater-history",
    ];
    let command = Command::cargo().args(program);
    let command = command.args(["--bin", "simulate", "--"]);
    command.args(options.iter().copied()).run()
}
