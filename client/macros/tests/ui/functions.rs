//! Functions that cannot be guarded.

use std::future::Future;
use std::pin::Pin;

use highwater_client_macros::{leader, leader_group};

#[leader(name = "a")]
fn plain(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a")]
fn future(elector: ()) -> impl Future<Output = Result<Option<()>, ()>> {}

#[leader(name = "a")]
fn boxed(elector: ()) -> Pin<Box<dyn Future<Output = ()> + Send>> {}

#[leader_group(name = "a")]
fn stream(elector: ()) -> impl futures_core::Stream<Item = u32> {}

#[leader(name = "a")]
async fn future_of_a_future(elector: ()) -> Result<Option<Pin<Box<dyn Future<Output = ()>>>>, ()> {}

#[leader(name = "a")]
async fn future_of_a_stream(elector: ()) -> impl futures_core::Stream<Item = u32> {}

#[leader(name = "a")]
async fn no_value(elector: ()) {}

#[leader(name = "a")]
async fn value(elector: ()) -> Result<u32, ()> {}

#[leader(name = "a")]
async fn unit(elector: ()) -> Result<(), ()> {}

#[leader(name = "a")]
async fn option(elector: ()) -> Option<u32> {}

#[leader(name = "a")]
async fn tuple(elector: ()) -> (u32, u32) {}

#[leader(name = "a")]
async fn nameless(elector: ()) -> Result<Option<impl Sized>, ()> {}

#[leader(name = "a")]
async unsafe fn dangerous(elector: ()) -> Result<Option<()>, ()> {}

#[leader(name = "a")]
struct NoFunction;

fn main() {}
