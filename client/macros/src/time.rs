//! Durations as text: `500ms`, `10s`, `5m`, `1h`, or ISO 8601 (`PT0.5S`, `PT1M30S`).

use std::time::Duration;

/// What a duration looks like, for messages.
pub(crate) const FORMS: &str = "write `500ms`, `10s`, `5m`, `1h`, or ISO 8601 such as `PT10S`";

/// Reads a duration exactly; the error says what is wrong.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let duration = match text.strip_prefix('P') {
        Some(rest) => iso(rest),
        None => short(text),
    };
    duration.map_err(|fault| format!("`{text}` is no duration: {fault}"))
}

fn short(text: &str) -> Result<Duration, String> {
    let end = text.find(|letter: char| !is_of_number(letter));
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let nanos = match unit {
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        "" => return Err(format!("it has no unit; {FORMS}")),
        unit => return Err(format!("there is no unit `{unit}`; {FORMS}")),
    };
    span(number, nanos)
}

/// What stands behind the `P`.
fn iso(text: &str) -> Result<Duration, String> {
    let (days, times) = match text.split_once('T') {
        Some((_, "")) => return Err("nothing stands behind the `T`".into()),
        Some((days, times)) => (days, times),
        None if text.is_empty() => return Err("nothing stands behind the `P`".into()),
        None => (text, ""),
    };
    let days = parts(days, &[('D', 24 * 3_600 * SECOND)])?;
    let units = [('H', 3_600 * SECOND), ('M', 60 * SECOND), ('S', SECOND)];
    let times = parts(times, &units)?;
    days.checked_add(times).ok_or_else(|| TOO_LONG.to_owned())
}

/// Numbers, each with one of the units, in their order.
fn parts(mut text: &str, units: &[(char, u64)]) -> Result<Duration, String> {
    let mut sum = Duration::ZERO;
    let mut units = units.iter();
    while !text.is_empty() {
        let end = text.find(|letter: char| !is_of_number(letter));
        let Some((number, rest)) = end.map(|end| text.split_at(end)) else {
            return Err(format!("`{text}` has no unit"));
        };
        let letter = rest.chars().next().unwrap_or_default();
        let Some((_, nanos)) = units.find(|(unit, _)| *unit == letter) else {
            return Err(format!("the unit `{letter}` cannot stand here; {FORMS}"));
        };
        if letter != 'S' && number.contains('.') {
            return Err("only seconds have decimal places".into());
        }
        let part = span(number, *nanos)?;
        sum = sum.checked_add(part).ok_or(TOO_LONG)?;
        text = &rest[letter.len_utf8()..];
    }
    Ok(sum)
}

/// A decimal number of so many nanoseconds each.
fn span(number: &str, unit_nanos: u64) -> Result<Duration, String> {
    let (whole, places) = number.split_once('.').unwrap_or((number, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(places) {
        return Err(format!("`{number}` is no decimal number; {FORMS}"));
    }
    if places.len() > 9 {
        return Err("it has more than nine decimal places".into());
    }
    let billionths: u64 = format!("{places:0<9}").parse().unwrap_or_default();
    let whole: u64 = whole.parse().map_err(|_| TOO_LONG)?;
    let whole = whole.checked_mul(unit_nanos).ok_or(TOO_LONG)?;
    let part = u128::from(billionths) * u128::from(unit_nanos) / 1_000_000_000;
    let part = u64::try_from(part).map_err(|_| TOO_LONG)?;
    let nanos = whole.checked_add(part).ok_or(TOO_LONG)?;
    Ok(Duration::from_nanos(nanos))
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_digit() || letter == '.'
}

const SECOND: u64 = 1_000_000_000;
const TOO_LONG: &str = "it is longer than 500 years";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_to_the_nanosecond() {
        let cases = [
            ("0s", 0),
            ("500ms", 500_000_000),
            ("0.5s", 500_000_000),
            ("10s", 10 * SECOND),
            ("5m", 300 * SECOND),
            ("1h", 3_600 * SECOND),
            ("1.5h", 5_400 * SECOND),
            ("PT10S", 10 * SECOND),
            ("PT0.5S", 500_000_000),
            ("PT0.000000001S", 1),
            ("PT1M30S", 90 * SECOND),
            ("PT1H", 3_600 * SECOND),
            ("PT1H0M0S", 3_600 * SECOND),
            ("P1D", 86_400 * SECOND),
            ("P1DT1S", 86_401 * SECOND),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_no_duration() {
        let cases = [
            "",
            "10",
            "s",
            "ms",
            "10 s",
            " 10s",
            "10S",
            "10sec",
            "-1s",
            "+1s",
            "1e3s",
            ".5s",
            "1.s",
            "1..5s",
            "1.2.3s",
            "\u{0661}s",
            "P",
            "PT",
            "PT10",
            "PTS",
            "PT10M5H",
            "PT1S1S",
            "P1Y",
            "P1M",
            "P1W",
            "P1H",
            "PT1D",
            "PT0.5M",
            "pt10s",
            "PT10s",
            "P-1D",
            "PT-1S",
            "T10S",
            "0.1234567891s",
            "18446744073709551616s",
            "18446744073709551615h",
            "PT10S ",
        ];
        for text in cases {
            assert!(parse(text).is_err(), "{text:?}: {:?}", parse(text));
        }
    }
}
