//! Without the feature `tracing`.

use highwater_lock::{Domain, FencingToken, KeySet};
use highwater_protocol::Extensions;

use crate::leader::LeaderEvent;
use crate::options::Terms;
use crate::release::Order;
use crate::session::End;
use crate::setup::SetupError;
use crate::{ExtendError, Release, ReleaseError};

pub(crate) struct NoSpan;

pub(crate) fn acquire_span(_: &KeySet, _: &Terms) -> NoSpan {
    NoSpan
}

pub(crate) fn release_span(_: &Order) -> NoSpan {
    NoSpan
}

pub(crate) fn within<F: Future>(_: NoSpan, future: F) -> F {
    future
}

pub(crate) fn connected(_: usize, _: &str, _: Domain, _: Option<Extensions>) {}

pub(crate) fn connect_refused(_: usize, _: &str, _: &SetupError) {}

pub(crate) fn connect_failed(_: usize, _: &str, _: &SetupError) {}

pub(crate) fn disconnected(_: usize, _: &str, _: &End) {}

pub(crate) fn panicked(_: usize, _: &str, _: &str) {}

pub(crate) fn let_go(_: &Order, _: Release) {}

pub(crate) fn not_let_go(_: &Order, _: ReleaseError) {}

pub(crate) fn too_many_dropped(_: &Order) {}

pub(crate) fn dropped_after_the_end(_: &Order) {}

pub(crate) fn closed_with_releases() {}

pub(crate) fn unwanted(_: &KeySet, _: FencingToken) {}

pub(crate) fn not_extended(_: &KeySet, _: FencingToken, _: &ExtendError) {}

pub(crate) fn leader(_: &LeaderEvent) {}
