//! diesel.

use super::Adapter;

/// None yet.
pub(super) const ADAPTERS: [&dyn Adapter; 0] = [];
