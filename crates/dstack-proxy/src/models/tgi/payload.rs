//! From OpenAI's request for a chat to what Text Generation Inference is asked.

use minijinja::Value as TemplateValue;
use minijinja::value::ValueKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::models::failure::Failure;
use crate::models::render::Message;
use crate::models::request::wrong;

/// What is asked for, but for the prompt.
#[derive(Debug)]
pub(super) struct Payload {
    /// The answer is a stream.
    pub(super) stream: bool,
    /// A stream ends with what it took.
    pub(super) include_usage: bool,
    /// Texts at which the answer ends, the model's own end among them.
    pub(super) stop: Vec<String>,
    max_tokens: Option<i64>,
    seed: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    n: i64,
}

#[derive(Debug, Deserialize)]
struct Members<'b> {
    #[serde(borrow)]
    messages: Option<&'b RawValue>,
    #[serde(borrow)]
    stream: Option<&'b RawValue>,
    #[serde(borrow)]
    stream_options: Option<&'b RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'b RawValue>,
    #[serde(borrow)]
    max_completion_tokens: Option<&'b RawValue>,
    #[serde(borrow)]
    stop: Option<&'b RawValue>,
    #[serde(borrow)]
    seed: Option<&'b RawValue>,
    #[serde(borrow)]
    temperature: Option<&'b RawValue>,
    #[serde(borrow)]
    top_p: Option<&'b RawValue>,
    #[serde(borrow)]
    n: Option<&'b RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Payload {
    /// What a body asks for, and the chat in it.
    ///
    /// # Errors
    /// A member is not of its type, or a message has more than text.
    pub(super) fn read(body: &[u8], eos_token: &str) -> Result<(Self, Vec<Message>), Failure> {
        let members: Members<'_> =
            serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?;
        let stream_options: Option<StreamOptions> = object("stream_options", members.stream_options)?;
        let max_tokens = integer("max_completion_tokens", members.max_completion_tokens)?;
        let payload = Self {
            stream: boolean("stream", members.stream)?.unwrap_or(false),
            include_usage: stream_options.unwrap_or_default().include_usage,
            stop: stop(members.stop, eos_token)?,
            max_tokens: integer("max_tokens", members.max_tokens)?.or(max_tokens),
            seed: integer("seed", members.seed)?,
            temperature: number("temperature", members.temperature)?,
            top_p: number("top_p", members.top_p)?,
            n: integer("n", members.n)?.unwrap_or(1),
        };
        Ok((payload, messages(members.messages)?))
    }

    /// The body of the request.
    pub(super) fn to_json(&self, prompt: &str) -> Value {
        // The model's server takes no temperature of 0: it is what it calls not to sample.
        let is_greedy = self.temperature == Some(0.0);
        let mut parameters = json!({
            "do_sample": !is_greedy,
            "max_new_tokens": self.max_tokens,
            "stop": self.stop,
            "seed": self.seed,
            "temperature": self.temperature.filter(|_| !is_greedy),
            "best_of": self.n,
            "details": true,
            "decoder_input_details": !self.stream,
        });
        // Nor a `top_p` of 1, which is the default of OpenAI's API.
        if let (Some(parameters), Some(top_p)) = (parameters.as_object_mut(), self.top_p)
            && top_p < 1.0
        {
            parameters.insert("top_p".to_owned(), json!(top_p));
        }
        json!({"inputs": prompt, "parameters": parameters})
    }
}

fn read<T: DeserializeOwned>(
    member: &str,
    kind: &str,
    message: &str,
    found: Option<&RawValue>,
) -> Result<Option<T>, Failure> {
    let Some(found) = found else { return Ok(None) };
    let read = serde_json::from_str(found.get());
    read.map_err(|_| wrong(member, kind, message, found))
}

fn boolean(member: &str, found: Option<&RawValue>) -> Result<Option<bool>, Failure> {
    read(member, "bool_type", "Input should be a valid boolean", found)
}

fn integer(member: &str, found: Option<&RawValue>) -> Result<Option<i64>, Failure> {
    read(member, "int_type", "Input should be a valid integer", found)
}

fn number(member: &str, found: Option<&RawValue>) -> Result<Option<f64>, Failure> {
    read(member, "float_type", "Input should be a valid number", found)
}

fn object<T: DeserializeOwned>(member: &str, found: Option<&RawValue>) -> Result<Option<T>, Failure> {
    read(member, "dict_type", "Input should be a valid dictionary", found)
}

fn stop(found: Option<&RawValue>, eos_token: &str) -> Result<Vec<String>, Failure> {
    let message = "Input should be a valid string or list of strings";
    let mut stop = match read("stop", "list_type", message, found)? {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Many(texts)) => texts,
    };
    if !stop.iter().any(|text| text == eos_token) {
        stop.push(eos_token.to_owned());
    }
    Ok(stop)
}

