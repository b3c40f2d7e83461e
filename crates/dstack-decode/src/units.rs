//! The grammars of dstack-units, read from JSON.

mod cpu;
mod gpu;
pub mod port;

use dstack_units::number::float_repr;
use dstack_units::{
    AcceleratorVendor, ComputeCapability, CpuArchitecture, Cron, IdleDuration, Memory, OffDuration,
    PythonVersion, Range, Seconds,
};
use serde_json::{Map, Value, json};

use crate::schema::{Object, Property, Schema, SchemaFields, Schemas};
use crate::{Cx, Decode, DecodeFields, Fields};

impl Decode for Seconds {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match seconds(value) {
            Ok(seconds) => Some(seconds),
            Err(text) => cx.value_error(text, value),
        }
    }
}

/// Seconds from a number (fractions cut off) or a text.
fn seconds(value: &Value) -> Result<Seconds, String> {
    match value {
        Value::Bool(flag) => Ok(Seconds(i64::from(*flag))),
        Value::Number(number) => {
            #[allow(clippy::cast_possible_truncation)]
            let cut = number
                .as_i64()
                .or_else(|| number.as_f64().map(|float| float as i64));
            Ok(Seconds(cut.unwrap_or_default()))
        }
        Value::String(text) => text.parse().map_err(dstack_units::ParseError::into_message),
        other => Err(format!("Cannot parse the duration {other}")),
    }
}

/// `max_duration`, `stop_duration`: `false` and `off` are off, `true` and null are unset.
pub fn off_duration(value: &Value, cx: &mut Cx) -> Option<Option<OffDuration>> {
    match value {
        Value::Null | Value::Bool(true) => return Some(None),
        Value::Bool(false) => return Some(Some(OffDuration::Off)),
        Value::String(text) if text == "off" => return Some(Some(OffDuration::Off)),
        _ => {}
    }
    let parsed = seconds(value)
        .and_then(|seconds| OffDuration::try_from(seconds).map_err(dstack_units::ParseError::into_message));
    match parsed {
        Ok(duration) => Some(Some(duration)),
        Err(text) => cx.value_error(text, value),
    }
}

/// `inactivity_duration`: as [`off_duration`], but off is unset.
pub fn inactivity_duration(value: &Value, cx: &mut Cx) -> Option<Option<i64>> {
    off_duration(value, cx).map(|duration| duration.and_then(OffDuration::seconds))
}

/// `idle_duration`, `auto_cleanup_duration`: `false`, `off` and -1 are off, `true` and null are unset.
pub fn idle_duration(value: &Value, cx: &mut Cx) -> Option<Option<IdleDuration>> {
    match value {
        Value::Null | Value::Bool(true) => return Some(None),
        Value::Bool(false) => return Some(Some(IdleDuration::OFF)),
        Value::String(text) if text == "off" => return Some(Some(IdleDuration::OFF)),
        _ => {}
    }
    match seconds(value) {
        Ok(seconds) => Some(Some(IdleDuration(seconds.0))),
        Err(text) => cx.value_error(text, value),
    }
}

impl Decode for Memory {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let parsed = match value {
            Value::Bool(flag) => Ok(Self::from_gb(f64::from(u8::from(*flag)))),
            Value::Number(number) => Ok(Self::from_gb(number.as_f64().unwrap_or_default())),
            Value::String(text) => text.parse().map_err(dstack_units::ParseError::into_message),
            other => Err(format!("Invalid memory size: {other}")),
        };
        match parsed {
            Ok(memory) if memory.gb().is_finite() => Some(memory),
            Ok(_) => cx.value_error("Memory sizes must be finite", value),
            Err(text) => cx.value_error(text, value),
        }
    }
}

/// How a bound is printed in messages.
pub trait Printed {
    /// As Python prints it.
    fn printed(&self) -> String;
}

impl Printed for i64 {
    fn printed(&self) -> String {
        self.to_string()
    }
}

impl Printed for f64 {
    fn printed(&self) -> String {
        float_repr(*self)
    }
}

impl Printed for Memory {
    fn printed(&self) -> String {
        self.to_string()
    }
}

