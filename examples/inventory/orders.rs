//! Reads the stock list and the order file as real files are: every bad line is reported with its
//! number, every other line is used once.

use std::collections::{BTreeMap, HashSet};
use std::io;

use csv::{ReaderBuilder, StringRecord, Trim};
use highwater_lock::Key;

/// What was on the shelf before the first order, by SKU.
pub(crate) type Stock = BTreeMap<String, i64>;

/// One order line that can be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) line: u64,
    pub(crate) id: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
}

/// A line that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadLine {
    pub(crate) line: u64,
    pub(crate) reason: String,
}

/// The longest order id, in bytes: it is a primary key.
const MAX_ID_BYTES: usize = 64;
/// The longest SKU, in bytes: the lock key adds a prefix to it.
const MAX_SKU_BYTES: usize = 64;

/// Reads `sku,quantity` lines.
pub(crate) fn read_stock(file: impl io::Read) -> (Stock, Vec<BadLine>) {
    let mut stock = Stock::new();
    let bad = read(file, ["sku", "quantity"], |[sku, quantity]| {
        check_sku(sku)?;
        let quantity = whole_number(quantity)?;
        if quantity < 0 {
            return Err(format!("quantity {quantity} is negative"));
        }
        if stock.contains_key(sku) {
            return Err(format!("SKU {sku} stands in the list twice"));
        }
        stock.insert(sku.to_owned(), quantity);
        Ok(())
    });
    (stock, bad)
}

/// Reads `order_id,sku,quantity` lines; an order must fit into what earlier lines left of the
/// stock, so which orders are served does not depend on the speed of the workers.
pub(crate) fn read_orders(file: impl io::Read, stock: &Stock) -> (Vec<Order>, Vec<BadLine>) {
    let mut orders = Vec::new();
    let mut remaining = stock.clone();
    let mut seen = HashSet::new();
    let mut line = 0;
    let bad = read_numbered(
        file,
        ["order_id", "sku", "quantity"],
        &mut line,
        |line, [id, sku, quantity]| {
            if id.is_empty() || id.len() > MAX_ID_BYTES {
                return Err(format!(
                    "an order id has 1 to {MAX_ID_BYTES} bytes, this one has {}",
                    id.len()
                ));
            }
            if id.chars().any(char::is_control) {
                return Err("the order id contains a control character".to_owned());
            }
            if seen.contains(id) {
                return Err(format!("order {id} stands in the file twice"));
            }
            let quantity = whole_number(quantity)?;
            if quantity <= 0 {
                return Err(format!("quantity {quantity} is not positive"));
            }
            let Some(left) = remaining.get_mut(sku) else {
                return Err(format!("SKU {sku:?} is unknown"));
            };
            if quantity > *left {
                return Err(format!(
                    "quantity {quantity} is beyond the stock: {left} of {sku} left"
                ));
            }
            *left -= quantity;
            seen.insert(id.to_owned());
            orders.push(Order {
                line,
                id: id.to_owned(),
                sku: sku.to_owned(),
                quantity,
            });
            Ok(())
        },
    );
    (orders, bad)
}

fn check_sku(sku: &str) -> Result<(), String> {
    if sku.len() > MAX_SKU_BYTES {
        return Err(format!(
            "a SKU has at most {MAX_SKU_BYTES} bytes, this one has {}",
            sku.len()
        ));
    }
    if sku.chars().any(char::is_control) {
        return Err("the SKU contains a control character".to_owned());
    }
    Key::new(sku)
        .map(drop)
        .map_err(|error| format!("SKU {sku:?} cannot be locked: {error}"))
}

fn whole_number(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| format!("quantity {text:?} is not a whole number"))
}

fn read<const N: usize>(
    file: impl io::Read,
    columns: [&str; N],
    mut accept: impl FnMut([&str; N]) -> Result<(), String>,
) -> Vec<BadLine> {
    read_numbered(file, columns, &mut 0, |_, fields| accept(fields))
}

