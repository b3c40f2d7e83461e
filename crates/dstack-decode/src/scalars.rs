//! Texts, numbers, booleans, times and ids, with the reference's coercions.

use dstack_units::number::{float_repr, parse_float, parse_int};
use dstack_units::{Time, id};
use serde_json::{Number, Value, json};
use uuid::Uuid;

use crate::{Cx, Decode, Problem};

/// A number as text: `12`, `2.5`, `1e+20`.
pub fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_repr(float),
        _ => number.to_string(),
    }
}

impl Decode for String {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number_text(number)),
            _ => cx.problem("string_type", "Input should be a valid string", value),
        }
    }
}

impl Decode for bool {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let word = match value {
            Value::Bool(flag) => return Some(*flag),
            Value::Number(number) => match number.as_f64() {
                Some(0.0) => Some(false),
                Some(1.0) => Some(true),
                Some(float) if float.fract() != 0.0 => {
                    return cx.problem("bool_type", "Input should be a valid boolean", value);
                }
                _ => None,
            },
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => return cx.problem("bool_type", "Input should be a valid boolean", value),
        };
        match word {
            Some(flag) => Some(flag),
            None => cx.problem(
                "bool_parsing",
                "Input should be a valid boolean, unable to interpret input",
                value,
            ),
        }
    }
}

impl Decode for i64 {
    #[allow(clippy::cast_possible_truncation)]
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        const TOO_LARGE: &str = "Unable to parse input string as an integer, exceeded maximum size";
        match value {
            Value::Bool(flag) => Some(Self::from(*flag)),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(int), _) => Some(int),
                (None, Some(float)) if float.fract() != 0.0 => {
                    let msg = "Input should be a valid integer, got a number with a fractional part";
                    cx.problem("int_from_float", msg, value)
                }
                (None, Some(float)) if float.abs() < 9.0e18 => Some(float as Self),
                _ => cx.problem("int_parsing_size", TOO_LARGE, value),
            },
            Value::String(text) => match parse_int(text, true) {
                Some(int) => Some(int),
                None => {
                    let msg = "Input should be a valid integer, unable to parse string as an integer";
                    cx.problem("int_parsing", msg, value)
                }
            },
            _ => cx.problem("int_type", "Input should be a valid integer", value),
        }
    }
}

macro_rules! small_integers {
    ($($int:ty),*) => {
        $(impl Decode for $int {
            fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
                let int = i64::decode(value, cx)?;
                if let Ok(int) = Self::try_from(int) {
                    return Some(int);
                }
                #[allow(irrefutable_let_patterns)]
                if int < 0 {
                    cx.problem_with("greater_than_equal", "Input should be greater than or equal to 0", value, json!({"ge": 0}))
                } else {
                    let msg = format!("Input should be less than or equal to {}", <$int>::MAX);
                    cx.problem_with("less_than_equal", msg, value, json!({"le": <$int>::MAX}))
                }
            }
        })*
    };
}
small_integers!(u16, u32, u64, usize, i32);

impl Decode for f64 {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::Bool(flag) => Some(Self::from(u8::from(*flag))),
            Value::Number(number) => number.as_f64(),
            Value::String(text) => match parse_float(text) {
                // Infinity and NaN cannot be sent back as JSON.
                Some(float) if float.is_finite() => Some(float),
                Some(_) => cx.problem("finite_number", "Input should be a finite number", value),
                None => {
                    let msg = "Input should be a valid number, unable to parse string as a number";
                    cx.problem("float_parsing", msg, value)
                }
            },
            _ => cx.problem("float_type", "Input should be a valid number", value),
        }
    }
}

impl Decode for Time {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let wrong = |cx: &mut Cx| {
            let msg = "Input should be a valid datetime or date, invalid characters";
            cx.problem_with(
                "datetime_from_date_parsing",
                msg,
                value,
                json!({"error": "invalid characters"}),
            )
        };
        match value {
            Value::Number(number) => number.as_f64().map(from_epoch),
            Value::String(text) => match text.parse::<Self>() {
                Ok(time) => Some(time),
                Err(_) => match parse_float(text)
                    .map(from_epoch)
                    .or_else(|| date_at_midnight(text))
                {
                    Some(time) => Some(time),
                    None => wrong(cx),
                },
            },
            _ => cx.problem("datetime_type", "Input should be a valid datetime", value),
        }
    }
}

fn date_at_midnight(text: &str) -> Option<Time> {
    format!("{}T00:00:00Z", text.trim()).parse().ok()
}

/// Epoch seconds, or milliseconds when they would lie beyond the year 2603 (the reference's watershed).
#[allow(clippy::cast_possible_truncation)]
fn from_epoch(number: f64) -> Time {
    const WATERSHED: f64 = 2e10;
    let micros = if number.abs() > WATERSHED {
        number * 1e3
    } else {
        number * 1e6
    };
    Time::from_micros(micros.round() as i64)
}

impl Decode for Uuid {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::String(text) = value else {
            return cx.problem(
                "uuid_type",
                "UUID input should be a string, bytes or UUID object",
                value,
            );
        };
        match Self::parse_str(text) {
            Ok(uuid) => Some(uuid),
            Err(error) => {
                let error = error.to_string();
                let msg = format!("Input should be a valid UUID, {error}");
                cx.problem_with("uuid_parsing", msg, value, json!({"error": error}))
            }
        }
    }
}

/// A UUID that must be of version 4.
pub fn uuid4(value: &Value, cx: &mut Cx) -> Option<Uuid> {
    let uuid = Uuid::decode(value, cx)?;
    if uuid.get_version_num() == 4 {
        return Some(uuid);
    }
    cx.report(Problem {
        ctx: Some(json!({"expected_version": 4})),
        ..Problem::new("uuid_version", "UUID version 4 expected", value)
    })
}

/// An id that must be a UUID of version 4.
pub fn id4<Kind>(value: &Value, cx: &mut Cx) -> Option<id::Id<Kind>> {
    uuid4(value, cx).map(id::Id::new)
}

impl<Kind> Decode for id::Id<Kind> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        Uuid::decode(value, cx).map(Self::new)
    }
}
