//! A driver's error as the suites see it, with the original inside.

use std::error::Error;

use highwater_fencing::{FenceError, Poisoned};

use super::Verdict;

/// Any error of a body. An adapter finds its driver's error in it by its causes.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// An error of some driver.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct DriverError {
    text: String,
    /// SQLSTATE, error number or result code, where there is one.
    code: Option<String>,
    poisoned: Option<Poisoned>,
    #[source]
    source: Option<BoxError>,
}

impl DriverError {
    /// Wraps the error of a driver.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self {
            text: error.to_string(),
            code: None,
            poisoned: None,
            source: Some(Box::new(error)),
        }
    }

    /// An error that no driver made.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            code: None,
            poisoned: None,
            source: None,
        }
    }

    /// Says more than the driver's error does by itself.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// Adds the code.
    #[must_use]
    pub fn with_code(mut self, code: Option<String>) -> Self {
        self.code = code;
        self
    }

    /// Says that the statement was refused because of an earlier failure.
    #[must_use]
    pub fn with_poisoned(mut self, poisoned: Option<Poisoned>) -> Self {
        self.poisoned = poisoned;
        self
    }

    /// SQLSTATE, error number or result code, where there is one.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// That the statement was refused because of an earlier failure.
    pub fn poisoned(&self) -> Option<&Poisoned> {
        self.poisoned.as_ref()
    }
}

/// Turns the error that a closure form returned into one of the suites: a verdict of the adapter
/// loses its driver's type, everything else stays.
pub(crate) fn plain<D: Error + Send + Sync + 'static>(
    error: BoxError,
    wrap: fn(D) -> DriverError,
) -> BoxError {
    match error.downcast::<FenceError<D>>() {
        Ok(verdict) => Box::<Verdict>::new(verdict.map_driver(wrap)),
        Err(other) => other,
    }
}
