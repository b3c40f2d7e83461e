//! Writing configurations as YAML: block style, short lists in brackets, as dstack 0.22.5 shows them.
//!
//! Clients of dstack 0.22.5 show this text to be edited, so it is the same text; emitters at hand write lists in one style
//! only, and quote by rules of their own.

use serde_json::Value;

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
        other => {
            text.push(' ');
            text.push_str(&inline(other));
            text.push('\n');
        }
    }
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
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+=@".contains(&byte);
    let first = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let words = [
        "true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan", "inf",
    ];
    if first && text.bytes().all(safe) && !words.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
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
    fn what_is_written_reads_the_same() {
        let value = json!({
            "type": "slurm",
            "clusters": [
                {"name": "a", "port": 22, "key": {"content": "line 1\nline 2: #\n"}},
                {"name": "no", "list": ["x", "8", "a: b"], "deep": [{"x": 1}]},
            ],
            "flag": true,
            "tags": {"k y": "", "0": "1"},
            "empty": [],
        });
        let read = dstack_model::yaml::load(&write(&value)).unwrap().value;
        assert_eq!(read, value, "{}", write(&value));
    }
}
