//! Counts units: what is sold, against what the stock says.
//!
//! Every deduction from the stock is one row with an id of its own, written in the same transaction.
//! So each unit can be accounted for, whoever took it and however often.

use std::collections::BTreeMap;

/// An order that somebody was told to carry out, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: i64,
    pub(super) quantity: i64,
}

/// A recorded deduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deduction {
    pub(super) order: i64,
    pub(super) quantity: i64,
}

/// Units that are wrong. Zero and zero is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// Sold units that the stock still offers, and ordered units of which there is no trace.
    pub(super) lost: i64,
    /// Units that were sold or taken from the stock more often than ordered.
    pub(super) doubled: i64,
}

impl std::ops::AddAssign for Damage {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.doubled += other.doubled;
    }
}

/// Compares one shelf with its orders.
pub(super) fn count(before: i64, after: i64, orders: &[Order], recorded: &[Deduction]) -> Damage {
    let mut sold: BTreeMap<i64, i64> = BTreeMap::new();
    for deduction in recorded {
        *sold.entry(deduction.order).or_default() += deduction.quantity;
    }
    let mut damage = Damage::default();
    for order in orders {
        let sold = sold.remove(&order.id).unwrap_or_default();
        damage.lost += (order.quantity - sold).max(0);
        damage.doubled += (sold - order.quantity).max(0);
    }
    // What nobody ordered is too much, all of it.
    damage.doubled += sold.values().sum::<i64>();
    let recorded: i64 = recorded.iter().map(|deduction| deduction.quantity).sum();
    let taken = before - after;
    damage.lost += (recorded - taken).max(0);
    damage.doubled += (taken - recorded).max(0);
    damage
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Order; 2] = [Order { id: 1, quantity: 2 }, Order { id: 2, quantity: 5 }];

    fn counted(after: i64, recorded: &[(i64, i64)]) -> (i64, i64) {
        let recorded: Vec<_> = recorded
            .iter()
            .map(|&(order, quantity)| Deduction { order, quantity })
            .collect();
        let damage = count(100, after, &ORDERS, &recorded);
        (damage.lost, damage.doubled)
    }

    #[test]
    fn every_order_once_and_the_right_stock_is_exact() {
        assert_eq!(counted(93, &[(1, 2), (2, 5)]), (0, 0));
        assert_eq!(counted(93, &[(2, 5), (1, 2)]), (0, 0));
    }

    #[test]
    fn a_deduction_that_was_written_over_is_lost() {
        assert_eq!(counted(98, &[(1, 2), (2, 5)]), (5, 0));
        assert_eq!(counted(95, &[(1, 2), (2, 5)]), (2, 0));
    }

    #[test]
    fn an_order_that_is_not_recorded_is_lost() {
        assert_eq!(counted(98, &[(1, 2)]), (5, 0));
        assert_eq!(counted(100, &[]), (7, 0));
    }

    #[test]
    fn an_order_that_is_recorded_twice_is_doubled() {
        assert_eq!(counted(91, &[(1, 2), (1, 2), (2, 5)]), (0, 2));
        // Twice recorded, and what came between is written over: the stale writer's whole damage.
        assert_eq!(counted(98, &[(1, 2), (1, 2), (2, 5)]), (7, 2));
    }

    #[test]
    fn what_nobody_ordered_or_recorded_is_doubled() {
        assert_eq!(counted(92, &[(1, 2), (2, 5), (9, 1)]), (0, 1));
        assert_eq!(counted(91, &[(1, 2), (2, 5)]), (0, 2));
    }
}
