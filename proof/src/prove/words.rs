//! What the proof and its holder processes say to each other: one JSON value per line.

use std::fmt;
use std::str::FromStr;

use highwater_fencing::Isolation;
use serde::{Deserialize, Serialize};

/// How a holder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Fenced, with the closure form `transaction`.
    Closure,
    /// Fenced, with the guard form `begin`.
    Guard,
    /// Fenced, with `admit` into a transaction that the driver began.
    Join,
    /// The control: a plain transaction of the driver.
    Plain,
}

impl Form {
    /// Whether the database is shown the token.
    pub fn is_fenced(self) -> bool {
        self != Self::Plain
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closure => "closure",
            Self::Guard => "guard",
            Self::Join => "join",
            Self::Plain => "none (control)",
        })
    }
}

impl FromStr for Form {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "closure" => Ok(Self::Closure),
            "guard" => Ok(Self::Guard),
            "join" => Ok(Self::Join),
            _ => Err("the forms are closure, guard and join; the control always runs"),
        }
    }
}

/// An isolation level by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE, the only one that SQLite has.
    Serializable,
}

impl Level {
    pub(super) const ALL: [Self; 3] = [
        Self::ReadCommitted,
        Self::RepeatableRead,
        Self::Serializable,
    ];

    pub(super) fn of_fencing(self) -> Isolation {
        match self {
            Self::ReadCommitted => Isolation::ReadCommitted,
            Self::RepeatableRead => Isolation::RepeatableRead,
            Self::Serializable => Isolation::Serializable,
        }
    }
}

impl fmt::Display for Level {
    /// The words of SQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        })
    }
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().replace([' ', '_'], "-").as_str() {
            "read-committed" => Ok(Self::ReadCommitted),
            "repeatable-read" => Ok(Self::RepeatableRead),
            "serializable" => Ok(Self::Serializable),
            _ => Err("the levels are read-committed, repeatable-read and serializable"),
        }
    }
}

/// How the transactions of a holder are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct How {
    pub(super) form: Form,
    pub(super) level: Level,
}

/// Where a holder stops in its writing transaction, once, says so, and waits for its end or for
/// [`Command::GoOn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stop {
    /// Nowhere.
    Never,
    /// The transaction has begun, behind the fence if there is one.
    Begun,
    /// The stock is changed.
    Updated,
    /// The deduction is recorded too; only the commit is missing.
    Recorded,
    /// The commit has succeeded, and nobody was told.
    Committed,
}

/// What a holder is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Take the lock from the lock server at this address.
    Acquire { server: String, key: String },
    /// In a transaction: see whether the order is recorded, else read and remember the stock.
    Read { how: How, order: i64, sku: i64 },
    /// In a transaction: set the stock to what was read less the quantity, and record that.
    Write {
        how: How,
        deduction: i64,
        order: i64,
        sku: i64,
        quantity: i64,
        stop: Stop,
    },
    /// Go on behind where it stopped.
    GoOn,
    /// Give the lock back. A holder that was overtaken has none; that is no failure.
    Release,
}

/// What a holder answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Ready,
    Acquired {
        token: u64,
    },
    Stock {
        quantity: i64,
    },
    /// The order is in the database already.
    Recorded,
    Stopped {
        at: Stop,
        /// How the server calls the session of the transaction that is open, where there is a server.
        session: Option<i64>,
    },
    Written,
    /// The fence refused the transaction.
    Stale {
        offered: u64,
        highest: u64,
    },
    Released,
    Failed {
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_forms_are_read_as_people_write_them() {
        for text in ["read-committed", "READ COMMITTED", "Read_Committed"] {
            assert_eq!(text.parse(), Ok(Level::ReadCommitted));
        }
        assert!("snapshot".parse::<Level>().is_err());
        assert_eq!("join".parse(), Ok(Form::Join));
        assert!("plain".parse::<Form>().is_err(), "the control is no choice");
    }
}
