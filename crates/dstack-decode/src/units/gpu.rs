//! GPU requirements: an object, a count, or a text such as `nvidia:A100:40GB:2`.

use dstack_units::{AcceleratorVendor, ComputeCapability, GpuSpec, Memory, Range, gpu};
use serde_json::{Map, Value, json};

use crate::schema::{Object, Property, Schema, SchemaFields, Schemas};
use crate::{Cx, Decode, DecodeFields, Fields};

impl DecodeFields for GpuSpec {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        fn optional<T: Decode>(fields: &mut Fields<'_>, key: &'static str, cx: &mut Cx) -> Option<Option<T>> {
            match fields.get(key) {
                Some(value) => cx.at(key, |cx| Option::<T>::decode(value, cx)),
                None => Some(None),
            }
        }
        let vendor = optional::<AcceleratorVendor>(fields, "vendor", cx);
        let name = match fields.get("name") {
            Some(value) => cx.at("name", |cx| names(value, cx)),
            None => Some(None),
        };
        let count = match fields.get("count") {
            Some(value) => cx.at("count", |cx| Range::decode(value, cx)),
            None => Some(Range::at_least(1)),
        };
        let memory = optional(fields, "memory", cx);
        let total_memory = optional(fields, "total_memory", cx);
        let compute_capability = optional(fields, "compute_capability", cx);
        Some(Self {
            vendor: vendor?,
            name: name?,
            count: count?,
            memory: memory?,
            total_memory: total_memory?,
            compute_capability: compute_capability?,
        })
    }
}

impl SchemaFields for GpuSpec {
    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        let always = schemas.are_answers();
        let mut add = |key, property| object.property(key, property, always);
        add("vendor", Property::of::<Option<AcceleratorVendor>>(schemas));
        add("name", Property::of::<Names>(schemas));
        add("count", Property::of::<Range<i64>>(schemas));
        add("memory", Property::of::<Option<Range<Memory>>>(schemas));
        add("total_memory", Property::of::<Option<Range<Memory>>>(schemas));
        let capability = Property::of::<Option<ComputeCapability>>(schemas);
        add("compute_capability", capability);
    }
}

struct Names;

impl Schema for Names {
    fn schema(_: &mut Schemas) -> Value {
        json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": ["string", "null"]}]})
    }
}

/// One name or a list of names; the deprecated prefix `tpu-` is dropped.
fn names(value: &Value, cx: &mut Cx) -> Option<Option<Vec<String>>> {
    let wrapped;
    let list = match value {
        Value::Null => return Some(None),
        Value::Array(_) => value,
        single => {
            wrapped = json!([single]);
            &wrapped
        }
    };
    let names = Vec::<String>::decode(list, cx)?;
    Some(Some(
        names.iter().map(|name| gpu::strip_tpu(name).to_owned()).collect(),
    ))
}

impl Decode for GpuSpec {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let replaced = cx.before(value, gpu_shorthand)?;
        cx.object(replaced.as_ref().unwrap_or(value))
    }
}

impl Schema for GpuSpec {
    fn schema(schemas: &mut Schemas) -> Value {
        schemas.object::<Self>("GPUSpec", "GPU requirements", true)
    }
}

fn gpu_shorthand(value: &Value) -> Result<Option<Value>, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if !number.is_f64() => number.to_string(),
        _ => return Ok(None),
    };
    let tokens = gpu::tokens(&text).map_err(dstack_units::ParseError::into_message)?;
    let mut map = Map::new();
    if let Some(vendor) = tokens.vendor {
        map.insert("vendor".to_owned(), json!(vendor));
    }
    if let Some(name) = tokens.name {
        map.insert("name".to_owned(), json!(name));
    }
    if let Some(memory) = tokens.memory {
        map.insert("memory".to_owned(), json!(memory));
    }
    if let Some(count) = tokens.count {
        map.insert("count".to_owned(), json!(count));
    }
    Ok(Some(Value::Object(map)))
}
