//! A fenced write of one row in one round trip.

use std::fmt;

use ::tokio_postgres::Error;
use ::tokio_postgres::types::{ToSql, Type};

use crate::TableName;
use crate::sql::row::{self, Set, Shape, Slot, Verb};

/// A write of one row that is named by its primary key: which row, and what its columns become, by
/// themselves or by values of yours. A value that you [`set`](Self::set) must not come from what you
/// read before.
///
/// ```
/// use highwater_fencing::TableName;
/// use highwater_fencing::tokio_postgres::RowWrite;
/// use tokio_postgres::types::Type;
///
/// let stock = TableName::new("stock")?;
/// let write = RowWrite::update(stock, "sku", &"apple", Type::TEXT)
///     .subtract("quantity", &2_i32, Type::INT4);
/// # Ok::<(), highwater_fencing::TableNameError>(())
/// ```
///
/// Names are quoted, so capital letters count. The types are those of [`Query`](super::Query).
#[derive(Clone)]
pub struct RowWrite<'v> {
    shape: Shape,
    names: Vec<Param<'v>>,
    values: Vec<Param<'v>>,
}

type Param<'v> = (&'v (dyn ToSql + Sync), Type);

impl<'v> RowWrite<'v> {
    /// Changes the row whose primary key has this value. If it names more than one row, that is an
    /// error.
    pub fn update(table: TableName, key: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        Self::new(Verb::Update, table).key(key, value, ty)
    }

    /// Inserts a row with this primary key; if there is one already, that is the database's error.
    pub fn insert(table: TableName, key: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        Self::new(Verb::Insert, table).key(key, value, ty)
    }

    /// Deletes the row whose primary key has this value.
    pub fn delete(table: TableName, key: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        Self::new(Verb::Delete, table).key(key, value, ty)
    }

    fn new(verb: Verb, table: TableName) -> Self {
        Self {
            shape: Shape::new(verb, table),
            names: Vec::new(),
            values: Vec::new(),
        }
    }

    /// A further column of the primary key.
    #[must_use]
    pub fn key(mut self, column: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        self.shape.name(column);
        self.names.push((value, ty));
        self
    }

    /// The column becomes this value, which must not come from something that was read before.
    #[must_use]
    pub fn set(self, column: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        self.column(column, Set::To, value, ty)
    }

    /// The value is added to the column. In an insert the column begins with it.
    #[must_use]
    pub fn add(self, column: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        self.column(column, Set::Plus, value, ty)
    }

    /// The value is taken from the column. In an insert the column begins below zero by it.
    #[must_use]
    pub fn subtract(self, column: &str, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        self.column(column, Set::Minus, value, ty)
    }

    fn column(mut self, column: &str, set: Set, value: &'v (dyn ToSql + Sync), ty: Type) -> Self {
        self.shape.set(column, set);
        self.values.push((value, ty));
        self
    }

    /// The statement, which fails unless exactly one row was written, and its parameters.
    pub(crate) fn statement(&self) -> (String, Vec<Param<'v>>) {
        let (text, slots) = self.shape.counted();
        let param = |slot: &Slot| match *slot {
            Slot::Name(index) => Some(self.names[index].clone()),
            Slot::Value(index) => Some(self.values[index].clone()),
            // The fence is a statement of its own.
            Slot::Key(_) | Slot::Token(_) | Slot::Domain | Slot::Step => None,
        };
        (text, slots.iter().filter_map(param).collect())
    }
}

impl fmt::Debug for RowWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RowWrite").field(&self.shape).finish()
    }
}

/// Whether the statement failed because there is no such row.
pub(crate) fn is_no_row(error: &Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|error| row::is_no_row(error.code().code(), error.message()))
}
