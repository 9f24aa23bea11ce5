//! The function, written anew.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Expr, FnArg, Ident, ItemFn, Pat, ReturnType};

use crate::arguments::{Arguments, Kind};
use crate::{Faults, name, output};

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
    output::check(kind, &function, &mut faults);
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
    if let Some(parameter) = parameters.iter().find(|parameter| *parameter == "elector") {
        return Some(syn::parse_quote!(#parameter));
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
    // Not in braces of its own, for which the compiler would have a warning.
    let body = &block.stmts;
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
                    #(#body)*
                },
            )
            .await
        }
    }
}

/// Something in place of a function that does not compile, so that its callers do.
fn placeholder(mut function: ItemFn) -> Option<TokenStream> {
    if output::has_impl(function.sig.output.to_token_stream()) {
        return None;
    }
    *function.block = syn::parse_quote!({ loop {} });
    Some(quote!(#[allow(warnings, clippy::all)] #function))
}
