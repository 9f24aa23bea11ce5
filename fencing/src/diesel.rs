//! Fenced transactions for `diesel`.
