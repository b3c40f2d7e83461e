//! Protocol buffers to JSON and back, by `messages.txt`. What the vendor's rules forbid is refused: unknown fields and values, two of a
//! oneof, what is required and not there.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

#[derive(Debug, Default)]
struct Message {
    fields: Vec<Field>,
    /// One of each of these oneofs has to be there.
    required: Vec<String>,
}

#[derive(Debug)]
struct Field {
    name: String,
    number: u64,
    is_repeated: bool,
    kind: Kind,
    oneof: Option<String>,
    is_required: bool,
}

#[derive(Debug)]
enum Kind {
    Text,
    /// In JSON: hexadecimal.
    Bytes,
    Int,
    Bool,
    /// In JSON: by name.
    Enum(Vec<(String, u64)>),
    Message(String),
    /// Of texts to texts, or to messages.
    Map(Option<String>),
}

static MESSAGES: LazyLock<HashMap<String, Message>> = LazyLock::new(|| {
    let mut all: HashMap<String, Message> = HashMap::new();
    let mut last = String::new();
    for line in include_str!("../messages.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        match line.strip_prefix("  ") {
            None => last = line.to_owned(),
            Some(rule) if rule.starts_with("one of ") => {
                let oneof = rule.split(' ').nth(2).unwrap().to_owned();
                all.entry(last.clone()).or_default().required.push(oneof);
            }
            Some(field) => all
                .entry(last.clone())
                .or_default()
                .fields
                .push(Field::read(field)),
        }
        all.entry(last.clone()).or_default();
    }
    all
});

impl Field {
    fn read(line: &str) -> Self {
        let (line, is_required) = match line.strip_suffix(" required") {
            Some(line) => (line, true),
            None => (line, false),
        };
        let (line, oneof) = match line.split_once(" of ") {
            Some((line, oneof)) => (line, Some(oneof.to_owned())),
            None => (line, None),
        };
        let mut words = line.splitn(3, ' ');
        let (name, number) = (words.next().unwrap(), words.next().unwrap());
        let kind = words.next().unwrap();
        let (kind, is_repeated) = match kind.strip_prefix("repeated ") {
            Some(kind) => (kind, true),
            None => (kind, false),
        };
        let kind = match kind {
            "string" => Kind::Text,
            "bytes" => Kind::Bytes,
            "int" => Kind::Int,
            "bool" => Kind::Bool,
            "map" => Kind::Map(None),
            other => match (other.strip_prefix("map "), other.strip_prefix("enum(")) {
                (Some(of), _) => Kind::Map(Some(of.to_owned())),
                (_, Some(values)) => {
                    let values = values.trim_end_matches(')').split(' ').map(|value| {
                        let (name, number) = value.split_once('=').unwrap();
                        (name.to_owned(), number.parse().unwrap())
                    });
                    Kind::Enum(values.collect())
                }
                _ => Kind::Message(other.to_owned()),
            },
        };
        Self {
            name: name.to_owned(),
            number: number.parse().unwrap(),
            is_repeated,
            kind,
            oneof,
            is_required,
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let (&byte, rest) = bytes.split_first().ok_or("cut off")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return Ok(value);
        }
        if shift > 63 {
            return Err("a number without end".to_owned());
        }
    }
}

fn piece<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = usize::try_from(varint(bytes)?).map_err(|error| error.to_string())?;
    let (piece, rest) = bytes.split_at_checked(length).ok_or("cut off")?;
    *bytes = rest;
    Ok(piece)
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

/// A message as JSON.
///
/// # Errors
/// It breaks a rule; which.
pub(crate) fn decode(name: &str, mut bytes: &[u8]) -> Result<Value, String> {
    let message = &MESSAGES[name];
    let mut told = Map::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = message.fields.iter().find(|field| field.number == key >> 3);
        let field = field.ok_or_else(|| format!("{name} has no field {}", key >> 3))?;
        let wrong = || format!("{name}.{} is of another type", field.name);
        let value = match (&field.kind, key & 7) {
            (Kind::Int, 0) => json!(i64::from_ne_bytes(varint(&mut bytes)?.to_ne_bytes())),
            (Kind::Bool, 0) => json!(varint(&mut bytes)? != 0),
            (Kind::Enum(values), 0) => {
                let number = varint(&mut bytes)?;
                let known = values.iter().find(|(_, known)| *known == number);
                let (value, _) =
                    known.ok_or_else(|| format!("{name}.{} has no value {number}", field.name))?;
                json!(value)
            }
            (Kind::Text, 2) => json!(text(piece(&mut bytes)?)?),
            (Kind::Bytes, 2) => json!(hex::encode(piece(&mut bytes)?)),
            (Kind::Message(of), 2) => decode(of, piece(&mut bytes)?)?,
            (Kind::Map(None), 2) => {
                let mut entry = piece(&mut bytes)?;
                let (mut key, mut value) = (String::new(), String::new());
                while !entry.is_empty() {
                    match varint(&mut entry)? {
                        0x0a => key = text(piece(&mut entry)?)?,
                        0x12 => value = text(piece(&mut entry)?)?,
                        _ => return Err(wrong()),
                    }
                }
                let map = told.entry(field.name.clone()).or_insert_with(|| json!({}));
                map[key] = json!(value);
                continue;
            }
            _ => return Err(wrong()),
        };
        if field.is_repeated {
            let list = told.entry(field.name.clone()).or_insert_with(|| json!([]));
            list.as_array_mut().unwrap().push(value);
        } else {
            told.insert(field.name.clone(), value);
        }
    }
    let is_set = |field: &&Field| {
        told.get(&field.name).is_some_and(|value| match &field.kind {
            Kind::Enum(values) => values.iter().any(|(name, number)| *number != 0 && value == name),
            Kind::Text => value != "",
            Kind::Int => *value != 0,
            _ => true,
        })
    };
    if let Some(missing) = message
        .fields
        .iter()
        .find(|field| field.is_required && !is_set(field))
    {
        return Err(format!("{name}.{} is required", missing.name));
    }
    let of_oneof = |oneof: &str| {
        let of_it = message
            .fields
            .iter()
            .filter(|field| field.oneof.as_deref() == Some(oneof));
        of_it.filter(|field| told.contains_key(&field.name)).count()
    };
    if let Some(missing) = message.required.iter().find(|oneof| of_oneof(oneof) == 0) {
        return Err(format!("{name}.{missing} is required"));
    }
    let oneofs = message.fields.iter().filter_map(|field| field.oneof.as_deref());
    match oneofs.into_iter().find(|oneof| of_oneof(oneof) > 1) {
        Some(oneof) => Err(format!("{name} has several of {oneof}")),
        None => Ok(Value::Object(told)),
    }
}

