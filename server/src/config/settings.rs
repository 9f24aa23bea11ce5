//! What an option is.
//!
//! Which options there are stands in the [`table`](super::table).

use super::Config;
use super::table::SETTINGS;
use super::value::Wrong;

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    pub(super) help: &'static str,
    pub(super) set: fn(&mut Config, &[String]) -> Result<(), Wrong>,
    pub(super) show: fn(&Config) -> Option<Shown>,
}

/// The value of an option, as text.
pub(super) enum Shown {
    One(String),
    List(Vec<String>),
}

/// What the value of an option is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// `true` or `false`; on the command line the name alone is `true`.
    Flag,
    /// A whole number.
    Number,
    /// A text; the word says of what kind.
    Text(&'static str),
    /// Any number of texts: repeated on the command line, a list in a file, and separated like
    /// `PATH` in the environment.
    List(&'static str),
}

impl Setting {
    /// Its name in a file, and behind `--` on the command line.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its name in the environment.
    pub fn variable(&self) -> String {
        let name = self.name.replace('-', "_");
        format!("HIGHWATER_{}", name.to_ascii_uppercase())
    }

    /// What its value is.
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// The word for its value in a help text.
    pub fn value_name(&self) -> &'static str {
        match self.kind {
            ValueKind::Flag => "BOOL",
            ValueKind::Number => "N",
            ValueKind::Text(word) | ValueKind::List(word) => word,
        }
    }

    /// What it does, in one sentence or a few.
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// Its value, or `None` if there is none. The values of a list are separated by commas.
    pub fn show(&self, config: &Config) -> Option<String> {
        Some(match (self.show)(config)? {
            Shown::One(value) => value,
            Shown::List(values) => values.join(", "),
        })
    }

    /// Its value as it stands in a file.
    pub(super) fn toml(&self, config: &Config) -> Option<String> {
        Some(match ((self.show)(config)?, self.kind) {
            (Shown::One(value), ValueKind::Flag | ValueKind::Number) => value,
            (Shown::One(value), _) => quoted(&value),
            (Shown::List(values), _) => {
                let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
                format!("[{}]", values.join(", "))
            }
        })
    }
}

/// All options, in the order in which they are documented.
pub fn settings() -> &'static [Setting] {
    SETTINGS
}

pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// A text as TOML writes it between quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(letter)));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_with_hyphens_and_none_is_there_twice() {
        let mut names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        for name in &names {
            let legal = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(name.bytes().all(legal), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(find("max-wait").unwrap().variable(), "HIGHWATER_MAX_WAIT");
    }

    #[test]
    fn what_is_shown_can_be_set_and_is_shown_again() {
        let mut config = Config::default();
        for setting in SETTINGS {
            let value = match (setting.show(&config), setting.kind) {
                (Some(shown), _) => shown,
                (None, ValueKind::Text("ADDR")) => "localhost:7".to_owned(),
                (None, ValueKind::Text("SLOT")) => "4".to_owned(),
                (None, _) => "7".to_owned(),
            };
            (setting.set)(&mut config, std::slice::from_ref(&value)).unwrap();
            assert_eq!(setting.show(&config), Some(value), "{}", setting.name);
        }
    }

    #[test]
    fn every_option_has_a_place_of_its_own() {
        for setting in SETTINGS {
            let mut config = Config::default();
            let value = match setting.kind {
                ValueKind::Flag => "true",
                ValueKind::Number => "70007",
                ValueKind::Text("TIME") => "1234567us",
                ValueKind::Text("ADDR") => "localhost:7",
                ValueKind::Text("SLOT") => "4",
                ValueKind::Text("FORMAT") => "json",
                ValueKind::Text("WHAT") => "trust-fencing",
                _ => "7",
            };
            let value = match setting.name {
                "admin-page" => "7007",
                _ => value,
            };
            (setting.set)(&mut config, &[value.to_owned()]).unwrap();
            for other in SETTINGS {
                let expected = match other.name == setting.name {
                    true => Some(value.to_owned()),
                    false => other.show(&Config::default()),
                };
                let shown = other.show(&config);
                assert_eq!(shown, expected, "{} after {}", other.name, setting.name);
            }
        }
    }
}
