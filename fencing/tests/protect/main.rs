//! Tables that the database protects, on real servers: what is refused, what passes, and what slips
//! through. The URLs come from HIGHWATER_TEST_POSTGRES_URL, HIGHWATER_TEST_MYSQL_URL and
//! HIGHWATER_TEST_MARIADB_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

mod mysql;
mod postgres;

use std::sync::atomic::{AtomicU32, Ordering};

use highwater_fencing::{Domain, Fence, FenceKey, FencingToken};

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"))
}

/// A name that no other test on the server has.
fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{stem}_{}_{number}", std::process::id())
}

fn fence(key: &str, token: u64) -> Fence {
    let domain = Domain::named("test").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new(key).unwrap(), token)
}
