//! Texts that are no durations.

use highwater_client_macros::leader;

#[leader(name = "a", lease = 10)]
async fn number(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "10")]
async fn without_a_unit(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "10 s", wait = "5min")]
async fn units(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "P1M", min_lease = "PT")]
async fn iso(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a", lease = "PT0.5M", wait = "-1s")]
async fn numbers(elector: ()) -> Result<Option<()>, ()> {}

fn main() {}
