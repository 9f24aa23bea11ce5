//! Fenced transactions for `mysql_async`.
