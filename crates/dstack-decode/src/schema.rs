//! JSON Schemas of the types, made from the same definitions that decode them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

/// A type that can be described by a JSON Schema (draft 2020-12).
pub trait Schema {
    /// Its schema; objects are put among the definitions and answered as a reference.
    fn schema(schemas: &mut Schemas) -> Value;
}

/// An object whose keys can be described, also as a part of another object that it is flattened into.
pub trait SchemaFields {
    /// Adds its keys to the schema of an object.
    fn schema_fields(object: &mut Object, schemas: &mut Schemas);
}

/// The definitions collected so far.
///
/// What is read may have more forms than what is written: shorthands, and fields that may be left out. So there are
/// schemas of what is accepted, and of answers.
#[derive(Debug)]
pub struct Schemas {
    definitions: Map<String, Value>,
    prefix: &'static str,
    answers: bool,
}

impl Default for Schemas {
    fn default() -> Self {
        Self {
            definitions: Map::new(),
            prefix: "#/$defs/",
            answers: false,
        }
    }
}

impl Schemas {
    /// Of what is accepted, with definitions at another place than `#/$defs/`.
    pub fn of_requests(prefix: &'static str) -> Self {
        Self {
            prefix,
            ..Self::default()
        }
    }

    /// Of what is answered.
    pub fn of_answers(prefix: &'static str) -> Self {
        Self {
            prefix,
            answers: true,
            ..Self::default()
        }
    }

    /// Whether these are the schemas of answers.
    pub const fn are_answers(&self) -> bool {
        self.answers
    }

    /// One schema for what is accepted, another for answers.
    #[allow(clippy::needless_pass_by_value)] // one of them is moved out
    pub fn either(&self, accepted: Value, answered: Value) -> Value {
        if self.answers { answered } else { accepted }
    }

    /// Defines an object under its name, once; answers a reference to it. With `shorthand` a text or number is allowed too.
    pub fn object<T: SchemaFields>(&mut self, name: &str, doc: &str, shorthand: bool) -> Value {
        if !self.definitions.contains_key(name) {
            self.definitions.insert(name.to_owned(), Value::Null);
            let mut object = Object::default();
            T::schema_fields(&mut object, self);
            self.definitions.insert(name.to_owned(), object.finish(name, doc));
        }
        let reference = self.reference(name);
        if shorthand && !self.answers {
            json!({"anyOf": [reference, {"type": ["integer", "number", "string"]}]})
        } else {
            reference
        }
    }

    /// Points to a definition.
    pub fn reference(&self, name: &str) -> Value {
        json!({"$ref": format!("{}{name}", self.prefix)})
    }

    /// Defines something that is no object under a name.
    pub fn define(&mut self, name: &str, schema: Value) {
        self.definitions.insert(name.to_owned(), schema);
    }

    /// Takes a definition out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.definitions.remove(name)
    }

    /// Returns all definitions by their names.
    pub fn into_definitions(self) -> Map<String, Value> {
        self.definitions
    }
}

