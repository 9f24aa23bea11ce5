//! sea_orm.

use super::Adapter;

/// None yet.
pub(super) const ADAPTERS: [&dyn Adapter; 0] = [];
