//! From OpenAI's request for a chat to what Text Generation Inference is asked.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::models::failure::Failure;
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

/// Texts in `stop` at most.
const MAX_STOPS: usize = 16;
/// Bytes of each of them at most.
const MAX_STOP_BYTES: usize = 1024;
/// What is longer cannot be within these limits, and is not read: each byte may be six in JSON, and spaces may stand between.
const MAX_STOP_JSON_BYTES: usize = 8 * MAX_STOPS * MAX_STOP_BYTES;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Payload {
    /// What a body asks for, and the messages in it as they came.
    ///
    /// # Errors
    /// A member is not of its type.
    pub(super) fn read<'b>(body: &'b [u8], eos_token: &str) -> Result<(Self, &'b RawValue), Failure> {
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
        Ok((payload, members.messages.unwrap_or(RawValue::NULL)))
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

/// Texts at which an answer is to end, the model's own end last. All that is generated is compared with each of them, so that there
/// are few, and short ones.
fn stop(found: Option<&RawValue>, eos_token: &str) -> Result<Vec<String>, Failure> {
    let mut stop = texts(found)?;
    stop.retain(|text| !text.is_empty());
    let is_new = !stop.iter().any(|text| text == eos_token);
    if is_new && (1..=MAX_STOP_BYTES).contains(&eos_token.len()) {
        stop.push(eos_token.to_owned());
    }
    Ok(stop)
}

fn texts(found: Option<&RawValue>) -> Result<Vec<String>, Failure> {
    let Some(found) = found else {
        return Ok(Vec::new());
    };
    let too_long = || {
        wrong(
            "stop",
            "too_long",
            &format!("Input should be at most {MAX_STOPS} strings of at most {MAX_STOP_BYTES} bytes"),
            found,
        )
    };
    if found.get().len() > MAX_STOP_JSON_BYTES {
        return Err(too_long());
    }
    let message = "Input should be a valid string or list of strings";
    let texts = match read("stop", "list_type", message, Some(found))? {
        None => Vec::new(),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Many(texts)) => texts,
    };
    match texts.len() > MAX_STOPS || texts.iter().any(|text| text.len() > MAX_STOP_BYTES) {
        true => Err(too_long()),
        false => Ok(texts),
    }
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

    fn stop_of(stop: &Value, eos_token: &str) -> Result<Vec<String>, Failure> {
        let body = json!({"messages": [], "stop": stop}).to_string();
        let (payload, _) = Payload::read(body.as_bytes(), eos_token)?;
        Ok(payload.stop)
    }

    #[test]
    fn texts_that_end_an_answer_are_few_and_short() {
        let most = vec!["\0".repeat(MAX_STOP_BYTES); MAX_STOPS];
        assert_eq!(stop_of(&json!(most), "").unwrap(), most);
        for refused in [
            json!(vec!["x"; MAX_STOPS + 1]),
            json!("x".repeat(MAX_STOP_BYTES + 1)),
            json!(["x", "x".repeat(MAX_STOP_BYTES + 1)]),
            json!(vec![""; 100_000]),
        ] {
            let refused = format!("{:?}", stop_of(&refused, "</s>").unwrap_err());
            assert!(
                refused.contains("422") && refused.contains("at most 16 strings of at most 1024 bytes"),
                "{refused}"
            );
        }
    }

    #[test]
    fn empty_texts_end_nothing() {
        assert_eq!(stop_of(&json!(["", "a", ""]), "").unwrap(), ["a"]);
        assert!(stop_of(&json!(""), "").unwrap().is_empty());
        let no_token = "x".repeat(MAX_STOP_BYTES + 1);
        assert!(stop_of(&json!([]), &no_token).unwrap().is_empty());
    }

    /// In memory they would be many times their text.
    #[test]
    fn messages_are_left_as_they_are() {
        let body = r#"{"messages": [{} , 1]}"#;
        let (_, messages) = Payload::read(body.as_bytes(), "").unwrap();
        assert_eq!(messages.get(), "[{} , 1]");
        assert!(body.as_bytes().as_ptr_range().contains(&messages.get().as_ptr()));
    }
}
