//! Which rows a report has: adapters of this build, isolation levels, forms.

use crate::adapter::{self, Adapter, Dialect};

use super::words::{Form, Level};

/// What to put through the rounds; an empty list means everything there is.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Names of adapters.
    pub adapters: Vec<String>,
    /// Isolation levels.
    pub levels: Vec<Level>,
    /// Forms. The control runs in any case.
    pub forms: Vec<Form>,
    /// The one level on which the forms besides the closure run, to save time.
    pub other_forms_on: Option<Level>,
}

/// A choice that was found possible.
pub(super) struct Resolved {
    pub(super) adapters: Vec<&'static dyn Adapter>,
    pub(super) levels: Vec<Level>,
    choice: Choice,
}

impl Choice {
    pub(super) fn resolve(&self, dialect: Dialect) -> Result<Resolved, ChoiceError> {
        let mut adapters = Vec::new();
        let built: Vec<_> = adapter::all()
            .into_iter()
            .filter(|adapter| adapter.dialect() == dialect)
            .collect();
        for name in &self.adapters {
            let found = built.iter().find(|adapter| adapter.name() == name);
            adapters.push(*found.ok_or_else(|| unknown(name, dialect, &built))?);
        }
        if self.adapters.is_empty() {
            adapters = built;
        }
        if adapters.is_empty() {
            return Err(ChoiceError::NoAdapter {
                dialect,
                others: features(dialect, &[]),
            });
        }
        let has = |level: &Level| dialect != Dialect::Sqlite || *level == Level::Serializable;
        let levels = if self.levels.is_empty() {
            Level::ALL.into_iter().filter(has).collect()
        } else {
            self.levels.clone()
        };
        if let Some(level) = levels.iter().find(|level| !has(level)) {
            return Err(ChoiceError::NoSuchLevel { level: *level });
        }
        Ok(Resolved {
            adapters,
            levels,
            choice: self.clone(),
        })
    }
}

impl Resolved {
    /// The forms of an adapter on a level; the control is the last.
    pub(super) fn forms(&self, adapter: &dyn Adapter, level: Level) -> Vec<Form> {
        let chosen = |form: &Form| self.choice.forms.is_empty() || self.choice.forms.contains(form);
        let possible = |form: &Form| *form != Form::Join || adapter.abilities().joins;
        // On a level that is not among the chosen ones the others would never run.
        let everywhere = self
            .choice
            .other_forms_on
            .is_none_or(|only| only == level || !self.levels.contains(&only));
        let here = |form: &Form| *form == Form::Closure || everywhere;
        let mut forms: Vec<_> = [Form::Closure, Form::Guard, Form::Join]
            .into_iter()
            .filter(|form| chosen(form) && possible(form) && here(form))
            .collect();
        forms.push(Form::Plain);
        forms
    }
}

