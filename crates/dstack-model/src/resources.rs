//! Resource requirements.

use dstack_units::{AcceleratorVendor, CpuArchitecture, CpuSpec, GpuSpec, Memory, Range, cpu, gpu};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Decode;
use crate::decode::{Cx, Decode as _, DecodeFields, Fields};
use crate::schema::{Object, Property, Schema, Schemas};

/// What a node must have.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ResourcesSpec {
    /// The CPU requirements.
    #[decode(default)]
    pub cpu: CpuSpec,
    /// The RAM size (e.g., `8GB`).
    #[decode(default = Range::at_least(Memory::from_gb(8.0)))]
    pub memory: Range<Memory>,
    /// The size of shared memory (e.g., `8GB`).
    pub shm_size: Option<Memory>,
    /// The GPU requirements.
    #[decode(default = Some(GpuSpec::any_or_none()))]
    pub gpu: Option<GpuSpec>,
    /// The disk resources.
    #[decode(default = Some(DiskSpec::default()))]
    pub disk: Option<DiskSpec>,
}

impl Default for ResourcesSpec {
    fn default() -> Self {
        Self {
            cpu: CpuSpec::default(),
            memory: Range::at_least(Memory::from_gb(8.0)),
            shm_size: None,
            gpu: Some(GpuSpec::any_or_none()),
            disk: Some(DiskSpec::default()),
        }
    }
}

impl ResourcesSpec {
    /// Hardly any requirement: one CPU.
    pub fn unconstrained() -> Self {
        Self {
            cpu: CpuSpec {
                arch: None,
                count: Range::at_least(1),
            },
            memory: Range::at_least(Memory::from_gb(0.0)),
            shm_size: None,
            gpu: Some(GpuSpec::any_or_none()),
            disk: None,
        }
    }
}

/// Disk requirements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Decode)]
#[decode(before = disk_from_scalar)]
pub struct DiskSpec {
    /// Disk size.
    pub size: Range<Memory>,
}

impl Default for DiskSpec {
    fn default() -> Self {
        Self {
            size: Range::at_least(Memory::from_gb(100.0)),
        }
    }
}

fn disk_from_scalar(value: &Value) -> Result<Option<Value>, String> {
    Ok(matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_)).then(|| json!({"size": value})))
}

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

    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        let always = schemas.are_answers();
        let arch = Property::of::<Option<CpuArchitecture>>(schemas);
        object.property("arch", arch, always);
        object.property("count", Property::of::<Range<i64>>(schemas), always);
    }
}

impl crate::decode::Decode for CpuSpec {
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

impl DecodeFields for GpuSpec {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        fn optional<T: crate::decode::Decode>(
            fields: &mut Fields<'_>,
            key: &'static str,
            cx: &mut Cx,
        ) -> Option<Option<T>> {
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

    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        let always = schemas.are_answers();
        let mut add = |key, property| object.property(key, property, always);
        add("vendor", Property::of::<Option<AcceleratorVendor>>(schemas));
        add("name", Property::of::<Names>(schemas));
        add("count", Property::of::<Range<i64>>(schemas));
        add("memory", Property::of::<Option<Range<Memory>>>(schemas));
        add("total_memory", Property::of::<Option<Range<Memory>>>(schemas));
        let capability = Property::of::<Option<dstack_units::ComputeCapability>>(schemas);
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

impl crate::decode::Decode for GpuSpec {
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
