//! How the values of options are written.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// What is wrong with a value.
pub(super) type Wrong = String;

/// `true` or `false`.
pub(super) fn flag(text: &str) -> Result<bool, Wrong> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A whole number in a range.
pub(super) fn number<T>(text: &str, range: RangeInclusive<T>) -> Result<T, Wrong>
where
    T: FromStr + PartialOrd + Display,
{
    let number = text.parse().ok().filter(|number| range.contains(number));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("{text:?} is not a whole number from {least} to {most}"))
}

/// A number with a unit; zero only where `least` is zero.
pub(super) fn span(text: &str, least: Duration) -> Result<Duration, Wrong> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let micros_per_unit: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => 0,
    };
    let number: Option<u64> = number.parse().ok();
    let micros = number.and_then(|number| number.checked_mul(micros_per_unit));
    match micros.filter(|_| micros_per_unit > 0) {
        Some(micros) if Duration::from_micros(micros) >= least => Ok(Duration::from_micros(micros)),
        Some(_) => Err(format!("{text:?} is shorter than {}", show_span(least))),
        None => Err(format!("{text:?} is not a time like 500ms, 10s, 5m or 1h")),
    }
}

/// A time as [`span`] reads it.
pub(super) fn show_span(span: Duration) -> String {
    let micros = span.as_micros();
    let units = [
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    if micros == 0 {
        return "0s".to_owned();
    }
    for (size, unit) in units {
        if micros.is_multiple_of(size) {
            return format!("{}{unit}", micros / size);
        }
    }
    format!("{micros}us")
}

/// A host and a port.
pub(super) fn address(text: &str) -> Result<String, Wrong> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!(
            "{text:?} is not an address to listen on (like 127.0.0.1:5225)"
        )),
    }
}

/// The one of `known` that is as good as `name`, if one is.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (distance(name, known), known));
    let near = near.filter(|(distance, known)| *distance <= 1 + known.len() / 6);
    near.min().map(|(_, known)| known)
}

/// How many letters have to be put in, taken out, replaced or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let width = other.len() + 1;
    let mut rows: [Vec<usize>; 3] = [vec![0; width], vec![0; width], (0..width).collect()];
    for (line, letter) in one.iter().enumerate() {
        rows.rotate_left(1);
        rows[2] = vec![line + 1; width];
        for column in 1..width {
            let same = *letter == other[column - 1];
            let mut best = rows[1][column - 1] + usize::from(!same);
            best = best.min(rows[1][column] + 1).min(rows[2][column - 1] + 1);
            let swapped = line > 0 && column > 1 && *letter == other[column - 2];
            if swapped && one[line - 1] == other[column - 1] {
                best = best.min(rows[0][column - 2] + 1);
            }
            rows[2][column] = best;
        }
    }
    rows[2][width - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_shown() {
        let zero = Duration::ZERO;
        for text in ["0s", "1us", "1500us", "5ms", "999s", "2m", "48h"] {
            assert_eq!(show_span(span(text, zero).unwrap()), text);
        }
        assert_eq!(show_span(span("120s", zero).unwrap()), "2m");
        for wrong in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5 s",
            "1d",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            assert!(span(wrong, zero).is_err(), "{wrong}");
        }
        let second = Duration::from_secs(1);
        assert!(span("1s", second).is_ok());
        assert_eq!(
            span("999ms", second).unwrap_err(),
            "\"999ms\" is shorter than 1s"
        );
    }

    #[test]
    fn numbers_and_flags_have_a_range() {
        assert_eq!(number("7", 1..=7), Ok(7_u32));
        for wrong in ["0", "8", "", "-1", "1e1", " 1", "4294967296"] {
            let said = number::<u32>(wrong, 1..=7).unwrap_err();
            assert_eq!(said, format!("{wrong:?} is not a whole number from 1 to 7"));
        }
        assert_eq!((flag("true"), flag("0")), (Ok(true), Ok(false)));
        assert!(flag("yes").is_err() && flag("").is_err());
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:0", "[::1]:65535", "localhost:80", "a.example:1"] {
            assert_eq!(address(good).unwrap(), good);
        }
        for wrong in [
            "",
            ":80",
            "127.0.0.1",
            "localhost:",
            "localhost:65536",
            "x:y",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_near_and_another_word_is_not() {
        let known = ["listen", "in-memory", "max-connections", "tls-key"];
        for (name, expected) in [
            ("listen", Some("listen")),
            ("litsen", Some("listen")),
            ("inmemory", Some("in-memory")),
            ("in-memroy", Some("in-memory")),
            ("max-conections", Some("max-connections")),
            ("max-connection", Some("max-connections")),
            ("tls-cat", None),
            ("storage", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), expected, "{name}");
        }
        assert_eq!(distance("ca", "abc"), 3);
        assert_eq!(
            (
                distance("", "abc"),
                distance("abc", ""),
                distance("ab", "ba")
            ),
            (3, 3, 1)
        );
    }
}
