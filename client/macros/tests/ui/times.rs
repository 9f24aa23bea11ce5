//! Durations that do not fit together.

use highwater_client_macros::{leader, leader_group};

#[leader(name = "a", lease = "0s")]
async fn zero(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "3601s", wait = "PT2H")]
async fn too_long(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "10s", min_lease = "PT10.001S")]
async fn minimum(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", min_lease = "61s")]
async fn minimum_of_the_default(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "299ms", auto_extend)]
async fn too_short_to_extend(elector: ()) -> Result<Option<()>, ()> {}

#[leader_group(name = "a", lease = "1s", min_lease = "2s", slots = 0)]
async fn group(elector: ()) -> Result<Option<()>, ()> {}

fn main() {}
