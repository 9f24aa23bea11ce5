//! The bound of a closure that is the body of a fenced transaction.
//!
//! It exists because the future of an async closure has no name, and without one a caller could
//! not ask for it to be `Send`. Nobody implements it: every `async |tx| { … }` already does.

/// An async closure, with a name for the future it returns.
///
/// Write `async |tx| { … }`; the form `|tx| async move { … }` is not one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the body of a fenced transaction",
    label = "expected `async |tx| {{ … }}`"
)]
pub trait Body<T, R>: AsyncFnOnce(T) -> R + FnOnce(T) -> <Self as Body<T, R>>::Fut {
    /// What a call returns.
    type Fut: Future<Output = R>;
}

impl<F, T, R, Fut> Body<T, R> for F
where
    F: AsyncFnOnce(T) -> R + FnOnce(T) -> Fut,
    Fut: Future<Output = R>,
{
    type Fut = Fut;
}
