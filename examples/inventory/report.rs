//! Compares what the workers told with what the database has.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::database::Shop;
use crate::orders::{Order, Stock};
use crate::run::Told;

/// One SKU after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shelf {
    pub(crate) sku: String,
    pub(crate) before: i64,
    pub(crate) ordered: i64,
    pub(crate) recorded: i64,
    pub(crate) real: i64,
}

impl Shelf {
    pub(crate) fn expected(&self) -> i64 {
        self.before - self.ordered
    }

    /// Units that the database still offers although they are sold.
    pub(crate) fn oversold(&self) -> i64 {
        self.real - (self.before - self.recorded)
    }
}

/// The truth after a run.
pub(crate) struct Report {
    pub(crate) told: Told,
    pub(crate) shelves: Vec<Shelf>,
    pub(crate) orders: usize,
    /// The recorded orders are exactly the ordered ones: none lost, none doubled, none changed.
    pub(crate) orders_exact: bool,
}

impl Report {
    /// Reads stock and orders back.
    pub(crate) async fn read(
        shop: &Shop,
        before: &Stock,
        orders: &[Order],
        told: Told,
    ) -> Result<Self, sqlx::Error> {
        let real = shop.stock().await?;
        let mut recorded = shop.orders().await?;
        let shelves = shelves(before, orders, &recorded, &real);
        let mut wanted: Vec<_> = orders
            .iter()
            .map(|o| (o.id.clone(), o.sku.clone(), o.quantity))
            .collect();
        wanted.sort();
        recorded.sort();
        Ok(Self {
            told,
            shelves,
            orders: orders.len(),
            orders_exact: wanted == recorded,
        })
    }

    /// Every order recorded once, and the stock right to the unit.
    pub(crate) fn exact(&self) -> bool {
        self.orders_exact
            && self.told.done == self.orders
            && self
                .shelves
                .iter()
                .all(|shelf| shelf.real == shelf.expected())
    }

    pub(crate) fn oversold(&self) -> i64 {
        self.shelves
            .iter()
            .map(|shelf| shelf.oversold().max(0))
            .sum()
    }

    /// The table and the lines below it.
    pub(crate) fn print(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["SKU", "before", "sold", "expected", "real", "oversold"]);
        for column in 1..6 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for shelf in &self.shelves {
            let numbers = [
                shelf.before,
                shelf.recorded,
                shelf.expected(),
                shelf.real,
                shelf.oversold(),
            ];
            let mut row = vec![shelf.sku.clone()];
            row.extend(numbers.map(|number| number.to_string()));
            table.add_row(row);
        }
        let mut text = format!("{table}\n");
        let Told {
            done,
            refused,
            failed,
            ..
        } = &self.told;
        let orders = self.orders;
        let _ = writeln!(text, "orders done: {done} of {orders}");
        let _ = writeln!(
            text,
            "stale writes refused by the database: {}",
            refused.len()
        );
        for refusal in refused {
            let (id, sku) = (&refusal.order.id, &refusal.order.sku);
            let (offered, highest) = (&refusal.offered, &refusal.highest);
            let _ = writeln!(
                text,
                "  order {id} ({sku}): token {offered} offered, {highest} already admitted"
            );
        }
        for (order, reason) in failed {
            let _ = writeln!(
                text,
                "  order {} (line {}) failed: {reason}",
                order.id, order.line
            );
        }
        if !self.orders_exact {
            let _ = writeln!(text, "the recorded orders are NOT the ones of the file");
        }
        text
    }
}

fn shelves(
    before: &Stock,
    orders: &[Order],
    recorded: &[(String, String, i64)],
    real: &Stock,
) -> Vec<Shelf> {
    let mut ordered: BTreeMap<&str, i64> = BTreeMap::new();
    for order in orders {
        *ordered.entry(&order.sku).or_default() += order.quantity;
    }
    let mut sold: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, sku, quantity) in recorded {
        *sold.entry(sku).or_default() += quantity;
    }
    let of = |map: &BTreeMap<&str, i64>, sku: &str| map.get(sku).copied().unwrap_or_default();
    before
        .iter()
        .map(|(sku, &before)| Shelf {
            sku: sku.clone(),
            before,
            ordered: of(&ordered, sku),
            recorded: of(&sold, sku),
            real: real.get(sku).copied().unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: &str, quantity: i64) -> Order {
        Order {
            line: 1,
            id: id.to_owned(),
            sku: "fig".to_owned(),
            quantity,
        }
    }

    fn report(recorded: &[(&str, i64)], real: i64) -> Report {
        let orders = [order("a", 2), order("b", 3)];
        let recorded: Vec<_> = recorded
            .iter()
            .map(|(id, q)| ((*id).to_owned(), "fig".to_owned(), *q))
            .collect();
        let stock = |quantity| Stock::from([("fig".to_owned(), quantity)]);
        let orders_exact = recorded.len() == 2;
        let told = Told {
            done: recorded.len(),
            ..Told::default()
        };
        let shelves = shelves(&stock(10), &orders, &recorded, &stock(real));
        Report {
            told,
            shelves,
            orders: 2,
            orders_exact,
        }
    }

    #[test]
    fn only_the_right_stock_with_every_order_is_exact() {
        assert!(report(&[("a", 2), ("b", 3)], 5).exact());
        assert!(!report(&[("a", 2), ("b", 3)], 6).exact());
        assert!(!report(&[("a", 2), ("b", 3)], 4).exact());
        assert!(!report(&[("a", 2)], 8).exact());
    }

    #[test]
    fn a_lost_deduction_is_counted_in_units_and_a_missing_order_is_not() {
        assert_eq!(report(&[("a", 2), ("b", 3)], 8).oversold(), 3);
        assert_eq!(report(&[("a", 2)], 8).oversold(), 0);
    }
}
