//! Optional values, lists and maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::{Cx, Decode, Mode};

/// Most items of any list or mapping of a request or file. Lists of ids also have to fit into one SQL statement (32,766
/// values). dstack 0.22.5 has no such limit.
pub const MAX_ITEMS: usize = 10_000;

impl<T: Decode> Decode for Option<T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        if value.is_null() {
            Some(None)
        } else {
            T::decode(value, cx).map(Some)
        }
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        T::decode(value, cx).map(Self::new)
    }
}

impl<T: Decode> Decode for Arc<T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        T::decode(value, cx).map(Self::new)
    }
}

impl Decode for Arc<str> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        String::decode(value, cx).map(Self::from)
    }
}

/// Refuses a request or file with more items than [`MAX_ITEMS`].
fn check_items(kind: &str, items: usize, value: &Value, cx: &mut Cx) -> Option<()> {
    if cx.mode() == Mode::Lenient || items <= MAX_ITEMS {
        return Some(());
    }
    let msg = format!("{kind} should have at most {MAX_ITEMS} items after validation, not {items}");
    let ctx = json!({"field_type": kind, "max_length": MAX_ITEMS, "actual_length": items});
    cx.problem_with("too_long", msg, value, ctx)
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::Array(items) = value else {
            return cx.problem("list_type", "Input should be a valid list", value);
        };
        check_items("List", items.len(), value, cx)?;
        let mut decoded = Self::with_capacity(items.len());
        let mut right = true;
        for (index, item) in items.iter().enumerate() {
            match cx.index(index, |cx| T::decode(item, cx)) {
                Some(item) => decoded.push(item),
                None => right = false,
            }
        }
        right.then_some(decoded)
    }
}

impl<T: Decode> Decode for IndexMap<String, T> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::Object(entries) = value else {
            return cx.problem("dict_type", "Input should be a valid dictionary", value);
        };
        check_items("Dictionary", entries.len(), value, cx)?;
        let mut decoded = Self::with_capacity(entries.len());
        let mut right = true;
        for (key, item) in entries {
            match cx.at(key.clone(), |cx| T::decode(item, cx)) {
                Some(item) => {
                    decoded.insert(key.clone(), item);
                }
                None => right = false,
            }
        }
        right.then_some(decoded)
    }
}

impl Decode for serde_json::Map<String, Value> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value {
            Value::Object(map) => Some(map.clone()),
            _ => cx.problem("dict_type", "Input should be a valid dictionary", value),
        }
    }
}

/// Container ports to host ports; keys are texts in JSON.
impl Decode for BTreeMap<u16, u16> {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::Object(entries) = value else {
            return cx.problem("dict_type", "Input should be a valid dictionary", value);
        };
        let mut decoded = Self::new();
        let mut right = true;
        for (key, item) in entries {
            let pair = cx.at(key.clone(), |cx| {
                let key = u16::decode(&Value::String(key.clone()), cx)?;
                Some((key, u16::decode(item, cx)?))
            });
            match pair {
                Some((key, item)) => {
                    decoded.insert(key, item);
                }
                None => right = false,
            }
        }
        right.then_some(decoded)
    }
}
