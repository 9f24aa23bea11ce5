//! One value behind a `=`; a wrong one is a fault.

use syn::{Expr, ExprLit, Ident, Lit, LitStr};

use crate::Faults;

/// A text in quotes.
pub(crate) fn text(value: Expr, faults: &mut Faults) -> Option<LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text),
        other => {
            let message =
                "a name is a text in quotes, with parameters in braces: \"close-{region}\"";
            faults.at(other, message);
            None
        }
    }
}

/// `true` or `false`.
pub(crate) fn boolean(value: &Expr, faults: &mut Faults) -> Option<bool> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Bool(value),
            ..
        }) => Some(value.value),
        other => {
            faults.at(other, "`auto_extend` stands alone, or is `true` or `false`");
            None
        }
    }
}

/// How many may lead.
pub(crate) fn slots(value: &Expr, faults: &mut Faults) -> Option<u32> {
    if let Expr::Lit(ExprLit {
        lit: Lit::Int(number),
        ..
    }) = value
        && let Ok(slots @ 1..) = number.base10_parse::<u32>()
    {
        return Some(slots);
    }
    faults.at(
        value,
        "a group has at least one slot: `slots` is a whole number, 1 to 4294967295",
    );
    None
}

/// One word.
pub(crate) fn word(value: &Expr, example: &str, faults: &mut Faults) -> Option<Ident> {
    match value {
        Expr::Path(path) if path.attrs.is_empty() => match path.path.get_ident() {
            Some(word) => Some(word.clone()),
            None => {
                faults.at(value, format!("this is one word, such as `{example}`"));
                None
            }
        },
        other => {
            faults.at(other, format!("this is one word, such as `{example}`"));
            None
        }
    }
}

/// One of some words, each with the variant that it means.
pub(crate) fn choice(value: &Expr, known: &[(&str, &str)], faults: &mut Faults) -> Option<Ident> {
    if let Expr::Path(path) = value
        && let Some(word) = path.path.get_ident()
        && let Some((_, variant)) = known.iter().find(|(known, _)| word == known)
    {
        return Some(Ident::new(variant, word.span()));
    }
    let known: Vec<String> = known
        .iter()
        .map(|(known, _)| format!("`{known}`"))
        .collect();
    faults.at(value, format!("this is one of {}", known.join(", ")));
    None
}