fn unknown(name: &str, dialect: Dialect, built: &[&'static dyn Adapter]) -> ChoiceError {
    let built: Vec<_> = built.iter().map(|adapter| adapter.name()).collect();
    ChoiceError::UnknownAdapter {
        name: name.to_owned(),
        dialect,
        others: features(dialect, &built),
        built: built.join(", "),
    }
}

/// What other builds have, as the end of a sentence.
fn features(dialect: Dialect, built: &[&str]) -> String {
    let missing: Vec<_> = FEATURES
        .iter()
        .filter(|(name, _, of)| *of == dialect && !built.contains(name))
        .map(|(name, feature, _)| format!("{name} (feature {feature})"))
        .collect();
    if missing.is_empty() {
        return String::new();
    }
    format!("; a build can also have {}", missing.join(", "))
}

/// Every adapter, the feature that brings it, and its dialect.
const FEATURES: [(&str, &str, Dialect); 14] = [
    ("sqlx", "prove", Dialect::Postgres),
    ("sqlx", "prove", Dialect::MySql),
    ("sqlx", "prove", Dialect::Sqlite),
    ("tokio-postgres", "prove", Dialect::Postgres),
    ("diesel", "prove", Dialect::Postgres),
    ("diesel", "prove-diesel-mysql", Dialect::MySql),
    ("diesel", "prove", Dialect::Sqlite),
    ("diesel-async", "prove", Dialect::Postgres),
    ("diesel-async", "prove", Dialect::MySql),
    ("rusqlite", "prove", Dialect::Sqlite),
    ("mysql-async", "prove", Dialect::MySql),
    ("sea-orm", "prove", Dialect::Postgres),
    ("sea-orm", "prove", Dialect::MySql),
    ("sea-orm", "prove", Dialect::Sqlite),
];

/// The URL with the one spelling of its scheme that every driver knows.
pub(super) fn plain_url(url: &str) -> Result<String, ChoiceError> {
    let (scheme, rest) = url.split_once(':').ok_or(ChoiceError::NoScheme)?;
    let scheme = match scheme {
        "postgresql" => "postgres",
        "mariadb" => "mysql",
        other => other,
    };
    if scheme == "sqlite" && (rest.contains(":memory:") || rest.contains("mode=memory")) {
        return Err(ChoiceError::InMemory);
    }
    Ok(format!("{scheme}:{rest}"))
}

/// The dialect of a plain URL.
pub(super) fn dialect_of(url: &str) -> Result<Dialect, ChoiceError> {
    match url.split(':').next() {
        Some("postgres") => Ok(Dialect::Postgres),
        Some("mysql") => Ok(Dialect::MySql),
        Some("sqlite") => Ok(Dialect::Sqlite),
        _ => Err(ChoiceError::Scheme),
    }
}

/// Why a choice is impossible. No variant shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The URL is no URL.
    #[error("the database URL has no scheme such as postgres:// in front")]
    NoScheme,
    /// The URL names another kind of database.
    #[error("the scheme of the database URL is none of postgres, mysql, mariadb and sqlite")]
    Scheme,
    /// Holders are processes, which share no memory.
    #[error("holders are processes of their own: they need a SQLite file, not one in memory")]
    InMemory,
    /// There is no such adapter for this database in this build.
    #[error("no adapter {name:?} for {dialect} in this build, which has: {built}{others}")]
    UnknownAdapter {
        /// The name that was asked for.
        name: String,
        /// The dialect of the URL.
        dialect: Dialect,
        /// What this build has for it.
        built: String,
        /// What others can have.
        others: String,
    },
    /// This build has no adapter for this database at all.
    #[error("this build has no adapter for {dialect}{others}")]
    NoAdapter {
        /// The dialect of the URL.
        dialect: Dialect,
        /// What others can have.
        others: String,
    },
    /// SQLite has one level.
    #[error("SQLite is always SERIALIZABLE and has no {level}")]
    NoSuchLevel {
        /// What was asked for.
        level: Level,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_brought_to_the_spelling_that_all_drivers_know() {
        let plain = |url| plain_url(url).map_err(|error| error.to_string());
        assert_eq!(plain("mariadb://u@h/d").as_deref(), Ok("mysql://u@h/d"));
        assert_eq!(plain("postgresql://h/d").as_deref(), Ok("postgres://h/d"));
        assert_eq!(plain_url("h/d"), Err(ChoiceError::NoScheme));
        assert_eq!(
            dialect_of("oracle://u:secret@h/d"),
            Err(ChoiceError::Scheme)
        );
        for url in [
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite://a?mode=memory",
        ] {
            assert_eq!(plain_url(url), Err(ChoiceError::InMemory), "{url}");
        }
    }

    #[test]
    fn an_unknown_adapter_is_answered_with_those_there_are() {
        let choice = Choice {
            adapters: vec!["odbc".to_owned()],
            ..Choice::default()
        };
        let error = choice.resolve(Dialect::Postgres).map(drop).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("\"odbc\" for PostgreSQL"), "{said}");
        for adapter in ["sqlx", "tokio-postgres", "diesel"] {
            assert!(said.contains(adapter), "{said}");
        }
    }

    #[test]
    fn sqlite_has_one_level() {
        let choice = Choice {
            levels: vec![Level::ReadCommitted],
            ..Choice::default()
        };
        let refused = choice.resolve(Dialect::Sqlite).map(drop);
        assert!(matches!(refused, Err(ChoiceError::NoSuchLevel { .. })));
        let resolved = Choice::default().resolve(Dialect::Sqlite).unwrap();
        assert_eq!(resolved.levels, [Level::Serializable]);
    }
}
