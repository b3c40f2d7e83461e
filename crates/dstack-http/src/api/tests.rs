use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::*;

/// Answers in order, and keeps what it was asked.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Result<(u16, &'static str), TransportError>>>,
    asked: Mutex<Vec<String>>,
    headers: Mutex<Vec<http::HeaderMap>>,
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        let asked = format!("{} {} {body}", request.method(), request.uri());
        self.asked.lock().unwrap().push(asked.trim().to_owned());
        self.headers.lock().unwrap().push(request.headers().clone());
        let next = self.answers.lock().unwrap().pop_front();
        let Some(answer) = next else {
            return std::future::pending().await;
        };
        let (status, body) = answer?;
        let mut response = Response::new(Bytes::from_static(body.as_bytes()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if status == 429 {
            let seconds = HeaderValue::from_static(body);
            response.headers_mut().insert(http::header::RETRY_AFTER, seconds);
        }
        Ok(response)
    }
}

type Answer = Result<(u16, &'static str), TransportError>;

fn client(answers: impl IntoIterator<Item = Answer>) -> (ApiClient, Arc<Script>) {
    let script = Arc::new(Script {
        answers: Mutex::new(answers.into_iter().collect()),
        ..Script::default()
    });
    let base = Url::parse("https://api.example/v1/").unwrap();
    (ApiClient::new(script.clone(), base, ApiLimits::default()), script)
}

fn lost() -> Answer {
    Err(TransportError::Lost("reset".to_owned()))
}

fn not_sent() -> Answer {
    Err(TransportError::NotSent("refused".to_owned()))
}

fn asked(script: &Script) -> usize {
    script.asked.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_request_is_put_together() {
    let (client, script) = client([Ok((200, r#"{"id": 7}"#)), Ok((204, ""))]);
    let request = client.post("/disks").query("zone", "a b").json(&json!({"gb": 1}));
    assert_eq!(request.send::<Value>().await.unwrap(), json!({"id": 7}));
    let fields = [("Action".to_owned(), "x=y".to_owned())];
    assert_eq!(
        client
            .delete("disks/7")
            .form(&fields)
            .send::<Value>()
            .await
            .unwrap(),
        Value::Null
    );
    assert_eq!(
        *script.asked.lock().unwrap(),
        [
            r#"POST https://api.example/v1/disks?zone=a+b {"gb":1}"#,
            "DELETE https://api.example/v1/disks/7 Action=x%3Dy"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn only_what_does_nothing_twice_is_repeated() {
    let (reads, script) = client([lost(), Ok((502, "")), Ok((200, "1"))]);
    assert_eq!(reads.get("a").send::<u8>().await.unwrap(), 1);
    assert_eq!(asked(&script), 3);

    for (first, times) in [
        (lost(), 1),
        (Ok((502, "")), 1),
        (not_sent(), 2),
        (Ok((429, "1")), 2),
    ] {
        let (writes, script) = client([first.clone(), Ok((200, "1"))]);
        let answer = writes.post("a").send::<u8>().await;
        assert_eq!((answer.is_ok(), asked(&script)), (times == 2, times), "{first:?}");
    }
    let (repeatable, script) = client([lost(), Ok((200, "1"))]);
    assert_eq!(repeatable.put("a").repeatable().send::<u8>().await.unwrap(), 1);
    assert_eq!(asked(&script), 2);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_carried_out_stays_unclear_whatever_comes_of_its_repetition() {
    for then in [not_sent(), Ok((429, "60")), Ok((401, ""))] {
        let (client, _) = client([lost(), then.clone(), then.clone(), then.clone()]);
        let error = client.put("a").repeatable().send::<u8>().await.unwrap_err();
        assert!(matches!(error, ApiError::Lost { .. }), "{then:?}: {error:?}");
    }
    // What it says of the thing itself is so.
    let (client, _) = client([lost(), Ok((404, ""))]);
    let error = client.delete("a").repeatable().send::<Value>().await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::NOT_FOUND));
}

#[tokio::test(start_paused = true)]
async fn who_answers_never_or_wants_long_pauses_is_given_back_to_the_caller() {
    let (silent, script) = client([]);
    let error = silent.post("a").send::<u8>().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "api.example did not answer: no answer within 30 s"
    );
    assert!(!error.is_definite());
    assert_eq!(asked(&script), 1);

    let (busy, script) = client([Ok((429, "60"))]);
    let error = busy.get("a").send::<u8>().await.unwrap_err();
    assert_eq!(error.throttled(), Some(Duration::from_secs(60)));
    assert_eq!(asked(&script), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_say_what_is_known() {
    let failing = |answer: Answer| async {
        let (client, _) = client([answer]);
        client.post("a").send::<u8>().await.unwrap_err()
    };
    let refused = failing(Ok((400, "no such zone"))).await;
    assert_eq!(
        refused.to_string(),
        "api.example answered 400 Bad Request: no such zone"
    );
    assert!(refused.is_definite());
    let malformed = failing(Ok((200, "<html>"))).await;
    assert!(!malformed.is_definite(), "{malformed}");
    let long = failing(Ok((400, Box::leak("é".repeat(1000).into_boxed_str())))).await;
    assert!(long.to_string().ends_with("é…"), "{long}");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_headers_of_its_own() {
    let (client, script) = client([Ok((200, "1")), Ok((200, "1"))]);
    let name = || HeaderName::from_static("idempotency-key");
    let content_type = http::header::CONTENT_TYPE;
    let own = client.post("a").json(&json!({})).header(name(), "k1");
    let own = own.header(content_type.clone(), "application/x-json");
    own.send::<Value>().await.unwrap();
    client.post("a").json(&json!({})).send::<Value>().await.unwrap();
    let sent = script.headers.lock().unwrap().clone();
    assert_eq!(sent[0][name()], "k1");
    assert_eq!(sent[0][content_type.clone()], "application/x-json");
    assert!(!sent[1].contains_key(name()));
    assert_eq!(sent[1][content_type], "application/json");
    let bad = client
        .get("a")
        .header(name(), "a\nb")
        .send::<Value>()
        .await
        .unwrap_err();
    assert!(bad.is_definite(), "{bad}");
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_shown() {
    let (client, _) = client([Ok((200, "1"))]);
    let name = HeaderName::from_static("x-api-key");
    let client = client.with_secret_header(name.clone(), "canary").unwrap();
    assert!(!format!("{client:?}").contains("canary"));
    assert!(client.clone().with_secret_header(name, "a\nb").is_err());
    assert!(!format!("{:?}", client.get("a").query("token", "1")).contains("canary"));
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_than_allowed_are_under_way() {
    let script = Arc::new(Script::default());
    let base = Url::parse("http://api.example").unwrap();
    let limits = ApiLimits {
        parallel: 2,
        ..ApiLimits::default()
    };
    let client = ApiClient::new(script.clone(), base, limits);
    let (a, b, c) = (client.post("a"), client.post("b"), client.post("c"));
    let all = async { tokio::join!(a.send_raw(), b.send_raw(), c.send_raw()) };
    tokio::time::timeout(Duration::from_secs(1), all)
        .await
        .unwrap_err();
    assert_eq!(asked(&script), 2);
}
