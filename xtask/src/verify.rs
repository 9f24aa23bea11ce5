//! `cargo xtask verify`: the gate. It changes nothing.

use crate::Result;
use crate::features::{self, Features};
use crate::run::{Command, Steps};
use crate::{interop, licences, tidy};

/// Runs every check, and fails if one of them does.
pub(crate) fn run() -> Result<()> {
    let metadata = interop::metadata()?;
    let features = Features::of(&metadata);
    features.tell();
    let mut steps = Steps::default();
    let cargo = |words: &[&str]| Command::cargo().args(words.iter().copied());
    let mut step = |name: &str, command: Command| steps.note(name, command.run());
    step("format", cargo(&["fmt", "--all", "--check"]));
    step(
        "lints",
        cargo(&["clippy", "--workspace", "--all-targets", "--locked"])
            .args(features.arguments())
            .args(["--", "--deny", "warnings"]),
    );
    // What a plain `cargo test` builds; the lints above only saw all features together.
    step(
        "default features",
        cargo(&["check", "--workspace", "--all-targets", "--locked"]),
    );
    // A user has one of them; the lints saw all of them together.
    for adapter in features::adapters(&metadata) {
        step(
            &format!("the adapter {adapter} alone"),
            cargo(&["check", "--package", "highwater-fencing", "--locked"]).args([
                "--no-default-features",
                "--features",
                &adapter,
            ]),
        );
    }
    step(
        "docs",
        cargo(&["doc", "--workspace", "--no-deps", "--locked"])
            .args(features.arguments())
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
    features.tell();
    steps.finish()?;
    println!("verify: everything passed");
    Ok(())
}
