//! Fenced transactions for `rusqlite`.
