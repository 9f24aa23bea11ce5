//! The name of an election, with parameters of the function in it: `close-{region}`.

use highwater_lock::{Key, KeyError};
use syn::{Ident, LitStr};

use crate::Faults;

/// Checks a name as far as it is known now: its fixed parts, and what stands in its braces.
pub(crate) fn check(name: &LitStr, parameters: &[Ident], faults: &mut Faults) {
    let text = name.value();
    match split(&text) {
        Err(fault) => faults.at(name, fault),
        Ok(Template { fixed, holes }) => {
            // An argument can make a key of an empty text, but no key of a wrong one.
            let only_holes = fixed.is_empty() && !holes.is_empty();
            if !only_holes && let Err(fault) = Key::new(&fixed) {
                faults.at(
                    name,
                    format!("this is no name of a lock: {}", said(&fixed, fault)),
                );
            }
            for hole in holes {
                if let Err(fault) = check_hole(&hole, parameters) {
                    faults.at(name, fault);
                }
            }
        }
    }
}

/// What is wrong with the fixed parts.
fn said(fixed: &str, fault: KeyError) -> String {
    match fault {
        KeyError::Forbidden { position } => {
            let wrong = fixed[position..].chars().next().unwrap_or_default();
            format!("a key must not contain {wrong:?}")
        }
        other => other.to_string(),
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Template {
    /// What stands outside of the braces.
    fixed: String,
    /// What stands in them, without a format behind a colon.
    holes: Vec<String>,
}

fn split(text: &str) -> Result<Template, &'static str> {
    let mut template = Template::default();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if letters.peek() == Some(&letter) => {
                template.fixed.push(letter);
                letters.next();
            }
            '{' => {
                let mut hole = String::new();
                loop {
                    match letters.next() {
                        Some('}') => break,
                        Some('{') | None => return Err("a brace is open: `{{` stands for `{`"),
                        Some(letter) => hole.push(letter),
                    }
                }
                let end = hole.find(':').unwrap_or(hole.len());
                template.holes.push(hole[..end].trim_end().to_owned());
            }
            '}' => return Err("a brace is closed that was not opened: `}}` stands for `}`"),
            letter => template.fixed.push(letter),
        }
    }
    Ok(template)
}

fn check_hole(hole: &str, parameters: &[Ident]) -> Result<(), String> {
    let Ok(ident) = syn::parse_str::<Ident>(hole) else {
        let hole = match hole {
            "" => "nothing".to_owned(),
            hole => format!("`{hole}`"),
        };
        return Err(format!(
            "braces hold the name of a parameter, and here {hole}: make it a parameter of its own"
        ));
    };
    let is_constant = hole.starts_with(|letter: char| letter.is_ascii_uppercase());
    if is_constant || parameters.contains(&ident) {
        return Ok(());
    }
    let known: Vec<String> = parameters
        .iter()
        .map(|known| format!("`{known}`"))
        .collect();
    let known = match known.is_empty() {
        true => "it has none".to_owned(),
        false => format!("there is {}", known.join(", ")),
    };
    Err(format!(
        "`{hole}` is no parameter of this function; {known}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_format_does() {
        let cases: [(&str, &str, &[&str]); 6] = [
            ("a/b", "a/b", &[]),
            ("close-{region}", "close-", &["region"]),
            ("{a}{b:04}-{c:?}", "-", &["a", "b", "c"]),
            ("{{a}}", "{a}", &[]),
            ("{{{a}}}", "{}", &["a"]),
            ("{}", "", &[""]),
        ];
        for (text, fixed, holes) in cases {
            let template = split(text).unwrap();
            assert_eq!(
                (&*template.fixed, &*template.holes),
                (
                    fixed,
                    &*holes
                        .iter()
                        .map(|hole| (*hole).to_owned())
                        .collect::<Vec<_>>()
                ),
                "{text}"
            );
        }
        for text in ["{", "}", "a{b", "a}b", "{a{b}", "{a}}"] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
