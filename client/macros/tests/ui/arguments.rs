//! Arguments that are missing, unknown, given twice or wrong.

use highwater_client_macros::{leader, leader_group};

#[leader]
async fn nothing() -> Result<Option<()>, ()> {}

#[leader(lease = "10s")]
async fn no_name(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a")]
async fn no_elector(electors: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", leese = "10s")]
async fn unknown(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", slots = 2)]
async fn slots_of_one(elector: ()) -> Result<Option<()>, ()> {}

#[leader_group(name = "a", slots = "3")]
async fn slots(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "10s", lease = "20s")]
async fn twice(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease)]
async fn without_a_value(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", auto_extend = "yes", on_failure = "skip", on_loss = ignore)]
async fn words(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a")]
async fn hidden(elector: (), ctx: u32) -> Result<Option<()>, ()> {}

#[leader(name = "a" lease = "10s")]
async fn no_comma(elector: ()) -> Result<Option<()>, ()> {}

// All faults of one use at once.
#[leader(name = "a b", lease = "0s", leese = 1)]
fn several(elector: ()) -> Result<Option<()>, ()> {}

fn main() {
    // Its callers compile.
    let _ = twice(());
}
