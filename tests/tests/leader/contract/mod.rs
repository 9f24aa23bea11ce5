//! What every backend has to show. Each case reaches the backend through the electors only; see
//! [`World`](crate::world::World) for what else it may do.

mod elections;
mod endings;
mod leases;
mod views;

pub(crate) use elections::*;
pub(crate) use endings::*;
pub(crate) use leases::*;
pub(crate) use views::*;
