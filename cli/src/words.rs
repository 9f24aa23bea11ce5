//! Keys, tokens and domains as arguments and as output.

use highwater_fencing::{Domain, FenceKey, FencingToken};

/// Reads a token that a database can store.
pub(crate) fn token(text: &str) -> Result<FencingToken, String> {
    let token = text.parse().ok().and_then(FencingToken::new);
    token
        .filter(|token| i64::try_from(token.get()).is_ok())
        .ok_or_else(|| format!("a token is a number from 1 to {}", i64::MAX))
}

/// Reads a time such as `5s`, `250ms` or `1m 30s`.
#[cfg(unix)]
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error} (like 5s, 250ms or 1m)"))
}

/// Reads a domain: 64 hexadecimal digits, or `name:` and the name it was made of.
pub(crate) fn domain(text: &str) -> Result<Domain, String> {
    match text.strip_prefix("name:") {
        Some(name) => Domain::named(name).map_err(|error| error.to_string()),
        None => text
            .parse()
            .map_err(|error| format!("{error}, or as name:… if it was made of a name")),
    }
}

/// Writes a domain as [`domain`] reads it.
pub(crate) fn show_domain(domain: Domain) -> String {
    match name_of(domain) {
        Some(name) => format!("name:{name}"),
        None => domain.to_string(),
    }
}

/// The name that a domain was made of, if it looks like one.
pub(crate) fn name_of(domain: Domain) -> Option<String> {
    let bytes = domain.as_bytes();
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic());
    (printable && Domain::named(name) == Ok(domain)).then(|| name.to_owned())
}

/// Reads bytes: the text itself, or hexadecimal digits.
pub(crate) fn bytes(text: &str, hex: bool) -> Result<Vec<u8>, String> {
    if !hex {
        return Ok(text.as_bytes().to_owned());
    }
    let nibble = |digit: u8| (digit as char).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(nibble(*high)? * 16 + nibble(*low)?).ok(),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| format!("{text:?} is not a row of pairs of hexadecimal digits"))
}

/// Reads a key, see [`bytes`].
pub(crate) fn key(text: &str, hex: bool) -> Result<FenceKey, String> {
    FenceKey::new(bytes(text, hex)?).map_err(|error| error.to_string())
}

/// Bytes as hexadecimal digits.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a key: its text with everything else than printable ASCII escaped, or its digits.
pub(crate) fn show_key(key: &FenceKey, hex: bool) -> String {
    if hex {
        digits(key.as_bytes())
    } else {
        key.to_string()
    }
}

/// Text that came from elsewhere, with what would move the cursor or colour a terminal escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            shown.extend(char.escape_default());
        } else {
            shown.push(char);
        }
    }
    shown
}

/// Columns that are as wide as they have to be, the last one open.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>) -> String {
    let head = head.map(str::to_owned);
    let mut widths = [0; N];
    for row in rows.iter().chain([&head]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in [&head].into_iter().chain(&rows) {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_every_database_can_store() {
        assert_eq!(token("1"), Ok(FencingToken::MIN));
        assert!(token("9223372036854775807").is_ok());
        for wrong in ["0", "9223372036854775808", "-1", "", "x"] {
            assert!(token(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn domains_are_written_as_they_are_read() {
        let named = Domain::named("etcd-1").expect("a name");
        assert_eq!(show_domain(named), "name:etcd-1");
        for known in [
            named,
            Domain::from_bytes([7; 32]),
            Domain::from_bytes([0; 32]),
        ] {
            assert_eq!(domain(&show_domain(known)), Ok(known));
        }
        assert!(domain("etcd-1").is_err());
        assert!(domain("name:").is_err());
    }

    #[test]
    fn nothing_that_is_printed_controls_a_terminal() {
        assert_eq!(printable("a/é 1"), "a/é 1");
        assert_eq!(
            printable("\u{1b}[2J\u{9b}\u{7}\n"),
            r"\u{1b}[2J\u{9b}\u{7}\n"
        );
    }

    #[test]
    fn keys_are_text_or_digits() {
        assert_eq!(bytes("a1", false), Ok(b"a1".to_vec()));
        assert_eq!(bytes("a1FF", true), Ok(vec![0xa1, 0xff]));
        assert!(bytes("a1f", true).is_err());
        assert!(bytes("xy", true).is_err());
        assert!(key("", false).is_err());
        let key = key("0a5c", true).expect("a key");
        assert_eq!(show_key(&key, true), "0a5c");
        assert_eq!(show_key(&key, false), "\\n\\\\");
    }
}
