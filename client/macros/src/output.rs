//! Whether a function can be guarded: it is `async`, and what it returns has a place for not being
//! elected and leaves no work behind.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{ItemFn, ReturnType, Type};

use crate::Faults;
use crate::arguments::Kind;

/// Whether a lease can last from the beginning of its work to the end.
pub(crate) fn check(kind: Kind, function: &ItemFn, faults: &mut Faults) {
    let signature = &function.sig;
    if let Some(word) = &signature.unsafety {
        faults.at(
            word,
            "an unsafe function cannot be guarded: guard a safe one that calls it",
        );
    }
    let work = match &signature.output {
        ReturnType::Default => None,
        ReturnType::Type(_, output) => later(output.to_token_stream()).map(|work| (work, output)),
    };
    match (signature.asyncness, work) {
        (None, Some((work, output))) => faults.at(
            output,
            format!(
                "a plain function that returns a {} is over, and its lease given back, before the \
                 work begins: {}",
                work.noun(),
                work.remedy()
            ),
        ),
        (None, None) => faults.at(
            signature.fn_token,
            format!(
                "{} guards an `async fn`; for others there is `leader::blocking`",
                kind.attribute()
            ),
        ),
        (Some(_), Some((work, output))) => faults.at(
            output,
            format!(
                "a {} that leaves the function goes on when the lease is given back: {}",
                work.noun(),
                work.remedy()
            ),
        ),
        (Some(_), None) => check_output(function, faults),
    }
}

/// Work that goes on behind the return.
#[derive(Clone, Copy)]
enum Later {
    Future,
    Stream,
}

impl Later {
    fn noun(self) -> &'static str {
        match self {
            Self::Future => "future",
            Self::Stream => "stream",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Future => "make it an `async fn` that awaits it",
            Self::Stream => "`stream_if_leader` leads as long as a stream lives",
        }
    }
}

/// Looks for the usual names of futures and streams.
fn later(tokens: TokenStream) -> Option<Later> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Group(group) => later(group.stream()),
        TokenTree::Ident(word) => match &*word.to_string() {
            "Future" | "IntoFuture" | "BoxFuture" | "LocalBoxFuture" | "JoinHandle" => {
                Some(Later::Future)
            }
            "Stream" | "TryStream" | "BoxStream" | "LocalBoxStream" | "AsyncIterator" => {
                Some(Later::Stream)
            }
            _ => None,
        },
        _ => None,
    })
}

/// What can be seen of a wrong type here; the rest is seen by `leader::__attribute::Guarded`.
fn check_output(function: &ItemFn, faults: &mut Faults) {
    let output = match &function.sig.output {
        ReturnType::Default => {
            faults.at(
                &function.sig.ident,
                format!("{NO_VALUE}, here `Result<Option<()>, E>`"),
            );
            return;
        }
        ReturnType::Type(_, output) => &**output,
    };
    if has_impl(output.to_token_stream()) {
        faults.at(
            output,
            "`impl` cannot stand in the type that a guarded function returns: name it",
        );
        return;
    }
    let Type::Path(path) = output else {
        faults.at(output, format!("{NO_VALUE}: `Result<Option<T>, E>`"));
        return;
    };
    let Some(last) = path.path.segments.last() else {
        return;
    };
    let value = match &last.arguments {
        syn::PathArguments::AngleBracketed(list) => {
            list.args.iter().find_map(|argument| match argument {
                syn::GenericArgument::Type(value) => Some(value),
                _ => None,
            })
        }
        _ => None,
    };
    match (&*last.ident.to_string(), value) {
        ("Result", Some(Type::Path(value))) if !is_option(value) => {
            let inner = value.to_token_stream();
            faults.at(
                value,
                format!("{NO_VALUE}: `Option<{inner}>` in place of `{inner}`"),
            );
        }
        ("Result", Some(value)) if !matches!(value, Type::Path(_) | Type::Macro(_)) => {
            let inner = value.to_token_stream();
            faults.at(
                value,
                format!("{NO_VALUE}: `Option<{inner}>` in place of `{inner}`"),
            );
        }
        ("Option", _) => faults.at(
            output,
            "an election can fail: return `Result<Option<T>, E>`, with `E: From<LeaderError>`",
        ),
        _ => {}
    }
}

/// A name that is not `Option` could be another word for it; what has arguments of its own, or is
/// known to every program, is not.
fn is_option(path: &syn::TypePath) -> bool {
    let Some(last) = path.path.segments.last() else {
        return false;
    };
    let word = last.ident.to_string();
    let is_plain = ["String", "bool", "usize", "u32", "u64", "i32", "i64"].contains(&&*word);
    word == "Option" || (last.arguments.is_none() && !is_plain)
}

pub(crate) fn has_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_impl(group.stream()),
        TokenTree::Ident(word) => word == "impl",
        _ => false,
    })
}

const NO_VALUE: &str = "who is not elected has no value: return `Option`";
