//! What is wrong with a configuration: everything at once, each with its place.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody said anything.
    #[default]
    Default,
    /// A line of a configuration file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The command line.
    Flag {
        /// The name of the option, without the dashes.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { name } => write!(f, "--{name}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The option or variable that it is about.
    pub option: String,
    /// Where its value came from.
    pub origin: Origin,
    /// What is wrong with it, and what to do. Never shows a secret.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            option,
            origin,
            message,
        } = self;
        match origin {
            Origin::Default => write!(f, "{option}: {message}"),
            origin => write!(f, "{option} ({origin}): {message}"),
        }
    }
}

/// Everything that is wrong, never nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Each of them.
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// One on each line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, error) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// What is wrong so far.
#[derive(Debug, Default)]
pub(super) struct Complaints(Vec<ConfigError>);

impl Complaints {
    pub(super) fn add(
        &mut self,
        option: impl Into<String>,
        origin: &Origin,
        message: impl Into<String>,
    ) {
        self.0.push(ConfigError {
            option: option.into(),
            origin: origin.clone(),
            message: message.into(),
        });
    }

    /// Whether something is wrong with this option already.
    pub(super) fn is_about(&self, option: &str) -> bool {
        self.0.iter().any(|error| error.option == option)
    }

    /// The value, if nothing is wrong.
    pub(super) fn unless_any<T>(self, value: T) -> Result<T, ConfigErrors> {
        match self.0.is_empty() {
            true => Ok(value),
            false => Err(ConfigErrors(self.0)),
        }
    }
}