fn put_varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_piece(number: u64, bytes: &[u8], to: &mut Vec<u8>) {
    put_varint(number << 3 | 2, to);
    put_varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

/// JSON as a message.
pub(crate) fn encode(name: &str, told: &Value) -> Vec<u8> {
    let message = &MESSAGES[name];
    let mut bytes = Vec::new();
    for (key, value) in told.as_object().unwrap() {
        let field = message.fields.iter().find(|field| field.name == *key);
        let field = field.unwrap_or_else(|| panic!("{name} has no field {key}"));
        match value {
            Value::Null => {}
            Value::Array(values) if field.is_repeated => {
                for value in values {
                    field.put(value, &mut bytes);
                }
            }
            value => field.put(value, &mut bytes),
        }
    }
    bytes
}

impl Field {
    fn put(&self, value: &Value, to: &mut Vec<u8>) {
        let number = match (&self.kind, value) {
            (Kind::Int, value) => u64::from_ne_bytes(value.as_i64().unwrap().to_ne_bytes()),
            (Kind::Bool, value) => u64::from(value.as_bool().unwrap()),
            (Kind::Enum(values), value) => values.iter().find(|(name, _)| value == name).unwrap().1,
            (Kind::Text, value) => return put_piece(self.number, value.as_str().unwrap().as_bytes(), to),
            (Kind::Bytes, value) => {
                return put_piece(self.number, &hex::decode(value.as_str().unwrap()).unwrap(), to);
            }
            (Kind::Message(of), value) => return put_piece(self.number, &encode(of, value), to),
            (Kind::Map(_), value) => {
                for (key, value) in value.as_object().unwrap() {
                    let mut entry = Vec::new();
                    put_piece(1, key.as_bytes(), &mut entry);
                    put_piece(2, value.as_str().unwrap().as_bytes(), &mut entry);
                    put_piece(self.number, &entry, to);
                }
                return;
            }
        };
        put_varint(self.number << 3, to);
        put_varint(number, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(name: &str, told: &Value) -> Result<Value, String> {
        decode(name, &encode(name, told))
    }

    #[test]
    fn what_is_written_is_read() {
        let told = json!({
            "metadata": {"parent_id": "p", "name": "n", "labels": {"a": "b", "c": ""}},
            "spec": {"size_mebibytes": 40_960, "type": "NETWORK_SSD", "source_image_family": {"image_family": "u"}},
        });
        assert_eq!(both("CreateDiskRequest", &told), Ok(told));
        let status = json!({"code": 8, "message": "no", "details": [{"type_url": "t", "value": "00ff"}]});
        assert_eq!(both("Status", &status), Ok(status));
    }

    #[test]
    fn what_the_rules_forbid_is_refused() {
        for (name, told, why) in [
            ("DiskSpec", json!({"size_bytes": 1}), "DiskSpec.type is required"),
            (
                "DiskSpec",
                json!({"type": "NETWORK_SSD"}),
                "DiskSpec.size is required",
            ),
            (
                "DiskSpec",
                json!({"type": "NETWORK_SSD", "size_bytes": 1, "size_gibibytes": 1}),
                "DiskSpec has several of size",
            ),
            (
                "GetOperationRequest",
                json!({"id": ""}),
                "GetOperationRequest.id is required",
            ),
        ] {
            assert_eq!(both(name, &told), Err(why.to_owned()));
        }
        let unknown = encode("ListProjectsRequest", &json!({"filter": "x"}));
        assert_eq!(
            decode("ListSubnetsRequest", &unknown),
            Err("ListSubnetsRequest has no field 4".to_owned())
        );
        assert!(decode("GetDiskRequest", b"\x08\x01").is_err(), "another type");
        assert!(decode("GetDiskRequest", b"\x0a\x05a").is_err(), "cut off");
        assert!(decode("DiskSpec", b"\x30\x09").is_err(), "an unknown value");
    }
}
