//! Models behind Text Generation Inference.

use serde_json::json;

use super::*;
use crate::models::fake::{answer, streamed, tgi_service, with_model};
use crate::routes::ChatFormat;

fn one() -> Setup {
    Setup::new([tgi_service("run", "m")])
}

/// The data of the events.
fn events(text: &str) -> Vec<Value> {
    let data = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into()))
        .collect()
}

const TOKEN: &str = "data:{\"token\":{\"id\":1,\"text\":\"Hi\",\"logprob\":-0.5,\"special\":false},\"generated_text\":null,\"details\":null}\n\n";
const LAST: &str = "data:{\"token\":{\"id\":2,\"text\":\"</s>\",\"logprob\":-0.5,\"special\":true},\"generated_text\":\"Hi\",\"details\":{\"finish_reason\":\"eos_token\",\"generated_tokens\":2,\"seed\":null,\"input_length\":7}}\n\n";

#[tokio::test]
async fn a_chat_becomes_a_prompt_and_its_answer_a_completion() {
    let setup = one();
    let generated = json!({
        "generated_text": "Hello</s>",
        "details": {"finish_reason": "eos_token", "generated_tokens": 3, "seed": null, "prefill": [{}, {}], "tokens": [], "best_of_sequences": null},
    });
    setup
        .forward
        .answers("run", answer(200, "application/json", generated.to_string()));
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer token-of-dstack".parse().unwrap());
    let chat = r#"{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}"#;
    let (status, mut completion) = json(setup.ask(Endpoint::ChatCompletions, &headers, chat).await).await;
    assert!(completion["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    let expected = json!({
        "id": null,
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "system_fingerprint": "",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    });
    assert_eq!((status, completion), (200, expected));
    let received = setup.forward.received.lock();
    assert_eq!(received[0].path, "/generate");
    assert_eq!(received[0].headers.get("authorization"), None);
    let asked: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(asked["inputs"], "<user>hi</s>");
    assert_eq!(asked["parameters"]["max_new_tokens"], 9);
    assert_eq!(*setup.ledger.entries.lock(), [("run".to_owned(), 2, 3)]);
}

#[tokio::test]
async fn a_stream_becomes_chunks_as_it_comes() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    pieces.send(Ok(TOKEN)).await.unwrap();
    let chat = r#"{"model": "m", "stream": true, "stream_options": {"include_usage": true}, "messages": []}"#;
    let response = setup.chat(chat).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let mut body = response.into_body();
    let first = piece(&mut body).await;
    // The end comes only after the beginning has come out.
    pieces.send(Ok(LAST)).await.unwrap();
    let rest = piece(&mut body).await;
    assert!(
        body.frame().await.is_none(),
        "although the model's stream is still open"
    );

    let mut events = events(&(first + &rest));
    let ids: Vec<Value> = events
        .iter_mut()
        .filter(|event| event.is_object())
        .map(|event| event["id"].take())
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id.is_string()));
    let chunk = |choices: Value| json!({"id": null, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m", "system_fingerprint": "", "choices": choices});
    let mut usage = chunk(json!([]));
    usage["usage"] = json!({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9});
    let expected = [
        chunk(
            json!([{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "logprobs": null, "finish_reason": null}]),
        ),
        chunk(json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}])),
        usage,
        json!("[DONE]"),
    ];
    assert_eq!(events, expected);
    assert_eq!(setup.forward.received.lock()[0].path, "/generate_stream");
    assert_eq!(*setup.ledger.entries.lock(), [("run".to_owned(), 7, 2)]);
}

#[tokio::test]
async fn errors_keep_their_status_and_get_the_form_of_openai() {
    for (status, body, kind, message) in [
        (
            422,
            r#"{"error": "Input validation error: too long", "error_type": "validation"}"#,
            "validation",
            "Input validation error: too long",
        ),
        (
            429,
            r#"{"error": "Model is overloaded", "error_type": "overloaded"}"#,
            "overloaded",
            "Model is overloaded",
        ),
        (
            504,
            r#"{"detail": "Timed out requesting upstream"}"#,
            "server_error",
            "Timed out requesting upstream",
        ),
        (404, "nothing here", "invalid_request_error", "nothing here"),
        (
            500,
            "",
            "server_error",
            "The model answered 500 Internal Server Error",
        ),
    ] {
        for chat in [CHAT, STREAMED_CHAT] {
            let setup = one();
            setup
                .forward
                .answers("run", answer(status, "application/json", body));
            let expected = json!({"detail": message, "error": {"message": message, "type": kind, "param": null, "code": null}});
            assert_eq!(json(setup.chat(chat).await).await, (status, expected));
        }
    }
}

