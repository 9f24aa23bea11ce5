//! What the methods of every adapter are methods of: a fence, with or without options of its own.

use highwater_lock::Fence;

use crate::options::{Configured, FenceOptions};

/// What is offered to the database, and how.
#[expect(
    unnameable_types,
    reason = "sealed: implemented for `Fence` and `Configured` only"
)]
pub trait Offer: Sync {
    #[doc(hidden)]
    fn offered(&self) -> (&Fence, &FenceOptions);
}

impl Offer for Fence {
    fn offered(&self) -> (&Fence, &FenceOptions) {
        static DEFAULT: FenceOptions = FenceOptions::new();
        (self, &DEFAULT)
    }
}

impl Offer for Configured {
    fn offered(&self) -> (&Fence, &FenceOptions) {
        (self.fence(), self.options())
    }
}
