//! Runs commands: prints each before, and how to repeat it after a failure.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Instant;

use crate::Result;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// A command in the root of the workspace.
#[derive(Debug)]
pub(crate) struct Command {
    words: Vec<String>,
    env: Vec<(String, String)>,
    /// Variables that get the value of another one, which may be a secret and is not printed.
    env_from: Vec<(String, String)>,
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            words: vec![program.as_ref().to_string_lossy().into_owned()],
            env: Vec::new(),
            env_from: Vec::new(),
        }
    }

    /// The Cargo that runs this task.
    pub(crate) fn cargo() -> Self {
        Self::new("cargo")
    }

    pub(crate) fn args<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, variable: &str, value: &str) -> Self {
        self.env.push((variable.into(), value.into()));
        self
    }

    pub(crate) fn env_from(mut self, variable: &str, other: &str) -> Self {
        self.env_from.push((variable.into(), other.into()));
        self
    }

    /// The words of the command, for another that runs it.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        self.words.iter().cloned()
    }

    fn process(&self) -> process::Command {
        let program = match (&*self.words[0], std::env::var_os("CARGO")) {
            ("cargo", Some(cargo)) => cargo,
            (program, _) => program.into(),
        };
        let mut process = process::Command::new(program);
        process.args(&self.words[1..]).current_dir(root());
        // What `cargo run` tells this task of itself. Build scripts of some crates look at it, and all that depends on
        // them would be built anew whenever a task and a plain `cargo test` take turns.
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                process.env_remove(&variable);
            }
        }
        process.envs(self.env.iter().map(|(variable, value)| (variable, value)));
        for (variable, other) in &self.env_from {
            process.env(variable, std::env::var_os(other).unwrap_or_default());
        }
        process
    }

    /// Runs it to the end; its output goes where ours goes.
    ///
    /// # Errors
    /// It does not start or does not succeed. The error says how to repeat it.
    pub(crate) fn run(&self) -> Result<()> {
        self.run_and_read(|_| ()).map(drop)
    }

    /// Runs it to the end, passes its standard output on and shows each line of it to `reader`.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn run_and_read(&self, mut reader: impl FnMut(&str)) -> Result<()> {
        println!("\n$ {self}");
        let start = Instant::now();
        let repeat = |what: String| format!("{what}\n  to repeat it: {self}");
        let mut child = self
            .process()
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| repeat(error.to_string()))?;
        let stdout = child.stdout.take().ok_or("a pipe was asked for")?;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            reader(&line);
        }
        let status = child.wait()?;
        println!("({:.0} s)", start.elapsed().as_secs_f64());
        if status.success() {
            return Ok(());
        }
        Err(repeat(format!("failed with {status}")).into())
    }

    /// Runs it silently; gives its standard output if it succeeded.
    pub(crate) fn output(&self) -> Option<String> {
        let output = self.process().stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }
}

impl fmt::Display for Command {
    /// As a line for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (variable, value) in &self.env {
            write!(f, "{variable}={} ", quoted(value))?;
        }
        for (variable, other) in &self.env_from {
            write!(f, "{variable}=\"${other}\" ")?;
        }
        let words: Vec<_> = self.words.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Steps that all run even if one fails.
#[derive(Debug)]
pub(crate) struct Steps {
    failed: Vec<String>,
    /// The seconds of each, in order.
    times: Vec<(String, f64)>,
    /// When the last one ended.
    last: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            failed: Vec::new(),
            times: Vec::new(),
            last: Instant::now(),
        }
    }
}

impl Steps {
    /// Notes how a step ended that has begun when the one before ended.
    pub(crate) fn note(&mut self, step: &str, outcome: Result<()>) {
        let taken = self.last.elapsed();
        self.last = Instant::now();
        self.times.push((step.to_owned(), taken.as_secs_f64()));
        if let Err(error) = outcome {
            println!("{step}: FAILED: {error}");
            self.failed.push(format!("{step}: {error}"));
        }
    }

    /// Prints how long each took.
    ///
    /// # Errors
    /// Some step failed.
    pub(crate) fn finish(self) -> Result<()> {
        let times = self.times.iter();
        let times: Vec<_> = times
            .map(|(step, seconds)| format!("{step} {seconds:.0} s"))
            .collect();
        println!("times: {}", times.join(", "));
        match self.failed.len() {
            0 => Ok(()),
            count => Err(format!("{count} failed\n{}", self.failed.join("\n")).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_can_be_pasted_into_a_shell() {
        let command = Command::new("cargo")
            .args(["test", "a b", "it's"])
            .env("X", "1 2");
        assert_eq!(command.to_string(), "X='1 2' cargo test 'a b' 'it'\\''s'");
        let secret = Command::new("cargo").env_from("URL", "HOME");
        assert_eq!(secret.to_string(), "URL=\"$HOME\" cargo");
    }

    #[test]
    fn a_command_hears_nothing_of_the_package_that_this_task_is_of() {
        let environment = Command::new("env").output().unwrap();
        let names = environment.lines().filter_map(|line| line.split_once('='));
        let told: Vec<_> = names
            .filter(|(name, _)| name.starts_with("CARGO_PKG_"))
            .collect();
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn a_failed_command_says_how_to_repeat_it() {
        let error = Command::new("false").run().unwrap_err();
        assert!(error.to_string().contains("to repeat it: false"), "{error}");
        assert!(Command::new("true").run().is_ok());
    }
}
