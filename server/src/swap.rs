//! A value that many read and somebody replaces now and then.

use std::sync::{Arc, PoisonError, RwLock};

/// See the module's description. Whoever has read it goes on with what it was then.
#[derive(Debug)]
pub(crate) struct Swap<T: ?Sized>(RwLock<Arc<T>>);

impl<T: ?Sized> Swap<T> {
    pub(crate) fn new(value: impl Into<Arc<T>>) -> Self {
        Self(RwLock::new(value.into()))
    }

    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}
