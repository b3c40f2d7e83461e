//! Ports of a container and of this machine.

use dstack_units::{PortMapping, port};
use serde_json::{Value, json};

use crate::constraint::{gt, le};
use crate::schema::{Object, Property, Schema, SchemaFields, Schemas, any_of};
use crate::{Cx, Decode, DecodeFields, Fields};

fn port_number(value: &Value, cx: &mut Cx) -> Option<u16> {
    let number = i64::decode(value, cx)?;
    gt(&number, 0, value, cx)?;
    le(&number, 65_535, value, cx)?;
    u16::try_from(number).ok()
}

impl DecodeFields for PortMapping {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        let local = match fields.get("local_port") {
            None | Some(Value::Null) => Some(None),
            Some(value) => cx.at("local_port", |cx| port_number(value, cx)).map(Some),
        };
        let container = match fields.get("container_port") {
            Some(value) => cx.at("container_port", |cx| port_number(value, cx)),
            None => fields.missing("container_port", cx),
        };
        Some(Self {
            local_port: local?,
            container_port: container?,
        })
    }
}

impl SchemaFields for PortMapping {
    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        let always = schemas.are_answers();
        object.property("local_port", Property::of::<Option<u16>>(schemas), always);
        object.property("container_port", Property::of::<u16>(schemas), true);
    }
}

/// `8000`, `"80:8000"`, `"*:8000"`, `{local_port, container_port}`.
impl Decode for PortMapping {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let object = match value {
            Value::Number(number) if !number.is_f64() => {
                json!({"local_port": value, "container_port": value})
            }
            Value::String(text) => match port::tokens(text) {
                Ok(tokens) => json!({"local_port": tokens.local, "container_port": tokens.container}),
                Err(error) => return cx.value_error(error.message(), value),
            },
            _ => return cx.object(value),
        };
        cx.object(&object)
    }
}

impl Schema for PortMapping {
    fn schema(schemas: &mut Schemas) -> Value {
        port_schema(schemas, r"^(?:[0-9]+|\*):[0-9]+$")
    }
}

/// A port, a text that maps one, or both ports by name.
pub fn port_schema(schemas: &mut Schemas, text: &str) -> Value {
    let object = schemas.object::<PortMapping>("PortMapping", "A port to forward", false);
    if schemas.are_answers() {
        return object;
    }
    any_of(vec![
        json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 65535}),
        json!({"type": "string", "pattern": text}),
        object,
    ])
}