/// Calls `accept` for each data line with exactly `N` fields; whatever cannot be used, and
/// whatever `accept` refuses, becomes a [`BadLine`].
fn read_numbered<const N: usize>(
    mut file: impl io::Read,
    columns: [&str; N],
    line: &mut u64,
    mut accept: impl FnMut(u64, [&str; N]) -> Result<(), String>,
) -> Vec<BadLine> {
    let mut bytes = Vec::new();
    if let Err(error) = file.read_to_end(&mut bytes) {
        return vec![BadLine {
            line: 1,
            reason: format!("the file cannot be read: {error}"),
        }];
    }
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    // Quotes are the library's business; the number of fields is ours, to name the bad line.
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(text);
    let mut bad = Vec::new();
    let mut data_lines = 0_u64;
    let mut record = csv::ByteRecord::new();
    let mut first = true;
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => {
                let at = error.position().map_or(*line + 1, csv::Position::line);
                bad.push(BadLine {
                    line: at,
                    reason: error.to_string(),
                });
                break;
            }
        }
        *line = record.position().map_or(*line + 1, csv::Position::line);
        let is_first = std::mem::take(&mut first);
        let mut refuse = |reason| {
            bad.push(BadLine {
                line: *line,
                reason,
            })
        };
        let Ok(record) = StringRecord::from_byte_record(record.clone()) else {
            data_lines += 1;
            refuse("the line is not UTF-8".to_owned());
            continue;
        };
        if is_first && record.iter().eq(columns.iter().copied()) {
            continue;
        }
        data_lines += 1;
        let fields: Vec<&str> = record.iter().collect();
        match <[&str; N]>::try_from(fields) {
            Ok(fields) => {
                if let Some(at) = fields.iter().position(|field| field.is_empty()) {
                    refuse(format!("the field {} is empty", columns[at]));
                } else if let Err(reason) = accept(*line, fields) {
                    refuse(reason);
                }
            }
            Err(fields) => refuse(format!(
                "{} fields instead of {N} ({})",
                fields.len(),
                columns.join(",")
            )),
        }
    }
    if data_lines == 0 && bad.is_empty() {
        bad.push(BadLine {
            line: 1,
            reason: "the file holds no line of data".to_owned(),
        });
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock() -> Stock {
        Stock::from([("apple".to_owned(), 10), ("pear".to_owned(), 5)])
    }

    /// Reads `file` and compares the accepted ids and the refused lines.
    #[track_caller]
    fn check(file: &[u8], accepted: &[&str], refused: &[(u64, &str)]) -> Vec<Order> {
        let (orders, bad) = read_orders(file, &stock());
        let ids: Vec<&str> = orders.iter().map(|order| order.id.as_str()).collect();
        assert_eq!(ids, accepted);
        let lines: Vec<u64> = bad.iter().map(|bad| bad.line).collect();
        assert_eq!(
            lines,
            refused.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            "{bad:?}"
        );
        for (bad, (_, part)) in bad.iter().zip(refused) {
            assert!(
                bad.reason.contains(part),
                "{:?} does not say {part:?}",
                bad.reason
            );
        }
        orders
    }

    #[test]
    fn every_bad_line_is_named_and_the_others_are_used() {
        check(
            b"order_id,sku,quantity\n\
              a,apple,1\n\
              b,apple\n\
              c,apple,one\n\
              d,apple,0\n\
              e,apple,-2\n\
              f,plum,1\n\
              g,pear,6\n\
              a,apple,1\n\
              h,apple,1,extra\n\
              i,,1\n\
              ,apple,1\n\
              j,apple,1.5\n\
              k,apple,99999999999999999999\n\
              l,pear,5\n",
            &["a", "l"],
            &[
                (3, "2 fields instead of 3"),
                (4, "\"one\" is not a whole number"),
                (5, "0 is not positive"),
                (6, "-2 is not positive"),
                (7, "\"plum\" is unknown"),
                (8, "6 is beyond the stock: 5 of pear left"),
                (9, "a stands in the file twice"),
                (10, "4 fields"),
                (11, "sku is empty"),
                (12, "order_id is empty"),
                (13, "\"1.5\" is not a whole number"),
                (14, "is not a whole number"),
            ],
        );
    }

    #[test]
    fn a_byte_order_mark_carriage_returns_quotes_and_blank_lines_are_read() {
        let orders = check(
            b"\xEF\xBB\xBForder_id,sku,quantity\r\n\r\n\"a,1\",\"apple\",\"2\"\r\n b , pear , 3 \r\n",
            &["a,1", "b"],
            &[],
        );
        assert_eq!(orders[0].quantity, 2);
        assert_eq!(
            orders[1],
            Order {
                line: 4,
                id: "b".to_owned(),
                sku: "pear".to_owned(),
                quantity: 3
            }
        );
    }

    #[test]
    fn a_file_without_a_header_or_a_last_line_feed_is_read_from_its_first_line() {
        check(b"a,apple,1\nb,apple,1", &["a", "b"], &[]);
    }

    #[test]
    fn a_file_without_data_is_reported() {
        check(b"", &[], &[(1, "no line of data")]);
        check(b"\xEF\xBB\xBF", &[], &[(1, "no line of data")]);
        check(b"order_id,sku,quantity\r\n", &[], &[(1, "no line of data")]);
    }

    #[test]
    fn bytes_that_are_not_text_cost_only_their_own_line() {
        check(
            b"a,apple,1\n\xFF,apple,1\nb,apple,1\n",
            &["a", "b"],
            &[(2, "not UTF-8")],
        );
    }

    #[test]
    fn a_control_character_in_a_quoted_id_is_refused_with_the_line_it_starts_on() {
        check(
            b"\"a\nb\",apple,1\nc,apple,1\n",
            &["c"],
            &[(1, "control character")],
        );
    }

    #[test]
    fn an_order_fits_into_what_earlier_orders_left() {
        check(
            b"a,apple,6\nb,apple,5\nc,apple,4\nd,apple,1\n",
            &["a", "c"],
            &[
                (2, "5 is beyond the stock: 4 of apple left"),
                (4, "0 of apple left"),
            ],
        );
    }

    #[test]
    fn a_refused_order_does_not_use_up_its_id() {
        check(b"a,apple,0\na,apple,1\n", &["a"], &[(1, "not positive")]);
    }

    #[test]
    fn a_stock_list_refuses_what_cannot_be_locked_or_counted() {
        let (stock, bad) =
            read_stock(&b"sku,quantity\napple,3\nbad name,1\napple,4\npear,-1\nfig,x\n"[..]);
        assert_eq!(stock, Stock::from([("apple".to_owned(), 3)]));
        assert_eq!(
            bad.iter().map(|bad| bad.line).collect::<Vec<_>>(),
            [3, 4, 5, 6]
        );
    }
}
