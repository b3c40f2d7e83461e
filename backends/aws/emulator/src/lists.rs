//! What lists have in common: filters, pages, tags.

use serde_json::{Value, json};

use crate::{Answer, Call, Problem};

/// Items that all filters let through, as a page: `{member: [...], "NextToken": ...}`.
///
/// `field` answers the values of an item by the name of a filter; `None`: there is no such filter.
pub(crate) fn list(
    call: &Call<'_>,
    member: &str,
    items: Vec<Value>,
    field: impl Fn(&Value, &str) -> Option<Vec<String>>,
) -> Answer {
    let mut found = Vec::new();
    for item in items {
        if passes(call, &item, &field)? {
            found.push(item);
        }
    }
    page(call, member, found)
}

fn passes(
    call: &Call<'_>,
    item: &Value,
    field: &impl Fn(&Value, &str) -> Option<Vec<String>>,
) -> Result<bool, Problem> {
    for filter in call.input["Filters"].as_array().into_iter().flatten() {
        let name = filter["Name"].as_str().unwrap_or_default();
        let wanted = texts(&filter["Values"]);
        if wanted.is_empty() || wanted.len() > 200 {
            let text = "A filter has from 1 to 200 values";
            return Err(Problem::new(400, "FilterLimitExceeded", text));
        }
        let values = match by_tag(item, name) {
            Some(values) => values,
            None => field(item, name).ok_or_else(|| {
                Problem::new(
                    400,
                    "InvalidParameterValue",
                    format!("The filter '{name}' is invalid"),
                )
            })?,
        };
        let is_there = values
            .iter()
            .any(|value| wanted.iter().any(|pattern| matches(pattern, value)));
        if !is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

fn by_tag(item: &Value, name: &str) -> Option<Vec<String>> {
    let tags = item["Tags"].as_array();
    let tags = tags.into_iter().flatten();
    if name == "tag-key" {
        return Some(tags.map(|tag| text(&tag["Key"])).collect());
    }
    let key = name.strip_prefix("tag:")?;
    Some(
        tags.filter(|tag| tag["Key"] == key)
            .map(|tag| text(&tag["Value"]))
            .collect(),
    )
}

/// Where `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// As many as are asked for, from where the page before ended.
pub(crate) fn page(call: &Call<'_>, member: &str, mut items: Vec<Value>) -> Answer {
    let from = match call.input["NextToken"].as_str() {
        Some(token) => token
            .parse()
            .map_err(|_| Problem::new(400, "InvalidNextToken", "The token is not valid"))?,
        None => 0,
    };
    let mut items = items.split_off(from.min(items.len()));
    let most = call.input["MaxResults"]
        .as_u64()
        .map(|most| usize::try_from(most).unwrap());
    let next = match most {
        Some(most) if items.len() > most => {
            items.truncate(most);
            Some((from + most).to_string())
        }
        _ => None,
    };
    Ok(match next {
        Some(next) => json!({member: items, "NextToken": next}),
        None => json!({member: items}),
    })
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// The values of these fields, by the names of filters.
pub(crate) fn fields(item: &Value, name: &str, known: &[(&str, &str)]) -> Option<Vec<String>> {
    let pointer = known.iter().find(|(filter, _)| *filter == name)?.1;
    Some(item.pointer(pointer).map(text).into_iter().collect())
}

/// The tags that a call gives to this kind of resources.
pub(crate) fn tags_for(input: &Value, kind: &str) -> Result<Value, Problem> {
    let mut all = Vec::new();
    for specification in input["TagSpecifications"].as_array().into_iter().flatten() {
        if specification["ResourceType"] != kind {
            let text = format!(
                "'{}' is not a valid taggable resource type for this operation.",
                specification["ResourceType"]
            );
            return Err(Problem::new(400, "InvalidParameterValue", text));
        }
        all.extend(specification["Tags"].as_array().into_iter().flatten().cloned());
    }
    checked(all)
}

/// The tags of a call that makes one thing; refused if they are not good.
pub(crate) fn tags_of(tags: &Value) -> Result<Value, Problem> {
    checked(tags.as_array().cloned().unwrap_or_default())
}

fn checked(all: Vec<Value>) -> Result<Value, Problem> {
    if all.len() > 50 {
        return Err(Problem::new(
            400,
            "TagLimitExceeded",
            "The maximum number of tags is 50",
        ));
    }
    let mut keys: Vec<String> = all.iter().map(|tag| text(&tag["Key"])).collect();
    keys.sort();
    let before = keys.len();
    keys.dedup();
    let fit = |tag: &Value| text(&tag["Key"]).len() <= 128 && text(&tag["Value"]).len() <= 256;
    if keys.len() != before || !all.iter().all(fit) {
        return Err(Problem::new(
            400,
            "InvalidParameterValue",
            "Duplicate or too long tags",
        ));
    }
    Ok(Value::from(all))
}

/// Under which something is in the books: its key, or its own id where it has none.
pub(crate) fn name_in_books(tags: &Value, id: &str) -> String {
    let key = tags
        .as_array()
        .into_iter()
        .flatten()
        .find(|tag| tag["Key"] == "dstack_key");
    key.map_or_else(|| id.to_owned(), |tag| text(&tag["Value"]))
}
