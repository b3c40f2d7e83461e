use serde_json::json;

use super::*;
use crate::models::fake::{answer, openai_service, tgi_service};

#[tokio::test]
async fn an_unknown_model_is_not_found_in_the_words_of_both() {
    let setup = Setup::new([openai_service("run", "other", 1)]);
    let (status, body) = json(setup.chat(CHAT).await).await;
    let message = json!("Model m not found in project main");
    assert_eq!(
        (status, &body["detail"], &body["error"]["message"]),
        (404, &message, &message)
    );
}

#[tokio::test]
async fn the_body_is_checked_before_the_model_is_looked_for() {
    let setup = Setup::new([]);
    let (status, body) = json(setup.chat(r#"{"model": "m"}"#).await).await;
    assert_eq!(
        (status, &body["detail"][0]["loc"]),
        (422, &json!(["body", "messages"]))
    );
}

#[tokio::test]
async fn a_model_without_replicas_is_unavailable() {
    let setup = Setup::new([openai_service("run", "m", 0)]);
    let (status, body) = json(setup.chat(CHAT).await).await;
    assert_eq!(status, 503);
    assert_eq!(
        body["detail"],
        "Model m in project main has no replica that runs at the moment"
    );
    assert_eq!(body["error"]["message"], body["detail"]);
}

#[tokio::test]
async fn another_service_of_the_model_answers_when_one_is_away() {
    for status in [502, 503] {
        let setup = Setup::new([openai_service("here", "m", 1), openai_service("away", "m", 100)]);
        setup
            .forward
            .answers("away", answer(status, "application/json", "{}"));
        setup
            .forward
            .answers("here", answer(200, "application/json", "{\"ok\": 1}"));
        assert_eq!(
            whole(setup.chat(CHAT).await).await,
            (200, "{\"ok\": 1}".to_owned())
        );
        let received = setup.forward.received.lock();
        let asked: Vec<&str> = received.iter().map(|received| received.run.as_str()).collect();
        assert_eq!(asked, ["away", "here"]);
        assert!(received.iter().all(|received| received.body == CHAT));
    }
}

#[tokio::test]
async fn services_of_both_formats_stand_in_for_one_another() {
    let setup = Setup::new([openai_service("away", "m", 100), tgi_service("tgi", "m")]);
    let generated =
        r#"{"generated_text": "Hi", "details": {"finish_reason": "length", "generated_tokens": 1}}"#;
    setup
        .forward
        .answers("tgi", answer(200, "application/json", generated));
    let (status, body) = json(setup.chat(CHAT).await).await;
    assert_eq!(
        (status, &body["choices"][0]["message"]["content"]),
        (200, &json!("Hi"))
    );
}

#[tokio::test]
async fn when_all_are_away_the_last_one_says_so() {
    let setup = Setup::new(["a", "b", "c", "d"].map(|run| openai_service(run, "m", 1)));
    let (status, body) = json(setup.chat(CHAT).await).await;
    assert_eq!((status, body), (503, json!({"detail": "no replica"})));
    assert_eq!(
        setup.forward.received.lock().len(),
        3,
        "and not all of many are asked"
    );
}

#[tokio::test]
async fn other_errors_are_the_answer() {
    for status in [400, 404, 429, 500, 504] {
        let setup = Setup::new(["a", "b"].map(|run| openai_service(run, "m", 1)));
        for run in ["a", "b"] {
            setup
                .forward
                .answers(run, answer(status, "application/json", "{\"error\": {}}"));
        }
        assert_eq!(
            whole(setup.chat(CHAT).await).await,
            (status, "{\"error\": {}}".to_owned())
        );
        assert_eq!(setup.forward.received.lock().len(), 1);
    }
}

#[tokio::test]
async fn only_chats_are_asked_of_text_generation_inference() {
    let setup = Setup::new([tgi_service("tgi", "m"), openai_service("openai", "m", 1)]);
    setup
        .forward
        .answers("openai", answer(200, "application/json", "{}"));
    let asked = setup.ask(Endpoint::Embeddings, &HeaderMap::new(), CHAT).await;
    assert_eq!(asked.status(), 200);
    let setup = Setup::new([tgi_service("tgi", "m")]);
    let asked = setup.ask(Endpoint::Embeddings, &HeaderMap::new(), CHAT).await;
    let (status, body) = json(asked).await;
    let message = "Model m answers /chat/completions only, since its format is tgi; not /embeddings";
    assert_eq!((status, &body["error"]["message"]), (404, &json!(message)));
}
