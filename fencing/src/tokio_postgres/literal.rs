//! Parameters as SQL text, for statements that travel in one message with the fence.
//!
//! Texts and bytes stand there as hexadecimal digits, everything else as digits and fixed words, so
//! nothing of the caller's is ever quoted. A type that is not listed is refused.

use std::error::Error;

use ::tokio_postgres::types::{IsNull, Kind, ToSql, Type};
use bytes::BytesMut;

use crate::sql::hex;

/// The value as an expression of this type, or why that is not possible.
///
/// For a domain it is of the type below, and the server makes it one of the domain when it takes it
/// as a parameter: a cast that is written down would cut off what is too long for `varchar(3)`.
pub(crate) fn literal(value: &(dyn ToSql + Sync), ty: &Type) -> Result<String, String> {
    let mut bytes = BytesMut::new();
    let is_null = value.to_sql_checked(ty, &mut bytes);
    match is_null.map_err(|error| chain(&*error))? {
        IsNull::Yes => Ok("NULL".to_owned()),
        IsNull::No => typed(ty, &bytes).ok_or_else(|| unsupported(ty)),
    }
}

/// The name of the type for SQL.
pub(crate) fn name(ty: &Type) -> String {
    if let Kind::Array(element) = ty.kind() {
        return format!("{}[]", name(element));
    }
    let quoted = |part: &str| format!("\"{}\"", part.replace('"', "\"\""));
    format!("{}.{}", quoted(ty.schema()), quoted(ty.name()))
}

/// The binary form of a value of this type as an expression of it, or of the type below a domain.
fn typed(ty: &Type, bytes: &[u8]) -> Option<String> {
    match ty.kind() {
        Kind::Domain(inner) => typed(inner, bytes),
        Kind::Array(element) => array(element, bytes),
        _ => Some(format!("({})::{}", expression(ty, bytes)?, name(ty))),
    }
}

/// The binary form of a value of this type as an expression that can be cast to it.
fn expression(ty: &Type, bytes: &[u8]) -> Option<String> {
    let text = |bytes: &[u8]| format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(bytes));
    let digits = |digits: String| Some(format!("'{digits}'"));
    if let Kind::Enum(_) = ty.kind() {
        return Some(text(bytes));
    }
    match *ty {
        Type::BOOL => digits((bytes != [0]).to_string()),
        Type::INT2 => digits(i16::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::INT4 => digits(i32::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::INT8 => digits(i64::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::OID => digits(u32::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::FLOAT4 => digits(f32::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::FLOAT8 => digits(f64::from_be_bytes(bytes.try_into().ok()?).to_string()),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::JSON => Some(text(bytes)),
        // A longer one would be cut off.
        Type::NAME => (bytes.len() < 64).then(|| text(bytes)),
        Type::JSONB => match bytes {
            [1, json @ ..] => Some(text(json)),
            _ => None,
        },
        Type::BYTEA => Some(format!("decode('{}', 'hex')", hex(bytes))),
        Type::UUID => digits(hex(bytes)),
        Type::DATE => date(i32::from_be_bytes(bytes.try_into().ok()?)),
        Type::TIMESTAMP => moment("timestamp", i64::from_be_bytes(bytes.try_into().ok()?)),
        Type::TIMESTAMPTZ => moment("timestamptz", i64::from_be_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// Days since the year 2000.
fn date(days: i32) -> Option<String> {
    Some(match days {
        i32::MAX => "'infinity'".to_owned(),
        i32::MIN => "'-infinity'".to_owned(),
        days => format!("'2000-01-01'::date + ({days})"),
    })
}

/// Microseconds since the year 2000. Hours, because days are not always as long; and no number that
/// needs more than 32 bits, because PostgreSQL 13 and 14 do not read it.
///
/// All parts of a moment before carry the sign, because with `intervalstyle = sql_standard` a sign
/// that stands at the front only counts for all of them.
fn moment(ty: &str, micros: i64) -> Option<String> {
    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    Some(match micros {
        i64::MAX => "'infinity'".to_owned(),
        i64::MIN => "'-infinity'".to_owned(),
        micros => {
            let (hours, rest) = (micros / HOUR, micros % HOUR);
            let (seconds, rest) = (rest / SECOND, rest % SECOND);
            format!(
                "'2000-01-01 00:00:00+00'::{ty} + \
                 '{hours} hours {seconds} seconds {rest} microseconds'::interval"
            )
        }
    })
}

/// An array of at most one dimension, as an expression of the type.
fn array(element: &Type, bytes: &[u8]) -> Option<String> {
    let mut bytes = bytes;
    let mut number = || {
        let (number, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        Some(i32::from_be_bytes(*number))
    };
    let (dimensions, _has_nulls, _oid) = (number()?, number()?, number()?);
    if dimensions == 0 {
        return Some(format!("'{{}}'::{}[]", name(base(element))));
    }
    let (length, first) = (number()?, number()?);
    if dimensions != 1 || first != 1 {
        return None;
    }
    let mut elements = Vec::new();
    for _ in 0..length {
        let (size, rest) = bytes.split_first_chunk()?;
        let size = i32::from_be_bytes(*size);
        bytes = rest;
        let Ok(size) = usize::try_from(size) else {
            elements.push("NULL".to_owned());
            continue;
        };
        let (value, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        elements.push(typed(element, value)?);
    }
    let elements = elements.join(", ");
    Some(format!("ARRAY[{elements}]::{}[]", name(base(element))))
}

/// The type below the domains.
fn base(ty: &Type) -> &Type {
    match ty.kind() {
        Kind::Domain(inner) => base(inner),
        _ => ty,
    }
}

fn unsupported(ty: &Type) -> String {
    format!("a value of type {ty} cannot travel in one message with the fence")
}

/// The error with its causes, as text.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_text_reaches_the_message_unencoded() {
        let text = "'; DROP TABLE stock; --";
        let texts = [Some(text), None];
        let encoded = [
            literal(&text, &Type::TEXT).unwrap(),
            literal(&text.as_bytes(), &Type::BYTEA).unwrap(),
            literal(&texts.as_slice(), &Type::TEXT_ARRAY).unwrap(),
        ];
        for encoded in encoded {
            assert!(!encoded.contains("DROP"), "{encoded}");
            assert!(encoded.contains(&hex(text.as_bytes())), "{encoded}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_refused() {
        assert!(literal(&"text", &Type::INT4).is_err());
        assert!(literal(&1_i64, &Type::INT4).is_err());
        assert!(literal(&"text", &Type::XML).is_err());
    }

    #[test]
    fn the_name_of_a_type_is_quoted() {
        let own = Type::new(
            "a\"b".to_owned(),
            1_000_000,
            Kind::Enum(vec!["one".to_owned()]),
            "app".to_owned(),
        );
        assert_eq!(name(&own), "\"app\".\"a\"\"b\"");
        assert_eq!(name(&Type::INT4_ARRAY), "\"pg_catalog\".\"int4\"[]");
    }
}
