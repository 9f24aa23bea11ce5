//! What `#[leader]` and `#[leader_group]` are written out to. It may change with any version.

use super::elector::{Elector, Kind};
use super::{
    FailurePolicy, LeaderContext, LeaderElector, LeaderError, LeaderGroupElector,
    LeaderGroupOptions, LeaderOptions, LeaderResult, OptionsError, PolicyResult,
};

/// What a guarded function can return.
#[diagnostic::on_unimplemented(
    message = "a function with `#[leader]` cannot return `{Self}`",
    label = "return `Result<Option<T>, E>`: `Ok(None)` is for who is not elected",
    note = "the error `E` has to be `From<LeaderError>`, since an election can fail"
)]
pub trait Guarded {}

impl<T, E: From<LeaderError>> Guarded for Result<Option<T>, E> {}

/// Says of what type a body is; never called.
pub fn returns<R: Guarded>() -> R {
    unreachable!("it stands in a branch that is never taken")
}

/// The elector of a function, with the times of its attribute.
///
/// # Errors
/// The attribute checks the options with the rules of this crate; one of another version may not.
pub fn single(
    elector: &LeaderElector,
    options: Result<LeaderOptions, OptionsError>,
) -> Result<LeaderElector, OptionsError> {
    options.map(|options| elector.with_options(options))
}

/// The same for a group.
///
/// # Errors
/// As for [`single`].
pub fn group(
    elector: &LeaderGroupElector,
    options: Result<LeaderGroupOptions, OptionsError>,
) -> Result<LeaderGroupElector, OptionsError> {
    options.map(|options| elector.with_options(options))
}

/// Runs the body once, or not.
///
/// # Errors
/// The election failed, the lease was lost, or the body failed.
pub async fn run<K, T, E, F, Fut>(
    elector: Result<Elector<K>, OptionsError>,
    name: String,
    policy: FailurePolicy,
    body: F,
) -> Result<Option<T>, E>
where
    K: Kind,
    E: From<LeaderError>,
    F: FnOnce(LeaderContext) -> Fut,
    Fut: Future<Output = Result<Option<T>, E>>,
{
    let elector = elector.map_err(LeaderError::Options)?;
    let ran = elector.run_with_policy(name, policy, body);
    match ran.await? {
        PolicyResult::Held(LeaderResult::Elected { value, .. }) => Ok(value),
        PolicyResult::Held(LeaderResult::Skipped) | PolicyResult::SkippedByFailure { .. } => {
            Ok(None)
        }
        PolicyResult::Held(LeaderResult::ActionFailed { cause, .. }) => Err(cause),
        PolicyResult::Held(LeaderResult::LeaseLost { reason, term, .. }) => {
            Err(LeaderError::LeaseLost { reason, term }.into())
        }
        PolicyResult::Unprotected { outcome, .. } => outcome,
    }
}