/// The schema of a type with everything that it refers to.
pub fn document<T: Schema>() -> Value {
    let mut schemas = Schemas::default();
    let schema = T::schema(&mut schemas);
    let mut document = Map::new();
    document.insert(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    if let Value::Object(own) = schema {
        document.extend(own);
    }
    document.insert("$defs".to_owned(), Value::Object(schemas.into_definitions()));
    Value::Object(document)
}

/// An object's schema in the making.
#[derive(Debug, Default)]
pub struct Object {
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl Object {
    /// Adds a property.
    pub fn property(&mut self, key: &'static str, property: Property, required: bool) {
        self.properties.insert(key.to_owned(), property.0);
        if required {
            self.required.push(key);
        }
    }

    /// Adds a property whose value does not matter.
    pub fn ignored(&mut self, key: &'static str) {
        self.properties.insert(key.to_owned(), json!({}));
    }

    fn finish(self, title: &str, doc: &str) -> Value {
        let mut schema = json!({
            "title": title,
            "type": "object",
            "properties": self.properties,
            "additionalProperties": false,
        });
        if let Value::Object(map) = &mut schema {
            if !self.required.is_empty() {
                map.insert("required".to_owned(), json!(self.required));
            }
            if !doc.is_empty() {
                map.insert("description".to_owned(), json!(doc));
            }
        }
        schema
    }
}

/// A property's schema.
#[derive(Debug)]
pub struct Property(Value);

impl From<Value> for Property {
    fn from(schema: Value) -> Self {
        Self(schema)
    }
}

impl Property {
    /// Of a type.
    pub fn of<T: Schema>(schemas: &mut Schemas) -> Self {
        Self(T::schema(schemas))
    }

    /// Adds a description.
    pub fn describe(&mut self, doc: &str) {
        if !doc.is_empty() {
            self.set("description", doc);
        }
    }

    /// Adds a keyword.
    pub fn set(&mut self, keyword: &'static str, value: impl serde::Serialize) {
        if let Value::Object(map) = &mut self.0 {
            map.insert(keyword.to_owned(), json!(value));
        }
    }

    /// Adds `minLength` and its like; `which` is `min` or `max`.
    pub fn set_length(&mut self, which: &str, length: usize) {
        let list = self.0.to_string().contains("\"array\"");
        let keyword = match (which, list) {
            ("min", true) => "minItems",
            ("min", false) => "minLength",
            (_, true) => "maxItems",
            (_, false) => "maxLength",
        };
        self.set(keyword, length);
    }
}

/// One of several objects, told apart by the value of a key; each with its value.
#[allow(clippy::needless_pass_by_value)] // they are moved into the JSON
pub fn one_of(tag: &str, members: Vec<(&str, Value)>, schemas: &Schemas) -> Value {
    let mut discriminator = json!({"propertyName": tag});
    // JSON Schema does not know it; OpenAPI takes the names of definitions for values without it.
    if schemas.prefix != Schemas::default().prefix {
        let mapping: Map<String, Value> = members
            .iter()
            .filter_map(|(value, member)| Some(((*value).to_owned(), member.get("$ref")?.clone())))
            .collect();
        if let Value::Object(map) = &mut discriminator {
            map.insert("mapping".to_owned(), Value::Object(mapping));
        }
    }
    let members: Vec<Value> = members.into_iter().map(|(_, member)| member).collect();
    json!({"oneOf": members, "discriminator": discriminator})
}

/// Any of several schemas.
#[allow(clippy::needless_pass_by_value)] // they are moved into the JSON
pub fn any_of(members: Vec<Value>) -> Value {
    json!({"anyOf": members})
}

/// One of these texts.
pub fn texts(allowed: &[&str]) -> Value {
    match allowed {
        [only] => json!({"const": only, "type": "string"}),
        _ => json!({"enum": allowed, "type": "string"}),
    }
}

macro_rules! plain {
    ($($ty:ty => $schema:tt;)*) => {
        $(impl Schema for $ty {
            fn schema(_: &mut Schemas) -> Value {
                json!($schema)
            }
        })*
    };
}

plain! {
    String => {"type": "string"};
    bool => {"type": "boolean"};
    () => {"type": "null"};
    i64 => {"type": "integer"};
    i32 => {"type": "integer"};
    u16 => {"type": "integer", "minimum": 0, "maximum": 65535};
    u32 => {"type": "integer", "minimum": 0};
    u64 => {"type": "integer", "minimum": 0};
    usize => {"type": "integer", "minimum": 0};
    f64 => {"type": "number"};
    uuid::Uuid => {"type": "string", "format": "uuid"};
    dstack_units::Time => {"type": "string", "format": "date-time"};
    dstack_units::AcceleratorVendor => {"type": "string", "enum": ["nvidia", "amd", "google", "intel", "tenstorrent"]};
    dstack_units::CpuArchitecture => {"type": "string", "enum": ["x86", "arm"]};
    dstack_units::PythonVersion => {"type": "string", "enum": ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]};
    Map<String, Value> => {"type": "object"};
    Value => {};
}

macro_rules! with_shorthands {
    ($($ty:ty => $accepted:tt, $answered:tt;)*) => {
        $(impl Schema for $ty {
            fn schema(schemas: &mut Schemas) -> Value {
                schemas.either(json!($accepted), json!($answered))
            }
        })*
    };
}

with_shorthands! {
    dstack_units::Seconds => {"type": ["integer", "string"]}, {"type": "integer"};
    dstack_units::OffDuration => {"type": ["integer", "string", "boolean"]},
        {"anyOf": [{"type": "integer"}, {"const": "off", "type": "string"}]};
    dstack_units::IdleDuration => {"type": ["integer", "string", "boolean"]}, {"type": "integer"};
    dstack_units::Memory => {"type": ["number", "string"]}, {"type": "number"};
    dstack_units::ComputeCapability => {"type": ["number", "string", "array"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2};
}

impl<Kind> Schema for dstack_units::id::Id<Kind> {
    fn schema(schemas: &mut Schemas) -> Value {
        uuid::Uuid::schema(schemas)
    }
}

impl<T: Schema> Schema for Option<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![T::schema(schemas), json!({"type": "null"})])
    }
}

impl<T: Schema> Schema for Box<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        T::schema(schemas)
    }
}

impl<T: Schema> Schema for Arc<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        T::schema(schemas)
    }
}

impl Schema for Arc<str> {
    fn schema(schemas: &mut Schemas) -> Value {
        String::schema(schemas)
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        json!({"type": "array", "items": T::schema(schemas)})
    }
}

impl<T: Schema> Schema for indexmap::IndexMap<String, T> {
    fn schema(schemas: &mut Schemas) -> Value {
        json!({"type": "object", "additionalProperties": T::schema(schemas)})
    }
}

impl<T: Schema> Schema for dstack_units::Range<T> {
    fn schema(schemas: &mut Schemas) -> Value {
        let end = Option::<T>::schema(schemas);
        let both = json!({"min": end, "max": end});
        let object = json!({"type": "object", "properties": both, "additionalProperties": false});
        let accepted = any_of(vec![object, json!({"type": ["integer", "number", "string"]})]);
        let answered = json!({
            "type": "object", "properties": both, "additionalProperties": false, "required": ["min", "max"],
        });
        schemas.either(accepted, answered)
    }
}

impl Schema for std::collections::BTreeMap<u16, u16> {
    fn schema(_: &mut Schemas) -> Value {
        json!({"type": "object", "additionalProperties": {"type": "integer"}})
    }
}
