//! The fragments for sqlx: values to bind, and pieces of a `QueryBuilder`.

use ::sqlx::encode::IsNull;
use ::sqlx::error::BoxDynError;
use ::sqlx::{Database, Encode, QueryBuilder, Type};

use super::{COLUMN, RowToken};

impl<Db: Database> Type<Db> for RowToken
where
    i64: Type<Db>,
{
    fn type_info() -> Db::TypeInfo {
        <i64 as Type<Db>>::type_info()
    }

    fn compatible(info: &Db::TypeInfo) -> bool {
        <i64 as Type<Db>>::compatible(info)
    }
}

impl<'q, Db: Database> Encode<'q, Db> for RowToken
where
    i64: Encode<'q, Db>,
{
    fn encode_by_ref(&self, buffer: &mut Db::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        self.0.encode_by_ref(buffer)
    }
}

/// The two pieces of a fenced update, for a [`QueryBuilder`].
///
/// ```
/// use highwater_fencing::row_token::{PushRowToken as _, RowToken};
/// use highwater_fencing::FencingToken;
/// use sqlx::{Postgres, QueryBuilder};
///
/// let token = RowToken::new(FencingToken::new(33).expect("not zero"))?;
/// let mut update = QueryBuilder::<Postgres>::new("UPDATE stock SET quantity = quantity - 1, ");
/// update.push_token_set(token).push(" WHERE sku = ").push_bind("apple");
/// update.push(" AND ").push_token_admitted(token);
/// assert_eq!(
///     update.sql().as_str(),
///     "UPDATE stock SET quantity = quantity - 1, fence_token = $1 \
///      WHERE sku = $2 AND fence_token <= $3"
/// );
/// # Ok::<(), highwater_fencing::row_token::RowTokenError>(())
/// ```
pub trait PushRowToken {
    /// Adds `fence_token = ` and the token, for the `SET`.
    fn push_token_set(&mut self, token: RowToken) -> &mut Self;

    /// Adds `fence_token <= ` and the token, for the `WHERE`.
    fn push_token_admitted(&mut self, token: RowToken) -> &mut Self;
}

impl<Db: Database> PushRowToken for QueryBuilder<Db>
where
    i64: for<'q> Encode<'q, Db> + Type<Db>,
{
    fn push_token_set(&mut self, token: RowToken) -> &mut Self {
        self.push(format_args!("{COLUMN} = ")).push_bind(token)
    }

    fn push_token_admitted(&mut self, token: RowToken) -> &mut Self {
        self.push(format_args!("{COLUMN} <= ")).push_bind(token)
    }
}
