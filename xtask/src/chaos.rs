//! `cargo xtask chaos`: a real cluster in network namespaces, broken in every way. `docs/chaos.md`.
//!
//! The work is done by a program of its own, since no task depends on the product.

use std::path::PathBuf;

use cargo_metadata::Metadata;

use crate::Result;
use crate::interop;
use crate::run::Command;

/// Builds what is needed and hands the options over.
///
/// # Errors
/// It cannot be run on this machine, or a promise was broken, which is told with the command that
/// repeats it.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    let packages = ["--package", "highwater", "--package", "highwater-chaos"];
    let build = Command::cargo().args(["build", "--locked"]);
    build.args(packages).run()?;
    let programs = Programs::of(&interop::metadata()?);
    programs.chaos().args(options.iter().copied()).run()
}

/// What has been built.
struct Programs {
    folder: PathBuf,
}

impl Programs {
    fn of(metadata: &Metadata) -> Self {
        let folder = metadata.target_directory.join("debug").into();
        Self { folder }
    }

    fn chaos(&self) -> Command {
        let program = self.folder.join("highwater").display().to_string();
        let kept = self.folder.with_file_name("chaos").display().to_string();
        let command = Command::new(self.folder.join("highwater-chaos"));
        command.args(["--program", &program, "--keep", &kept])
    }
}

/// The runs that are part of every test run, with programs that the tests have built: every fault
/// once, and a seed of several at once for each kind of cluster. Gives what has to be told at the end.
///
/// # Errors
/// A promise was broken; or it cannot be run here, if the environment says that it has to be.
pub(crate) fn run_bounded(metadata: &Metadata) -> Result<Option<String>> {
    let programs = Programs::of(metadata);
    if let Err(error) = programs.chaos().args(["--probe"]).run() {
        if std::env::var_os(REQUIRED).is_some_and(|value| !value.is_empty()) {
            return Err(error);
        }
        let note =
            "chaos is left out: it needs Linux, root, iproute2 and nftables; see docs/chaos.md";
        return Ok(Some(note.to_owned()));
    }
    programs.chaos().args(TOUR).run()?;
    programs.chaos().args(RANDOM).run()?;
    programs.chaos().args(RANDOM).args(["--volatile"]).run()?;
    Ok(None)
}

/// The variable that makes it a failure if it cannot be run.
const REQUIRED: &str = "HIGHWATER_CHAOS_REQUIRED";
const TOUR: [&str; 2] = ["--scenario", "tour"];
const RANDOM: [&str; 4] = ["--scenario", "random", "--seconds", "10"];
