//! CPU requirements: `{arch, count}`, a count, or a text such as `arm:4..`.

use dstack_units::{CpuArchitecture, CpuSpec, Range, cpu};
use serde_json::{Map, Value, json};

use crate::schema::{Object, Property, Schema, SchemaFields, Schemas};
use crate::{Cx, Decode, DecodeFields, Fields};

impl DecodeFields for CpuSpec {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        let arch = match fields.get("arch") {
            Some(value) => cx.at("arch", |cx| Option::<CpuArchitecture>::decode(value, cx)),
            None => Some(None),
        };
        let count = match fields.get("count") {
            Some(value) => cx.at("count", |cx| Range::decode(value, cx)),
            None => Some(Self::default().count),
        };
        Some(Self {
            arch: arch?,
            count: count?,
        })
    }
}

impl SchemaFields for CpuSpec {
    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        let always = schemas.are_answers();
        let arch = Property::of::<Option<CpuArchitecture>>(schemas);
        object.property("arch", arch, always);
        object.property("count", Property::of::<Range<i64>>(schemas), always);
    }
}

impl Decode for CpuSpec {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let replaced = cx.before(value, cpu_shorthand)?;
        cx.object(replaced.as_ref().unwrap_or(value))
    }
}

impl Schema for CpuSpec {
    fn schema(schemas: &mut Schemas) -> Value {
        schemas.object::<Self>("CPUSpec", "CPU requirements", true)
    }
}

/// A count, a text, or the older form `{min, max}`.
fn cpu_shorthand(value: &Value) -> Result<Option<Value>, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if !number.is_f64() => number.to_string(),
        Value::Object(map) if !map.is_empty() && map.keys().all(|key| key == "min" || key == "max") => {
            return Ok(Some(json!({"arch": null, "count": value})));
        }
        _ => return Ok(None),
    };
    let tokens = cpu::tokens(&text).map_err(dstack_units::ParseError::into_message)?;
    let mut map = Map::new();
    if let Some(arch) = tokens.arch {
        map.insert("arch".to_owned(), json!(arch));
    }
    if let Some(count) = tokens.count {
        map.insert("count".to_owned(), json!(count));
    }
    Ok(Some(Value::Object(map)))
}
