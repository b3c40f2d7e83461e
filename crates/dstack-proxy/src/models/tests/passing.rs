//! Models whose API is OpenAI's.

use http::Method;
use serde_json::json;

use super::*;
use crate::models::fake::{answer, endless, openai_service, streamed, with_model};
use crate::routes::ChatFormat;

fn one() -> Setup {
    Setup::new([openai_service("run", "m", 1)])
}

#[tokio::test]
async fn requests_and_answers_are_passed_on_to_the_byte() {
    const REQUEST: &str = r#" {"messages" : [{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}],"tools":[{"x":1.0}], "model":"m","new_field":1e400}"#;
    const ANSWER: &str = r#"{ "choices":[{"message":{"tool_calls":[{}],"content":null}}],"usage":{"prompt_tokens":3,"completion_tokens":4}, "unknown": 1.0 }"#;
    for (endpoint, path) in [
        (Endpoint::ChatCompletions, "/v1/chat/completions"),
        (Endpoint::Completions, "/v1/completions"),
        (Endpoint::Embeddings, "/v1/embeddings"),
        (Endpoint::Responses, "/v1/responses"),
    ] {
        let setup = one();
        setup
            .forward
            .answers("run", answer(200, "application/json", ANSWER));
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer token-of-dstack".parse().unwrap());
        headers.insert("x-request-id", "r1".parse().unwrap());
        let response = setup.ask(endpoint, &headers, REQUEST).await;
        assert_eq!(whole(response).await, (200, ANSWER.to_owned()));
        let received = setup.forward.received.lock();
        assert_eq!(
            (received[0].path.as_str(), &received[0].method),
            (path, &Method::POST)
        );
        assert_eq!(received[0].body, REQUEST);
        assert_eq!(received[0].headers.get("authorization"), None);
        assert_eq!(received[0].headers["x-request-id"], "r1");
        assert_eq!(
            received[0].headers["content-length"],
            REQUEST.len().to_string().as_str()
        );
        assert_eq!(*setup.ledger.entries.lock(), [("run".to_owned(), 3, 4)]);
    }
}

#[tokio::test]
async fn the_prefix_of_a_model_may_be_any_path() {
    for (prefix, path) in [
        ("/v1", "/v1/chat/completions"),
        ("v1/", "/v1/chat/completions"),
        ("/", "/chat/completions"),
        ("", "/chat/completions"),
        ("/a/b", "/a/b/chat/completions"),
    ] {
        let prefix = prefix.to_owned();
        let setup = Setup::new([with_model("run", "m", 1, ChatFormat::OpenAi { prefix })]);
        setup.chat(CHAT).await;
        assert_eq!(setup.forward.received.lock()[0].path, path);
    }
    let prefix = "/a b\n".to_owned();
    let setup = Setup::new([with_model("run", "m", 1, ChatFormat::OpenAi { prefix })]);
    let (status, body) = json(setup.chat(CHAT).await).await;
    assert_eq!(
        (status, &body["detail"]),
        (502, &json!("The prefix of the model in run run is no path"))
    );
}

#[tokio::test]
async fn a_stream_comes_piece_by_piece() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    // Nothing of the body is there yet.
    let response = setup.chat(STREAMED_CHAT).await;
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let mut body = response.into_body();
    for sent in [
        "data: {\"choi",
        "ces\": []}\n\n",
        "data:{\"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 6}}\n\n",
        "data: [DONE]\n\n",
    ] {
        // Only after the one before has come out.
        pieces.send(Ok(sent)).await.unwrap();
        assert_eq!(piece(&mut body).await, sent);
    }
    assert!(setup.ledger.entries.lock().is_empty());
    drop(pieces);
    assert!(body.frame().await.is_none());
    drop(body);
    assert_eq!(*setup.ledger.entries.lock(), [("run".to_owned(), 5, 6)]);
}

/// As clients of OpenAI read it; members come in the order in which the code has them.
fn error(message: &str, kind: &str) -> serde_json::Value {
    json!({"message": message, "type": kind, "param": null, "code": null})
}

fn refused(message: &str) -> String {
    json!({"detail": message, "error": error(message, "invalid_request_error")}).to_string()
}

#[tokio::test]
async fn a_stream_that_breaks_between_events_says_so() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    pieces.send(Ok("data: {}\n\n")).await.unwrap();
    pieces.send(Err("connection\nreset")).await.unwrap();
    let (_, text) = whole(setup.chat(STREAMED_CHAT).await).await;
    let message = "The model's answer broke off: connection\nreset";
    let comment = json!(message);
    let event = json!({"error": error(message, "server_error")});
    assert_eq!(text, format!("data: {{}}\n\n: {comment}\n\ndata: {event}\n\n"));
}

#[tokio::test]
async fn an_answer_that_breaks_elsewhere_breaks() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    pieces.send(Ok("data: {\"half\": ")).await.unwrap();
    pieces.send(Err("reset")).await.unwrap();
    let mut body = setup.chat(STREAMED_CHAT).await.into_body();
    assert_eq!(piece(&mut body).await, "data: {\"half\": ");
    assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "reset");
}

#[tokio::test]
async fn what_was_used_until_the_client_went_is_counted() {
    let setup = one();
    let (pieces, response) = streamed();
    setup.forward.answers("run", response);
    pieces
        .send(Ok(
            "data: {\"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 1}}\n\n",
        ))
        .await
        .unwrap();
    let mut body = setup.chat(STREAMED_CHAT).await.into_body();
    piece(&mut body).await;
    drop(body);
    assert_eq!(*setup.ledger.entries.lock(), [("run".to_owned(), 5, 1)]);
    assert!(pieces.is_closed(), "the model learns that nobody listens");
}

#[tokio::test]
async fn errors_are_json_whatever_the_model_says() {
    for (kind, body, expected) in [
        ("application/json", "{\"x\" : 1}", "{\"x\" : 1}".to_owned()),
        ("text/plain", "{\"x\" : 1}", "{\"x\":1}".to_owned()),
        (
            "text/event-stream",
            "",
            refused("The model answered 400 Bad Request"),
        ),
        ("text/html", "<h1>no</h1>\n", refused("<h1>no</h1>")),
    ] {
        let setup = one();
        let mut error = answer(400, kind, body);
        error.headers_mut().insert("retry-after", "7".parse().unwrap());
        setup.forward.answers("run", error);
        let response = setup.chat(CHAT).await;
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(whole(response).await, (400, expected), "{kind}");
    }
}

#[tokio::test]
async fn of_an_endless_error_only_the_beginning_is_told() {
    let setup = one();
    setup
        .forward
        .answers("run", endless(answer(500, "text/plain", "")));
    let (status, text) = whole(setup.chat(CHAT).await).await;
    assert_eq!(status, 500);
    assert!((128 * 1024..200_000).contains(&text.len()), "{}", text.len());
}

#[tokio::test]
async fn models_set_no_cookies() {
    let setup = one();
    let mut response = answer(200, "application/json", "{}");
    response
        .headers_mut()
        .insert("set-cookie", "a=b".parse().unwrap());
    response.headers_mut().insert("x-of-model", "1".parse().unwrap());
    setup.forward.answers("run", response);
    let response = setup.chat(CHAT).await;
    assert_eq!(response.headers().get("set-cookie"), None);
    assert_eq!(response.headers()["x-of-model"], "1");
}
