//! `cargo xtask verify`: the gate. It changes nothing.

use crate::Result;
use crate::run::{Command, Steps};
use crate::{licences, tidy};

/// Runs every check, and fails if one of them does.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    let cargo = |words: &[&str]| Command::cargo().args(words.iter().copied());
    let mut step = |name: &str, command: Command| steps.note(name, command.run());
    step("format", cargo(&["fmt", "--all", "--check"]));
    step(
        "lints",
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "--deny",
            "warnings",
        ]),
    );
    // What a plain `cargo test` builds; the lints above only saw all features together.
    step(
        "default features",
        cargo(&["check", "--workspace", "--all-targets", "--locked"]),
    );
    step(
        "docs",
        cargo(&[
            "doc",
            "--workspace",
            "--all-features",
            "--no-deps",
            "--locked",
        ])
        .env("RUSTDOCFLAGS", "--deny warnings"),
    );
    step(
        "the core without std",
        cargo(&[
            "build",
            "--locked",
            "--manifest-path",
            "lock/no-std-probe/Cargo.toml",
            "--target-dir",
            "target/no-std-probe",
        ]),
    );
    steps.note("licences", licences::run());
    steps.note("tidy", tidy::run());
    steps.finish()?;
    println!("verify: everything passed");
    Ok(())
}
