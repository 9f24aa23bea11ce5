//! Programs of the system: `ip` and `nft`.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::Failure;

/// Runs a program to its end; gives what it said.
///
/// # Errors
/// It cannot be started or does not succeed; the text has its words and what it complained of.
pub(crate) async fn run(words: &[&str]) -> Result<String, Failure> {
    run_with(words, "").await
}

/// The same, with something on its standard input.
pub(crate) async fn run_with(words: &[&str], input: &str) -> Result<String, Failure> {
    let said = |what: &str| format!("{}: {}", words.join(" "), what.trim());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| said(&error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads nothing may have ended already.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        return Err(said(&String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
