//! Fenced transactions for `sea_orm`.
