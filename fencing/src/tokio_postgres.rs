//! Fenced transactions for `tokio_postgres`.
