//! JSON bodies as values, as many as a route can need and no more: a value takes seventy bytes of memory and more, in the
//! body it may be two.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

/// A body has a value for each so many bytes at most: texts and names of keys take more.
const BYTES_OF_VALUE: usize = 16;

/// Reads the body of a route that takes so many bytes.
///
/// # Errors
/// 400 or 422 when it is no JSON, 413 when it has too many values.
pub(super) fn parse(bytes: &[u8], max_body: usize) -> Result<Value> {
    const UNREADABLE: ApiError = ApiError::Plain("There was an error parsing the body");
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(UNREADABLE);
    };
    let max_values = max_body / BYTES_OF_VALUE;
    let left = Cell::new(max_values);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Values { left: &left }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        if error.is_data() {
            return ApiError::TooLarge {
                limit: format!("{max_values} values"),
            };
        }
        if error.to_string().starts_with("recursion limit") {
            return UNREADABLE;
        }
        ApiError::Validation(json!({"detail": [{
            "type": "json_invalid",
            "loc": ["body", offset(text, &error)],
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": reason(&error)},
        }]}))
    })
}

/// As serde_json reads a value, while there are some left.
#[derive(Clone, Copy)]
struct Values<'l> {
    left: &'l Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom("too many values")),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key()? {
            map.insert(key, entries.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

/// Where the text stops being JSON, in characters.
fn offset(text: &str, error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return text.chars().count();
    }
    let before: usize = text
        .split('\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.chars().count() + 1)
        .sum();
    let line = text
        .split('\n')
        .nth(error.line().saturating_sub(1))
        .unwrap_or_default();
    let column = error.column().saturating_sub(1).min(line.len());
    before + line.get(..column).map_or(column, |part| part.chars().count())
}

fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.is_eof() || text.starts_with("expected value") {
        return "Expecting value".to_owned();
    }
    text.split(" at line").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn the_place_of_a_syntax_error_is_counted_in_characters() {
        let at = |text: &str| {
            let ApiError::Validation(body) = parse(text.as_bytes(), MIB).unwrap_err() else {
                panic!("{text}")
            };
            body["detail"][0]["loc"][1].as_u64().unwrap()
        };
        assert_eq!(at("{\"run_name\": "), 13);
        assert_eq!(at("nope"), 1);
        assert_eq!(at("{\n \"é\": x}"), 8);
        assert_eq!(at("{} x"), 3, "nothing may follow");
    }

    #[test]
    fn deep_nesting_and_other_encodings_are_unreadable() {
        for bytes in ["[".repeat(100_000).as_bytes(), b"\xff\xfe"] {
            assert!(matches!(parse(bytes, MIB * 4), Err(ApiError::Plain(_))));
        }
    }

    #[test]
    fn values_are_those_of_serde_json() {
        let text = r#"{"b": [1, -2, 1.5, 1e300, 18446744073709551615, "x\n", "plain", null, true, {}, []], "a": 0, "b2": {"c": "é"}, "a": 1}"#;
        let read = parse(text.as_bytes(), MIB).unwrap();
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read, expected);
        assert_eq!(read.to_string(), expected.to_string(), "also in order");
    }

    #[test]
    fn bodies_of_more_values_than_they_can_need_are_refused() {
        let list = |values: usize| format!("[{}]", vec!["0"; values - 1].join(","));
        let most = MIB / BYTES_OF_VALUE;
        assert!(parse(list(most).as_bytes(), MIB).is_ok());
        for text in [
            list(most + 1),
            format!("[{}]", vec!["[0]"; most / 2 + 1].join(",")),
            format!("[{}]", vec![r#"{"a":0}"#; most / 2 + 1].join(",")),
        ] {
            let refused = parse(text.as_bytes(), MIB).unwrap_err();
            assert!(
                matches!(&refused, ApiError::TooLarge { limit } if limit == "65536 values"),
                "{refused}"
            );
        }
    }
}
