//! Leader election over the in-process backend, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod terms;

use std::time::Duration;

use highwater_client::leader::{InProcess, LeaderElector, LeaderOptions, LeaderOptionsBuilder};

const SECOND: Duration = Duration::from_secs(1);

/// A lease of 30 s and one try.
fn options(node: &str) -> LeaderOptionsBuilder {
    LeaderOptions::builder()
        .wait(Duration::ZERO)
        .lease(30 * SECOND)
        .node(node)
}

fn candidate(service: &InProcess, node: &str) -> LeaderElector {
    elector(service, options(node))
}

fn elector(service: &InProcess, options: LeaderOptionsBuilder) -> LeaderElector {
    LeaderElector::new(service.clone(), options.build().unwrap())
}
