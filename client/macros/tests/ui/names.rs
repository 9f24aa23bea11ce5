//! Names that no lock can have, and braces with something else than a parameter.

use highwater_client_macros::leader;

#[leader(name = "")]
async fn empty(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "close invoices")]
async fn space(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "close-{region}\n")]
async fn line(elector: (), region: &str) -> Result<Option<()>, ()> {}

#[leader(name = "0123456789012345678901234567890123456789\
    0123456789012345678901234567890123456789\
    0123456789012345678901234567890123456789012345678")]
async fn long(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "close-{regoin}")]
async fn unknown(elector: (), region: &str) -> Result<Option<()>, ()> {}

#[leader(name = "close-{}")]
async fn nothing(elector: (), region: &str) -> Result<Option<()>, ()> {}

#[leader(name = "close-{order.id}-{0}")]
async fn expression(elector: (), order: ()) -> Result<Option<()>, ()> {}

#[leader(name = "close-{region")]
async fn open(elector: (), region: &str) -> Result<Option<()>, ()> {}

#[leader(name = NAME)]
async fn no_text(elector: ()) -> Result<Option<()>, ()> {}

fn main() {}
