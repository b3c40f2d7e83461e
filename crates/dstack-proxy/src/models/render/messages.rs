//! The messages of a chat. In memory they are many times what they are as text, so that they are read where that is bounded.

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::value::RawValue;

use crate::models::template::PromptError;

/// A message as templates see it, with all of its members in their order.
type Message = IndexMap<String, Value>;

/// The messages of a chat.
///
/// # Errors
/// It is no list of messages, or one has more than text.
pub(super) fn read(messages: &RawValue) -> Result<Vec<Message>, PromptError> {
    let messages: Vec<Message> = serde_json::from_str(messages.get()).map_err(|_| PromptError::NoMessages)?;
    messages.into_iter().map(of_text).collect()
}

/// Parts of a content become one text: templates know no other.
fn of_text(mut message: Message) -> Result<Message, PromptError> {
    if let Some(content) = message.get_mut("content")
        && content.kind() == ValueKind::Seq
    {
        *content = Value::from(joined(content)?);
    }
    Ok(message)
}

fn joined(parts: &Value) -> Result<String, PromptError> {
    let mut joined = String::new();
    for part in parts.try_iter().map_err(|_| PromptError::NotOnlyText)? {
        let member = |name| part.get_attr(name).unwrap_or_default();
        match (member("type").as_str(), member("text").as_str()) {
            (Some("text"), Some(text)) => joined.push_str(text),
            _ => return Err(PromptError::NotOnlyText),
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Result<String, PromptError> {
        let messages = read(serde_json::from_str(text).unwrap())?;
        Ok(serde_json::to_string(&messages).unwrap())
    }

    #[test]
    fn messages_keep_their_members_and_parts_become_a_text() {
        let plain = r#"[{"role":"user","content":"hi","z":[1],"a":{"y":1,"b":null}},{"content":null}]"#;
        assert_eq!(messages(plain).unwrap(), plain);
        let parts = r#"[{"content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"role":"user"}]"#;
        assert_eq!(messages(parts).unwrap(), r#"[{"content":"ab","role":"user"}]"#);
    }

    #[test]
    fn what_is_no_list_of_texts_is_refused() {
        for parts in [
            r#"[{"content":[{"type":"image_url","image_url":{"url":"u"}}]}]"#,
            r#"[{"content":["a"]}]"#,
        ] {
            assert!(
                matches!(messages(parts), Err(PromptError::NotOnlyText)),
                "{parts}"
            );
        }
        for other in [r#"["a"]"#, "{}", "null"] {
            assert!(matches!(messages(other), Err(PromptError::NoMessages)), "{other}");
        }
    }
}
