//! The expressions for diesel.

use ::diesel::ExpressionMethods;
use ::diesel::dsl;
use ::diesel::expression::{AsExpression, Expression};
use ::diesel::sql_types::BigInt;

use super::RowToken;

impl AsExpression<BigInt> for RowToken {
    type Expression = <i64 as AsExpression<BigInt>>::Expression;

    fn as_expression(self) -> Self::Expression {
        <i64 as AsExpression<BigInt>>::as_expression(self.0)
    }
}

/// The condition of a fenced update: the row's token is not higher than this one.
///
/// ```
/// use diesel::prelude::*;
/// use highwater_fencing::FencingToken;
/// use highwater_fencing::row_token::{RowToken, is_admitted, is_set};
///
/// diesel::table! {
///     stock (sku) { sku -> Text, quantity -> Integer, fence_token -> BigInt, }
/// }
///
/// let token = RowToken::new(FencingToken::new(33).expect("not zero"))?;
/// let update = diesel::update(stock::table.find("apple"))
///     .filter(is_admitted(stock::fence_token, token))
///     .set((stock::quantity.eq(stock::quantity - 1), is_set(stock::fence_token, token)));
/// # Ok::<(), highwater_fencing::row_token::RowTokenError>(())
/// ```
pub fn is_admitted<C>(column: C, token: RowToken) -> dsl::LtEq<C, RowToken>
where
    C: Expression<SqlType = BigInt> + ExpressionMethods,
{
    column.le(token)
}

/// The assignment of a fenced update: the row takes this token. See [`is_admitted`].
pub fn is_set<C>(column: C, token: RowToken) -> dsl::Eq<C, RowToken>
where
    C: Expression<SqlType = BigInt> + ExpressionMethods,
{
    column.eq(token)
}
