//! The store on a disk that fails, crashes and forgets at every step.

mod crashes;
mod folder;
mod model;
mod reserve;

pub(crate) use self::model::{Fault, ModelDisk};
