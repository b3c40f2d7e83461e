//! Writing configurations as YAML: block style, lists of texts in brackets, as dstack 0.22.5 shows them.
//!
//! Clients of dstack 0.22.5 show this text to be edited, so it is the same text but for texts that need quotes, which stay on one line
//! here and are folded there. Emitters at hand write lists in one style only, and quote by rules of their own.

use serde_json::Value;

/// Columns after which a list in brackets goes on in the next line: that of PyYAML, with which dstack 0.22.5 writes.
const LINE_LENGTH: usize = 80;

/// Writes a value; unset (null) fields are left out.
pub(crate) fn write(value: &Value) -> String {
    let mut text = String::new();
    node(value, 0, &mut text);
    text
}

fn node(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                text.push_str(&" ".repeat(indent));
                entry(&scalar(key), value, indent, text);
            }
        }
        other => {
            text.push_str(&inline(other));
            text.push('\n');
        }
    }
}

fn entry(key: &str, value: &Value, indent: usize, text: &mut String) {
    text.push_str(key);
    text.push(':');
    match value {
        Value::Object(map) if !map.values().all(Value::is_null) => {
            text.push('\n');
            node(value, indent + 2, text);
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            text.push('\n');
            for item in items {
                list_item(item, indent, text);
            }
        }
        Value::Array(items) => {
            text.push(' ');
            list(items, indent + 2, text);
            text.push('\n');
        }
        Value::String(string) => {
            text.push(' ');
            text.push_str(&field(string));
            text.push('\n');
        }
        other => {
            text.push(' ');
            text.push_str(&inline(other));
            text.push('\n');
        }
    }
}

/// In brackets; a line ends after the item with which it gets too long.
fn list(items: &[Value], indent: usize, text: &mut String) {
    text.push('[');
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        let line = text.rfind('\n').map_or(0, |end| end + 1);
        if text.len() - line > LINE_LENGTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
        } else if place > 0 {
            text.push(' ');
        }
        text.push_str(&inline(item));
    }
    text.push(']');
}

fn list_item(item: &Value, indent: usize, text: &mut String) {
    let Value::Object(map) = item else {
        text.push_str(&format!("{}- {}\n", " ".repeat(indent), inline(item)));
        return;
    };
    for (place, (key, value)) in map.iter().filter(|(_, value)| !value.is_null()).enumerate() {
        let lead = if place == 0 { "- " } else { "  " };
        text.push_str(&format!("{}{lead}", " ".repeat(indent)));
        entry(&scalar(key), value, indent + 2, text);
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(string) => scalar(string),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(_) => "{}".to_owned(),
        other => other.to_string(),
    }
}

/// Plain where no reader could take it for anything else; otherwise as JSON, which is YAML, too.
fn scalar(text: &str) -> String {
    match is_plain(text) {
        true => text.to_owned(),
        false => Value::String(text.to_owned()).to_string(),
    }
}

/// As [`scalar`], of a field, where colons within a word are plain (`https://host`); in lists they are not.
fn field(text: &str) -> String {
    let is_word = !text.contains(": ") && !text.ends_with(':');
    match is_word && is_plain(&text.replace(':', "_")) && !may_be_number(text) {
        true => text.to_owned(),
        false => scalar(text),
    }
}

fn is_plain(text: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+=@~ ".contains(&byte);
    let may_begin = match text.as_bytes() {
        [b'~', rest @ ..] => rest.first() == Some(&b'/'),
        [first, ..] if first.is_ascii_digit() => !may_be_number(text),
        [first, ..] => first.is_ascii_alphabetic() || b"_/".contains(first),
        [] => false,
    };
    let words = [
        "true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan", "inf",
    ];
    may_begin
        && !text.ends_with(' ')
        && text.bytes().all(is_safe)
        && !words.contains(&text.to_ascii_lowercase().as_str())
}

/// Whether a reader may take what begins with a digit for a number, a date or a time: `12`, `1.5e+3`, `0x1f`, `2001-12-14`, `10:30`;
/// and not an id.
fn may_be_number(text: &str) -> bool {
    let begins_so = text.starts_with(|first: char| first.is_ascii_digit());
    let is_other_base = ["0x", "0b", "0o"].iter().any(|base| text.starts_with(base));
    let mut letters = text.bytes().filter(u8::is_ascii_alphabetic);
    begins_so && (is_other_base || letters.all(|letter| b"eEtTzZ".contains(&letter)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_as_users_write_it() {
        let value = json!({"type": "runpod", "regions": null, "creds": {"type": "api_key", "api_key": "golden-runpod-key"}});
        assert_eq!(
            write(&value),
            "type: runpod\ncreds:\n  type: api_key\n  api_key: golden-runpod-key\n"
        );
    }

    #[test]
    fn ids_that_begin_with_a_digit_are_plain() {
        let id = "11111111-aaaa-4aaa-8aaa-111111111111";
        assert_eq!(write(&json!({"tenant_id": id})), format!("tenant_id: {id}\n"));
        assert_eq!(
            write(&json!({"account": "123456789012"})),
            "account: \"123456789012\"\n"
        );
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let value = json!({
            "type": "slurm",
            "clusters": [
                {"name": "a", "port": 22, "key": {"content": "line 1\nline 2: #\n"}},
                {"name": "no", "list": ["x", "8", "a: b"], "deep": [{"x": 1}]},
            ],
            "flag": true,
            "tags": {"k y": "", "0": "1", " a": "b ", "c": "a  b"},
            "regions": vec!["a region with a long name"; 9],
            "empty": [],
            "numbers": ["12", "1.5e+3", "1e5", "0x1f", "0b1", "0o7", "2001-12-14", "1_000", "3a", "1e-a", "1.x", "10:30"],
            "colons": {"a": "https://host:1", "b": "10:30", "c": "2001-12-14t21:59:43.10-05:00", "d": "x:", "e": "x: y", "f": ":x",
                "g": "72:b2", "h": "~", "i": "~/x", "j": "/x", "k": "~x", "l": "a #b", "m": "a:#b"},
        });
        let read = dstack_model::yaml::load(&write(&value)).unwrap().value;
        assert_eq!(read, value, "{}", write(&value));
    }
}
