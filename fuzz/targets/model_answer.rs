//! What models answer: of OpenAI's API it passes as it is, of Text Generation Inference it becomes OpenAI's. The first byte says
//! which, whether it is a stream, whether it breaks off, and in pieces of how many bytes it comes.
#![no_main]

use dstack_fuzz::models::{Answer, Format, Outcome, call};
use dstack_proxy::models::Endpoint;
use serde_json::{Value, json};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let is_set = |bit: u32| choice >> bit & 1 == 1;
    let format = if is_set(0) { Format::Tgi } else { Format::OpenAi };
    let streams = is_set(1);
    let answer = Answer {
        content_type: if streams { "text/event-stream" } else { "application/json" },
        bytes,
        piece_bytes: usize::from(choice >> 3) + 1,
        breaks: is_set(2),
    };
    let asked = json!({"model": format.model(), "messages": [], "stream": streams, "stop": ["end"]});
    let outcome = call(Endpoint::ChatCompletions, asked.to_string().as_bytes(), &answer);
    assert!(outcome.counted <= 1, "{outcome:?}");
    match format {
        Format::OpenAi => passed(&answer, &outcome),
        Format::Tgi if outcome.status == 200 && streams => {
            assert!(!outcome.is_broken, "{outcome:?}");
            events(&outcome.body);
        }
        Format::Tgi => {
            serde_json::from_slice::<Value>(&outcome.body).unwrap();
        }
    }
});

/// All of it, and what is said of a stream that broke.
fn passed(answer: &Answer<'_>, outcome: &Outcome) {
    let rest = outcome.body.strip_prefix(answer.bytes).expect("not what the model answered");
    assert!(answer.breaks || (rest.is_empty() && !outcome.is_broken), "{outcome:?}");
    if !rest.is_empty() {
        events(rest);
    }
}

/// Each is one line of JSON, or says that it is over; what is for readers of streams is a comment.
fn events(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    for event in text.split_terminator("\n\n").filter(|event| !event.starts_with(": ")) {
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{text:?}"));
        assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "{text:?}");
    }
}
