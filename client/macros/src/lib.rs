//! The attributes of `highwater_client::leader`, to be used from there (feature `macros`).
//!
//! `arguments` reads what stands in the parentheses (`value`), `time` and `name` what stands in its
//! texts; `output` says whether a function can be guarded, and `function` writes it anew. All faults of one use are told together, each
//! where it stands.

mod arguments;
mod function;
mod name;
mod output;
mod time;
mod value;

use proc_macro::TokenStream;

use self::arguments::Kind;

/// Runs an async function only while it is elected leader of a name.
///
/// See `highwater_client::leader::attributes`.
#[proc_macro_attribute]
pub fn leader(arguments: TokenStream, function: TokenStream) -> TokenStream {
    function::guard(Kind::Single, arguments.into(), function.into()).into()
}

/// Runs an async function only while it is elected one of the leaders of a name.
///
/// See `highwater_client::leader::attributes`.
#[proc_macro_attribute]
pub fn leader_group(arguments: TokenStream, function: TokenStream) -> TokenStream {
    function::guard(Kind::Group, arguments.into(), function.into()).into()
}

/// All that is wrong with one use of an attribute.
#[derive(Default)]
struct Faults(Option<syn::Error>);

impl Faults {
    fn add(&mut self, fault: syn::Error) {
        match &mut self.0 {
            Some(faults) => faults.combine(fault),
            none => *none = Some(fault),
        }
    }

    /// Notes a fault where these tokens stand.
    fn at(&mut self, tokens: impl quote::ToTokens, message: impl std::fmt::Display) {
        self.add(syn::Error::new_spanned(tokens, message));
    }

    /// The value of a result, or nothing and its fault.
    fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|fault| self.add(fault)).ok()
    }
}