fn messages(found: Option<&RawValue>) -> Result<Vec<Message>, Failure> {
    let message = "Input should be a valid list of messages";
    let messages: Option<Vec<Message>> = read("messages", "list_type", message, found)?;
    let messages = messages.unwrap_or_default();
    messages.into_iter().map(of_text).collect()
}

/// Parts of a content become one text: templates know no other.
fn of_text(mut message: Message) -> Result<Message, Failure> {
    if let Some(content) = message.get_mut("content")
        && content.kind() == ValueKind::Seq
    {
        *content = TemplateValue::from(joined(content)?);
    }
    Ok(message)
}

fn joined(parts: &TemplateValue) -> Result<String, Failure> {
    let only_text = || {
        Failure::bad_request(
            "Models of format tgi take text only: of a message's content, parts of type text",
        )
    };
    let mut joined = String::new();
    for part in parts.try_iter().map_err(|_| only_text())? {
        let member = |name| part.get_attr(name).unwrap_or_default();
        match (member("type").as_str(), member("text").as_str()) {
            (Some("text"), Some(text)) => joined.push_str(text),
            _ => return Err(only_text()),
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(members: &str) -> Value {
        let body = format!(r#"{{"model": "m", "messages": []{members}}}"#);
        let (payload, _) = Payload::read(body.as_bytes(), "</s>").unwrap();
        payload.to_json("prompt")["parameters"].clone()
    }

    #[test]
    fn parameters_are_those_of_text_generation_inference() {
        let expected = json!({
            "do_sample": true,
            "max_new_tokens": null,
            "stop": ["</s>"],
            "seed": null,
            "temperature": null,
            "best_of": 1,
            "details": true,
            "decoder_input_details": true,
        });
        assert_eq!(payload(""), expected);
        let all = r#", "max_tokens": 5, "stop": ["a", "</s>"], "seed": 7, "temperature": 0.5, "top_p": 0.9, "n": 2, "stream": true, "tools": [1], "user": {}"#;
        let expected = json!({
            "do_sample": true,
            "max_new_tokens": 5,
            "stop": ["a", "</s>"],
            "seed": 7,
            "temperature": 0.5,
            "best_of": 2,
            "details": true,
            "decoder_input_details": false,
            "top_p": 0.9,
        });
        assert_eq!(payload(all), expected);
    }

    #[test]
    fn what_it_does_not_take_is_said_in_its_way() {
        let greedy = payload(r#", "temperature": 0, "top_p": 1, "stop": "x", "max_completion_tokens": 3"#);
        assert_eq!(
            (&greedy["do_sample"], &greedy["temperature"]),
            (&json!(false), &json!(null))
        );
        assert_eq!(greedy.get("top_p"), None);
        assert_eq!(greedy["stop"], json!(["x", "</s>"]));
        assert_eq!(greedy["max_new_tokens"], 3);
    }

    #[test]
    fn members_of_other_types_are_refused() {
        for member in [
            "max_tokens",
            "seed",
            "n",
            "temperature",
            "top_p",
            "stop",
            "stream_options",
            "stream",
        ] {
            for value in ["{\"include_usage\": 1}", "[1]", "\"x\""] {
                if (member, value) == ("stop", "\"x\"") {
                    continue;
                }
                let body = format!(r#"{{"messages": [], "{member}": {value}}}"#);
                let refused = Payload::read(body.as_bytes(), "").map(|(payload, _)| payload);
                assert!(format!("{:?}", refused.unwrap_err()).contains(member), "{body}");
            }
        }
    }

    fn messages_of(messages: &str) -> Result<String, Failure> {
        let body = format!(r#"{{"messages": {messages}}}"#);
        let (_, messages) = Payload::read(body.as_bytes(), "")?;
        Ok(serde_json::to_string(&messages).unwrap())
    }

    #[test]
    fn messages_keep_their_members_and_parts_become_a_text() {
        let plain = r#"[{"role":"user","content":"hi","z":[1],"a":{"y":1,"b":null}},{"content":null}]"#;
        assert_eq!(messages_of(plain).unwrap(), plain);
        let parts = r#"[{"content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"role":"user"}]"#;
        assert_eq!(messages_of(parts).unwrap(), r#"[{"content":"ab","role":"user"}]"#);
        for refused in [
            r#"[{"content":[{"type":"image_url","image_url":{"url":"u"}}]}]"#,
            r#"[{"content":["a"]}]"#,
            r#"["a"]"#,
            "{}",
        ] {
            messages_of(refused).unwrap_err();
        }
    }
}
