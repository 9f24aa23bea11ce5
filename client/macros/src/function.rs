//! The function: whether it can be guarded, and how it is written anew.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Expr, FnArg, Ident, ItemFn, Pat, ReturnType, Type};

use crate::arguments::{Arguments, Kind};
use crate::{Faults, name};

/// Gives the function with its body behind the election, or all that is wrong.
pub(crate) fn guard(kind: Kind, arguments: TokenStream, tokens: TokenStream) -> TokenStream {
    let mut faults = Faults::default();
    let function = match syn::parse2::<ItemFn>(tokens.clone()) {
        Ok(function) => function,
        Err(_) => {
            let message = format!("{} guards an `async fn` with a body", kind.attribute());
            let fault = syn::Error::new_spanned(&tokens, message).into_compile_error();
            return quote!(#fault #tokens);
        }
    };
    let arguments = Arguments::read(kind, arguments, &mut faults);
    let parameters = parameters(&function);
    check_kind(kind, &function, &mut faults);
    match &arguments.name {
        Some(name) => name::check(name, &parameters, &mut faults),
        None if faults.0.is_none() => faults.at(
            &function.sig.ident,
            "what is led is missing: `name = \"invoice-close\"`",
        ),
        None => {}
    }
    let elector = elector(&arguments, &function, &parameters, &mut faults);
    let context = context(&arguments, &parameters, &mut faults);
    match (faults.0, arguments.name.is_some(), elector) {
        (None, true, Some(elector)) => write(kind, &arguments, &elector, &context, function),
        (faults, ..) => {
            let faults = faults.map(syn::Error::into_compile_error);
            let rest = placeholder(function);
            quote!(#faults #rest)
        }
    }
}

/// The names that its body has from its parameters.
fn parameters(function: &ItemFn) -> Vec<Ident> {
    let mut names = Vec::new();
    for input in &function.sig.inputs {
        if let FnArg::Typed(input) = input {
            collect(&input.pat, &mut names);
        }
    }
    names
}

fn collect(pattern: &Pat, names: &mut Vec<Ident>) {
    match pattern {
        Pat::Ident(ident) => {
            names.push(ident.ident.clone());
            if let Some((_, inner)) = &ident.subpat {
                collect(inner, names);
            }
        }
        Pat::Reference(reference) => collect(&reference.pat, names),
        Pat::Paren(paren) => collect(&paren.pat, names),
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::TupleStruct(tuple) => tuple.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::Slice(slice) => slice.elems.iter().for_each(|inner| collect(inner, names)),
        Pat::Struct(fields) => {
            let fields = fields.fields.iter();
            fields.for_each(|field| collect(&field.pat, names));
        }
        _ => {}
    }
}

/// Where the elector comes from: an expression of the attribute, or the parameter of that name.
fn elector(
    arguments: &Arguments,
    function: &ItemFn,
    parameters: &[Ident],
    faults: &mut Faults,
) -> Option<Expr> {
    if let Some(elector) = &arguments.elector {
        return Some(elector.clone());
    }
    if parameters.iter().any(|parameter| parameter == "elector") {
        return Some(syn::parse_quote!(elector));
    }
    faults.at(
        &function.sig.ident,
        "no elector: add a parameter `elector: &LeaderElector`, or say where it is, as in \
         `elector = self.elector`",
    );
    None
}

/// What the body calls its context.
fn context(arguments: &Arguments, parameters: &[Ident], faults: &mut Faults) -> Ident {
    let given = arguments.context.clone();
    let context = given.unwrap_or_else(|| Ident::new("ctx", Span::call_site()));
    if let Some(hidden) = parameters.iter().find(|parameter| **parameter == context) {
        let message = format!(
            "the context would hide the parameter `{context}`: give it another name, as in \
             `context = leading`"
        );
        faults.at(hidden, message);
    }
    context
}

/// Whether a lease can last from the beginning of its work to the end.
fn check_kind(kind: Kind, function: &ItemFn, faults: &mut Faults) {
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

fn has_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_impl(group.stream()),
        TokenTree::Ident(word) => word == "impl",
        _ => false,
    })
}

fn write(
    kind: Kind,
    arguments: &Arguments,
    elector: &Expr,
    context: &Ident,
    function: ItemFn,
) -> TokenStream {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = function;
    let here = quote!(::highwater_client::leader);
    let span = |time: std::time::Duration| {
        let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
        quote!(::core::time::Duration::new(#seconds, #nanos))
    };
    let (wait, lease) = (
        span(arguments.wait.duration),
        span(arguments.lease.duration),
    );
    let min_lease = span(arguments.min_lease.duration);
    let Arguments {
        name,
        auto_extend,
        slots,
        on_loss,
        on_failure,
        ..
    } = arguments;
    let (options, slots) = match kind {
        Kind::Single => (format_ident!("LeaderOptions"), None),
        Kind::Group => (
            format_ident!("LeaderGroupOptions"),
            Some(quote!(.slots(#slots))),
        ),
    };
    let with = match kind {
        Kind::Single => format_ident!("single"),
        Kind::Group => format_ident!("group"),
    };
    let options = quote! {
        #here::#options::builder()
            #slots
            .wait(#wait)
            .lease(#lease)
            .min_lease(#min_lease)
            .auto_extend(#auto_extend)
            .on_loss(#here::LossPolicy::#on_loss)
            .build()
    };
    let elector = quote_spanned!(elector.span()=> #here::__attribute::#with(&(#elector), #options));
    let output = match &sig.output {
        ReturnType::Type(_, output) => quote!(#output),
        ReturnType::Default => quote!(()),
    };
    let type_of_body = quote_spanned! {output.span()=>
        if false {
            return #here::__attribute::returns::<#output>();
        }
    };
    quote! {
        #(#attrs)*
        #vis #sig {
            #here::__attribute::run(
                #elector,
                ::std::format!(#name),
                #here::FailurePolicy::#on_failure,
                move |#context: #here::LeaderContext| async move {
                    let _ = &#context;
                    #type_of_body
                    #block
                },
            )
            .await
        }
    }
}

/// Something in place of a function that does not compile, so that its callers do.
fn placeholder(mut function: ItemFn) -> Option<TokenStream> {
    if has_impl(function.sig.output.to_token_stream()) {
        return None;
    }
    *function.block = syn::parse_quote!({ loop {} });
    Some(quote!(#[allow(warnings, clippy::all)] #function))
}

const NO_VALUE: &str = "who is not elected has no value: return `Option`";
