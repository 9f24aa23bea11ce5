//! With the feature `tracing`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use highwater_lock::{Domain, FencingToken, KeySet};
use highwater_protocol::Extensions;
use tracing::{Instrument as _, Span, debug, info, info_span, warn};

use crate::leader::{LeaderEvent, LeaseEnd, Occurrence, discard};
use crate::options::Terms;
use crate::release::Order;
use crate::session::End;
use crate::setup::SetupError;
use crate::{ExtendError, Release, ReleaseError};

/// A subscriber is the code of others. If it panics, that ends no connection, and nothing else that tells.
fn safely(tell: impl FnOnce()) {
    discard(catch_unwind(AssertUnwindSafe(tell)));
}

/// Around an acquire, from the call to its outcome.
pub(crate) fn acquire_span(keys: &KeySet, terms: &Terms) -> Span {
    info_span!("acquire", %keys, wait = ?terms.wait, lease = ?terms.lease)
}

/// Around the releases that somebody waits for.
pub(crate) fn release_span(order: &Order) -> Span {
    info_span!("release", keys = %order.keys, token = %order.token)
}

/// The future inside of the span.
pub(crate) fn within<F: Future>(span: Span, future: F) -> impl Future<Output = F::Output> {
    future.instrument(span)
}

pub(crate) fn connected(
    index: usize,
    address: &str,
    domain: Domain,
    extensions: Option<Extensions>,
) {
    safely(|| info!(connection = index, address, %domain, ?extensions, "connected"));
}

pub(crate) fn connect_refused(index: usize, address: &str, error: &SetupError) {
    safely(|| warn!(connection = index, address, %error, "connection refused"));
}

pub(crate) fn connect_failed(index: usize, address: &str, error: &SetupError) {
    safely(|| debug!(connection = index, address, %error, "no connection"));
}

pub(crate) fn disconnected(index: usize, address: &str, reason: &End) {
    safely(|| info!(connection = index, address, %reason, "connection ended"));
}

/// Of a dialer, or of a stream that it gave.
pub(crate) fn panicked(index: usize, address: &str, what: &str) {
    safely(|| {
        warn!(
            connection = index,
            address, what, "a panic ended a connection; it is tried again"
        )
    });
}

pub(crate) fn let_go(order: &Order, release: Release) {
    safely(|| debug!(keys = %order.keys, token = %order.token, ?release, "let go"));
}

pub(crate) fn not_let_go(order: &Order, error: ReleaseError) {
    safely(|| warn!(keys = %order.keys, token = %order.token, %error, "not let go"));
}

pub(crate) fn too_many_dropped(order: &Order) {
    safely(|| {
        warn!(
            keys = %order.keys, token = %order.token,
            "too many dropped tickets: this lock is kept until its lease ends",
        );
    });
}

pub(crate) fn dropped_after_the_end(order: &Order) {
    safely(|| {
        warn!(
            keys = %order.keys, token = %order.token,
            "the client is closed: this lock is kept until its lease ends",
        );
    });
}

pub(crate) fn closed_with_releases() {
    safely(|| warn!("closed with releases under way: those locks end with their leases"));
}

pub(crate) fn unwanted(keys: &KeySet, token: FencingToken) {
    safely(|| debug!(%keys, %token, "granted to nobody any more: let go"));
}

pub(crate) fn not_extended(keys: &KeySet, token: FencingToken, error: &ExtendError) {
    safely(|| warn!(%keys, %token, %error, "not extended"));
}

/// What an operator wants to know at once is a warning.
pub(crate) fn leader(event: &LeaderEvent) {
    safely(|| tell(event));
}

fn tell(event: &LeaderEvent) {
    let LeaderEvent { name, node, what } = event;
    match what {
        Occurrence::Elected { token, slot } => info!(%name, %node, %token, slot, "elected"),
        Occurrence::Revoked { token, reason } => {
            warn!(%name, %node, %token, %reason, "the leadership is lost");
        }
        Occurrence::ExtensionFailed { token, error } => {
            warn!(%name, %node, %token, error = %chain(error), "the lease was not extended");
        }
        Occurrence::Failed { error } => {
            warn!(%name, %node, error = %chain(error), "the election failed");
        }
        Occurrence::Unprotected => warn!(%name, %node, "an action runs without a lock"),
        Occurrence::Ended {
            token,
            end: LeaseEnd::Unknown { error },
            ..
        } => {
            warn!(%name, %node, %token, error = %chain(error), "the lease may not be given back");
        }
        Occurrence::Ended { token, outcome, .. } => {
            info!(%name, %node, %token, ?outcome, "the leadership is over");
        }
        Occurrence::Skipped | Occurrence::Extended { .. } => debug!(%name, %node, ?what),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}
