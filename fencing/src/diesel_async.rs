//! Fenced transactions for `diesel_async`.