#[tokio::test]
async fn an_error_before_the_first_token_has_a_status() {
    let refused = "data:{\"error\":\"Input validation error\",\"error_type\":\"validation\"}\n\n";
    for (event, status, message) in [
        (Ok(refused), 422, "Input validation error"),
        (
            Ok("data: nonsense\n\n"),
            502,
            "Invalid response from model: expected ident at line 1 column 2",
        ),
        (Ok(": nothing\n\n"), 502, "The model ended its answer too early"),
        (Err("reset"), 502, "The model's answer broke off: reset"),
    ] {
        let setup = one();
        let (pieces, response) = streamed();
        setup.forward.answers("run", response);
        pieces.send(event).await.unwrap();
        drop(pieces);
        let (found, body) = json(setup.chat(STREAMED_CHAT).await).await;
        assert_eq!((found, &body["error"]["message"]), (status, &json!(message)));
    }
}

#[tokio::test]
async fn an_error_after_it_is_a_comment_and_an_event() {
    let refused = "data:{\"error\":\"Request failed during generation\",\"error_type\":\"generation\"}\n\n";
    for (event, message) in [
        (Ok(refused), "Request failed during generation"),
        (Ok(""), "The model ended its answer too early"),
        (Err("reset"), "The model's answer broke off: reset"),
    ] {
        let setup = one();
        let (pieces, response) = streamed();
        setup.forward.answers("run", response);
        pieces.send(Ok(TOKEN)).await.unwrap();
        pieces.send(event).await.unwrap();
        drop(pieces);
        let (status, text) = whole(setup.chat(STREAMED_CHAT).await).await;
        assert_eq!(status, 200);
        assert!(text.contains(&format!("\n\n: \"{message}\"\n\n")), "{text}");
        let events = events(&text);
        assert_eq!(
            (events.len(), &events[1]["error"]["message"]),
            (2, &json!(message)),
            "{text}"
        );
        assert!(setup.ledger.entries.lock().is_empty());
    }
}

#[tokio::test]
async fn events_that_come_together_are_not_lost() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    let all: &'static str = [TOKEN, TOKEN, "data:{\"error\":\"late\"}\n\n", TOKEN]
        .concat()
        .leak();
    pieces.send(Ok(all)).await.unwrap();
    let (_, text) = whole(setup.chat(STREAMED_CHAT).await).await;
    let events = events(&text);
    assert_eq!(events.len(), 3, "{text}");
    assert_eq!(events[2]["error"]["message"], "late");
}

#[tokio::test]
async fn what_the_template_refuses_is_told() {
    let format = ChatFormat::Tgi {
        chat_template: "{{ raise_exception('Only user and assistant roles are supported!') }}".to_owned(),
        eos_token: String::new(),
    };
    let setup = Setup::new([with_model("run", "m", 1, format)]);
    let (status, body) = json(setup.chat(CHAT).await).await;
    let message = "Failed to render chat template: Only user and assistant roles are supported! (line 1)";
    assert_eq!((status, &body["error"]["message"]), (400, &json!(message)));
    assert!(setup.forward.received.lock().is_empty());
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_kept() {
    let setup = one();
    let long = "x".repeat(17 * 1024 * 1024);
    setup
        .forward
        .answers("run", answer(200, "application/json", long));
    let (status, body) = json(setup.chat(CHAT).await).await;
    let message = "The model's answer broke off: it has more than 16777216 bytes";
    assert_eq!((status, &body["error"]["message"]), (502, &json!(message)));
}

#[tokio::test]
async fn tokens_that_are_for_the_model_are_not_sent() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    let special = "data:{\"token\":{\"id\":3,\"text\":\"<|eot|>\",\"special\":true},\"details\":null}\n\n";
    pieces
        .send(Ok([TOKEN, special, LAST].concat().leak()))
        .await
        .unwrap();
    let (_, text) = whole(setup.chat(STREAMED_CHAT).await).await;
    let events = events(&text);
    assert_eq!(events.len(), 3, "{text}");
    assert!(!text.contains("eot"), "{text}");
}

#[tokio::test]
async fn what_a_stream_was_cut_off_at_is_sent() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    let last = "data:{\"token\":{\"id\":3,\"text\":\" <\"},\"details\":{\"finish_reason\":\"length\",\"generated_tokens\":2}}\n\n";
    pieces.send(Ok([TOKEN, last].concat().leak())).await.unwrap();
    let (_, text) = whole(setup.chat(STREAMED_CHAT).await).await;
    let events = events(&text);
    assert_eq!(events[1]["choices"][0]["delta"]["content"], " <", "{text}");
    assert_eq!(events[2]["choices"][0]["finish_reason"], "length");
}
