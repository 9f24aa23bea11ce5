//! The options of a server, from all their sources, and `highwater config`.
//!
//! Which options there are, what they mean and what is wrong with them is decided in the server's
//! own `config`; here they become arguments of a command.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand};
use highwater_server::config::{
    Config, ConfigErrors, Effective, Prepared, SECRETS, Setting, Sources, ValueKind, settings,
};
use tracing_subscriber::EnvFilter;

use crate::{access, data};

/// Check or show the configuration of a lock server.
///
/// Options come from the command line, the environment and a file, in this order: a name given
/// on the command line goes before one in the environment, and that before one in the file.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say everything that is wrong, and start nothing.
    ///
    /// Looks at the files of tokens and certificates too, and looks addresses up.
    #[command(after_help = "\
Examples:
  highwater config check --config server.toml
  highwater config check --config server.toml --max-keys 1000")]
    Check(ServerOptions),
    /// Show every option with its value and where that came from, in the form of a file.
    ///
    /// No secret is shown.
    #[command(after_help = "\
Example:
  highwater config print --config server.toml > effective.toml")]
    Print(ServerOptions),
}

/// Checks or shows.
pub(crate) fn run(options: Options) -> Result<(), ConfigureError> {
    let said = match options.command {
        Command::Check(options) => {
            options.prepare()?;
            "nothing is wrong with this configuration\n".to_owned()
        }
        Command::Print(options) => options.effective()?.to_toml(),
    };
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(said.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(ConfigureError::Output)
}

/// The options of a server as they stand on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerOptions {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, Vec<String>)>,
}

impl ServerOptions {
    /// What all sources say together, without a look at the files that options name.
    pub(crate) fn effective(&self) -> Result<Effective, ConfigureError> {
        Ok(self.sources()?.read()?)
    }

    /// The same with secrets, certificates and addresses.
    pub(crate) fn prepare(&self) -> Result<Prepared, ConfigureError> {
        Ok(self.sources()?.prepare()?)
    }

    fn sources(&self) -> Result<Sources, ConfigureError> {
        let mut sources = Sources::default();
        for (name, value) in std::env::vars_os() {
            if let Ok(name) = name.into_string()
                && name != FILE_VARIABLE
            {
                sources.variable(name, value);
            }
        }
        let from_environment = std::env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty());
        if let Some(path) = self.file.clone().or(from_environment.map(Into::into)) {
            let content = read(&path)?;
            sources.file(path, content);
        }
        for (name, values) in &self.flags {
            sources.flag(*name, values);
        }
        if let Ok(folder) = data::directory(None) {
            sources.state_folder(folder);
        }
        sources.check("log-level", |filter| match EnvFilter::try_new(filter) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{filter:?} is not a level or filter: {error}")),
        });
        Ok(sources)
    }
}

impl Args for ServerOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "A TOML file with options; their names are those here [env: {FILE_VARIABLE}]"
            ));
        let defaults = Config::default();
        let arguments = settings()
            .iter()
            .map(|setting| argument(setting, &defaults));
        let secrets = SECRETS.iter();
        let secrets =
            secrets.map(|secret| format!("\n  {}\n          {}", secret.name, secret.help));
        let secrets: Vec<String> = secrets.collect();
        command.arg(file).args(arguments).after_long_help(format!(
            "Secrets come from files, or from these variables, and are never arguments, because \
             other users of the machine can read those:{}",
            secrets.concat()
        ))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &'static Setting, defaults: &Config) -> Arg {
    let default = setting
        .show(defaults)
        .filter(|_| setting.kind() != ValueKind::Flag);
    let default = default.map(|value| format!(" [default: {value}]"));
    let help = format!(
        "{}{} [env: {}]",
        setting.help().trim_end_matches('.'),
        default.unwrap_or_default(),
        setting.variable()
    );
    let argument = Arg::new(setting.name())
        .long(setting.name())
        .value_name(setting.value_name())
        .help(help);
    match setting.kind() {
        ValueKind::Flag => argument
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        ValueKind::List(_) => argument.action(ArgAction::Append),
        _ => argument.action(ArgAction::Set).allow_negative_numbers(true),
    }
}

impl FromArgMatches for ServerOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one("config").cloned();
        for setting in settings() {
            if let Some(values) = matches.get_many::<String>(setting.name()) {
                self.flags.push((setting.name(), values.cloned().collect()));
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, ConfigureError> {
    let unreadable = |source| ConfigureError::File {
        path: path.to_owned(),
        source,
    };
    let content = access::read(path, MOST_FILE_BYTES).map_err(unreadable)?;
    String::from_utf8(content).map_err(|error| {
        let wrong = std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error());
        unreadable(wrong)
    })
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigureError {
    #[error("the configuration file {} cannot be read", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}", listed(.0))]
    Wrong(#[from] ConfigErrors),
    #[error("standard output takes nothing")]
    Output(#[source] std::io::Error),
}

/// One error as it is; several below each other.
fn listed(errors: &ConfigErrors) -> String {
    match errors.errors() {
        [error] => error.to_string(),
        errors => {
            let lines = errors.iter().map(|error| format!("\n  {error}"));
            let lines: Vec<String> = lines.collect();
            format!(
                "{} things are wrong with the configuration:{}",
                lines.len(),
                lines.concat()
            )
        }
    }
}

const FILE_VARIABLE: &str = "HIGHWATER_CONFIG";
/// Far more than a configuration, and not enough to fill the memory with a wrong file.
const MOST_FILE_BYTES: u64 = 1024 * 1024;
