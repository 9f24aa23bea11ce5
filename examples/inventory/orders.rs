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
    let bad = read_lines(file, ["sku", "quantity"], |_, [sku, quantity]| {
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
    let bad = read_lines(
        file,
        ["order_id", "sku", "quantity"],
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

/// Calls `accept` for each data line with exactly `N` fields; whatever cannot be used, and
/// whatever `accept` refuses, becomes a [`BadLine`].
///
/// The library gets one line at a time. No field here may span lines, and so a quote that is not
/// closed costs its own line and not the rest of the file.
fn read_lines<const N: usize>(
    mut file: impl io::Read,
    columns: [&str; N],
    mut accept: impl FnMut(u64, [&str; N]) -> Result<(), String>,
) -> Vec<BadLine> {
    let mut bytes = Vec::new();
    if let Err(error) = file.read_to_end(&mut bytes) {
        let reason = format!("the file cannot be read: {error}");
        return vec![BadLine { line: 1, reason }];
    }
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let mut bad = Vec::new();
    let mut found_data = false;
    let mut may_be_header = true;
    for (line, text) in (1..).zip(lines(text)) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let fields = match split(text) {
            Ok(fields) => fields,
            Err(reason) => {
                found_data = true;
                bad.push(BadLine { line, reason });
                continue;
            }
        };
        if std::mem::take(&mut may_be_header) && fields.iter().eq(columns.iter().copied()) {
            continue;
        }
        found_data = true;
        let fields: Vec<&str> = fields.iter().collect();
        let outcome = match <[&str; N]>::try_from(fields) {
            Ok(fields) => match fields.iter().position(|field| field.is_empty()) {
                Some(at) => Err(format!("the field {} is empty", columns[at])),
                None => accept(line, fields),
            },
            Err(fields) => {
                let (found, columns) = (fields.len(), columns.join(","));
                Err(format!("{found} fields instead of {N} ({columns})"))
            }
        };
        if let Err(reason) = outcome {
            bad.push(BadLine { line, reason });
        }
    }
    if !found_data {
        let reason = "the file holds no line of data".to_owned();
        bad.push(BadLine { line: 1, reason });
    }
    bad
}

/// The lines as an editor counts them: CRLF, line feed and carriage return all end one.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let end = text.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (line, rest) = text.split_at(end.unwrap_or(text.len()));
        let rest = rest.strip_prefix(b"\r").unwrap_or(rest);
        text = rest.strip_prefix(b"\n").unwrap_or(rest);
        Some(line)
    })
}

/// The fields of one line, with quotes resolved and blanks around them taken away.
fn split(line: &[u8]) -> Result<StringRecord, String> {
    if line.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
        return Err("a quote is not closed on its line".to_owned());
    }
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(line);
    let mut record = StringRecord::new();
    match reader.read_record(&mut record) {
        Ok(_) => Ok(record),
        Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
            Err("the line is not UTF-8".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
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
    fn a_quote_that_is_not_closed_costs_no_other_line() {
        check(
            b"a,apple,1\n\"b,apple,1\nc,apple,1\n\"d\ne\",apple,1\nf,apple,\"1\"\n",
            &["a", "c", "f"],
            &[(2, "not closed"), (4, "not closed"), (5, "not closed")],
        );
    }

    #[test]
    fn a_control_character_in_an_id_is_refused() {
        check(
            b"a\tb,apple,1\nc,apple,1\n",
            &["c"],
            &[(1, "control character")],
        );
    }

    #[test]
    fn a_lone_carriage_return_ends_a_line_too() {
        check(
            b"a,apple,1\rb,apple,x\rc,apple,1",
            &["a", "c"],
            &[(2, "whole number")],
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
