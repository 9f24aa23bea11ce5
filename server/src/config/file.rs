//! A configuration file in TOML: options by name, flat.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{Complaints, Origin};
use super::settings::{Setting, ValueKind};

/// One line `name = value` of a file.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) origin: Origin,
    value: Found,
}

/// A value as TOML has it.
enum Found {
    Text(String),
    Number(String),
    Flag(bool),
    List(Vec<Found>),
    Other(&'static str),
}

/// All entries of a file, or `None` if it is not TOML, which is complained about.
pub(super) fn read(path: &Path, text: &str, complaints: &mut Complaints) -> Option<Vec<Entry>> {
    let origin = |offset: usize| Origin::File {
        path: path.to_owned(),
        line: 1 + text[..offset.min(text.len())].matches('\n').count(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let place = origin(error.span().map_or(0, |span| span.start));
        complaints.add("configuration file", &place, error.message());
    }
    if !errors.is_empty() {
        // What was recovered is a guess.
        return None;
    }
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let entries = entries.into_iter().map(|(name, value)| Entry {
        name: name.get_ref().to_string(),
        origin: origin(name.span().start),
        value: Found::of(value.get_ref()),
    });
    Some(entries.collect())
}

impl Found {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => {
                Self::Number(number.as_str().to_owned())
            }
            DeValue::Boolean(flag) => Self::Flag(*flag),
            DeValue::Array(list) => {
                Self::List(list.iter().map(|value| Self::of(value.get_ref())).collect())
            }
            DeValue::Table(_) => Self::Other("a table"),
            DeValue::Integer(_) => Self::Other("a number that is not decimal"),
            DeValue::Float(_) => Self::Other("a number with a fraction"),
            DeValue::Datetime(_) => Self::Other("a date"),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Number(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Other(kind) => kind,
        }
    }
}

impl Entry {
    /// Its values as texts, if they are what the option wants.
    pub(super) fn values(self, setting: &Setting) -> Result<Vec<String>, String> {
        let wanted = match setting.kind() {
            ValueKind::Flag => "true or false",
            ValueKind::Number => "a number",
            ValueKind::Text(_) => "a text in quotes",
            ValueKind::List(_) => "a text in quotes or a list of those",
        };
        let wrong = |found: &Found| format!("it is {}, and must be {wanted}", found.kind());
        match (setting.kind(), self.value) {
            (ValueKind::Flag, Found::Flag(flag)) => Ok(vec![flag.to_string()]),
            (ValueKind::Number, Found::Number(number)) => Ok(vec![number.replace('_', "")]),
            (ValueKind::Text(_) | ValueKind::List(_), Found::Text(text)) => Ok(vec![text]),
            (ValueKind::Text("TOKEN" | "SLOT" | "N"), Found::Number(number)) => {
                Ok(vec![number.replace('_', "")])
            }
            (ValueKind::List(_), Found::List(list)) => {
                let texts = list.into_iter().map(|value| match value {
                    Found::Text(text) => Ok(text),
                    other => Err(wrong(&other)),
                });
                texts.collect()
            }
            (_, other) => Err(wrong(&other)),
        }
    }
}
