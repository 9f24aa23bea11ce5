//! Paths and parameters of requests, and back.
//!
//! Only `%` is special in them: a plus sign is a plus sign, because keys may have one.

use std::fmt::Write as _;

use super::problem::Problem;

/// Replaces every `%` and two digits by the byte they mean.
pub(super) fn decode(text: &str) -> Result<String, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(Problem::BAD_REQUEST.because("% stands before two hexadecimal digits"));
        };
        // Two digits are one byte.
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| Problem::BAD_REQUEST.because("a text is not UTF-8"))
}

/// Writes a text so that it can stand in a path or a parameter.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing into a string never fails.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// The decoded parameters of a query, in their order.
pub(super) fn parameters(query: Option<&str>) -> Result<Vec<(String, String)>, Problem> {
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name)?, decode(value)?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_survives_the_way_there_and_back() {
        for text in [
            "",
            "stock/apple",
            "a+b&c=d",
            "50%",
            "\u{e9}\u{1f34e}",
            "\u{1}#?",
        ] {
            let encoded = encode(text);
            assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic()));
            assert!(
                !encoded.contains(['/', '&', '=', '?', '#', '+']),
                "{encoded}"
            );
            assert_eq!(decode(&encoded).unwrap(), text);
        }
        assert_eq!(decode("%2f%2F+").unwrap(), "//+");
        for wrong in ["%", "%2", "%2g", "a%%20", "%+1f", "%ff"] {
            assert_eq!(decode(wrong).unwrap_err().status, 400, "{wrong}");
        }
    }

    #[test]
    fn parameters_keep_their_order_and_may_be_empty() {
        let read = parameters(Some("a=1&&b&a=%26")).unwrap();
        let read: Vec<(&str, &str)> = read.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(read, [("a", "1"), ("b", ""), ("a", "&")]);
        assert!(parameters(None).unwrap().is_empty());
    }
}
