//! `highwater completions` and `highwater man`: what shells and `man` know of this program.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

/// Print what a shell needs to complete the words of this program.
///
/// Examples:
///   highwater completions bash > /etc/bash_completion.d/highwater
///   highwater completions zsh > ~/.zfunc/_highwater
///   highwater completions fish > ~/.config/fish/completions/highwater.fish
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionOptions {
    /// For which shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write one for every subcommand.
///
/// Examples:
///   highwater man | man -l -
///   highwater man --into /usr/local/share/man/man1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ManOptions {
    /// Write highwater.1, highwater-serve.1 and so on into this directory.
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// Prints the completions of the whole program.
pub(crate) fn run_completions(
    options: CompletionOptions,
    mut program: Command,
) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut program, "highwater", &mut text);
    print(&text)
}

/// Prints the manual, or writes it into a directory.
pub(crate) fn run_man(options: ManOptions, program: Command) -> Result<(), Error> {
    match options.into {
        None => {
            let mut text = Vec::new();
            let page = clap_mangen::Man::new(program).render(&mut text);
            page.map_err(Error::Output)?;
            print(&text)
        }
        Some(path) => {
            let written = clap_mangen::generate_to(program, &path);
            written.map_err(|source| Error::Directory { path, source })
        }
    }
}

fn print(text: &[u8]) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text).and_then(|()| stdout.flush());
    written.map_err(Error::Output)
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("standard output takes nothing")]
    Output(#[source] io::Error),
    #[error("{} takes no manual pages", path.display())]
    Directory { path: PathBuf, source: io::Error },
}