/// `8`, `"2..8"`, `"16GB.."`, `{min, max}`.
impl<T: Decode + PartialOrd + Printed> Decode for Range<T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let replaced = cx.before(value, range_shorthand)?;
        let value = replaced.as_ref().unwrap_or(value);
        let range: Self = cx.object(value)?;
        match (&range.min, &range.max) {
            (None, None) => cx.value_error("Invalid empty range: ..", value),
            (Some(min), Some(max)) if min > max => cx.value_error(
                format!("Invalid range order: {}..{}", min.printed(), max.printed()),
                value,
            ),
            _ => Some(range),
        }
    }
}

fn range_shorthand(value: &Value) -> Result<Option<Value>, String> {
    let split = match value {
        Value::String(text) => {
            dstack_units::range::split(text).map_err(dstack_units::ParseError::into_message)?
        }
        Value::Number(_) | Value::Bool(_) => None,
        _ => return Ok(None),
    };
    let end = |text: String| {
        if text.is_empty() {
            Value::Null
        } else {
            Value::String(text)
        }
    };
    Ok(Some(match split {
        Some((min, max)) => json!({"min": end(min), "max": end(max)}),
        None => json!({"min": value, "max": value}),
    }))
}

impl<T: Decode> DecodeFields for Range<T> {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        let mut end = |key: &'static str| match fields.get(key) {
            Some(value) => cx.at(key, |cx| Option::<T>::decode(value, cx)),
            None => Some(None),
        };
        let (min, max) = (end("min"), end("max"));
        Some(Self { min: min?, max: max? })
    }
}

impl<T: Schema> SchemaFields for Range<T> {
    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        for key in ["min", "max"] {
            let always = schemas.are_answers();
            object.property(key, Property::of::<Option<T>>(schemas), always);
        }
    }
}

impl Decode for ComputeCapability {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let parsed = match value {
            Value::Number(number) if number.is_f64() => crate::scalars::number_text(number).parse(),
            Value::String(text) => text.parse(),
            Value::Array(items) => {
                let parts: Vec<String> = items.iter().map(part_text).collect();
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                Self::from_parts(&parts)
            }
            other => Err(dstack_units::ParseError::new(format!(
                "Invalid compute capability: {other}"
            ))),
        };
        match parsed {
            Ok(capability) => Some(capability),
            Err(error) => cx.value_error(error.message(), value),
        }
    }
}

fn part_text(part: &Value) -> String {
    part.as_str().map_or_else(|| part.to_string(), str::to_owned)
}

/// Case does not matter; the aliases `tpu` and `tt` are known.
impl Decode for AcceleratorVendor {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let parsed = match value {
            Value::String(text) => text.parse().map_err(dstack_units::ParseError::into_message),
            other => Err(format!("Unsupported type: {other}")),
        };
        match parsed {
            Ok(vendor) => Some(vendor),
            Err(text) => cx.value_error(text, value),
        }
    }
}

/// Case does not matter.
impl Decode for CpuArchitecture {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::String(text) = value else {
            let allowed: Vec<&str> = Self::ALL.iter().map(|arch| arch.as_str()).collect();
            return crate::enums::refuse("enum", &allowed, value, cx);
        };
        match text.parse() {
            Ok(arch) => Some(arch),
            Err(error) => cx.value_error(dstack_units::ParseError::into_message(error), value),
        }
    }
}

impl Decode for PythonVersion {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::String(text) => match text.parse() {
                Ok(version) => Some(version),
                Err(error) => cx.value_error(dstack_units::ParseError::into_message(error), value),
            },
            _ => {
                let texts: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                crate::enums::refuse("enum", &texts, value, cx)
            }
        }
    }
}

/// The `python` key: a YAML number 3.10 arrives as 3.1.
pub fn python_number(value: &Value, _: &Map<String, Value>) -> Result<Option<Value>, String> {
    match value {
        Value::Number(number) if number.is_f64() => {
            let text = crate::scalars::number_text(number);
            Ok(Some(Value::String(if text == "3.1" {
                "3.10".to_owned()
            } else {
                text
            })))
        }
        _ => Ok(None),
    }
}

/// Checks a cron expression, keeping its text.
pub fn check_cron(text: &str) -> Result<(), String> {
    text.parse::<Cron>()
        .map(|_| ())
        .map_err(dstack_units::ParseError::into_message)
}
