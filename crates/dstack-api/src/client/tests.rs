use http::StatusCode;

use super::*;
use crate::error::ErrorCode;

fn answer(status: u16, body: &str) -> ClientError {
    ClientError::from_answer(
        StatusCode::from_u16(status).unwrap(),
        "http://s/api/x".to_owned(),
        body.as_bytes(),
    )
}

#[test]
fn a_refusal_shows_the_servers_words() {
    let error = answer(
        400,
        r#"{"detail":[{"msg":"Run not found","code":"resource_not_exists"}]}"#,
    );
    assert_eq!(error.to_string(), "Run not found");
    assert!(error.is_not_exists());
}

#[test]
fn a_detail_of_another_shape_is_a_general_error() {
    for body in [r#"{"detail":"Filename too long"}"#, "oops", r#"{"detail":[]}"#] {
        assert!(
            matches!(answer(400, body), ClientError::Status { status: 400, .. }),
            "{body}"
        );
    }
    let nocode = answer(400, r#"{"detail":[{"msg":"Invalid version: abc","code":null}]}"#);
    assert_eq!(nocode.code(), Some(ErrorCode::Error));
}

#[test]
fn denied_with_and_without_wrapper() {
    for body in [
        r#"{"detail":{"msg":"Access denied","code":null}}"#,
        r#"{"msg":"Access denied","code":null}"#,
    ] {
        let ClientError::Denied { reason, .. } = answer(403, body) else {
            panic!("{body}")
        };
        assert_eq!(reason.as_deref(), Some("Access denied"));
    }
    let ClientError::Denied { reason, .. } = answer(401, r#"{"detail":"Not authenticated"}"#) else {
        panic!()
    };
    assert_eq!(reason.as_deref(), Some("Not authenticated"));
}

#[test]
fn statuses() {
    assert!(matches!(answer(404, ""), ClientError::NotFound { .. }));
    assert!(matches!(answer(405, ""), ClientError::MethodNotAllowed { .. }));
    assert!(matches!(answer(422, "{}"), ClientError::Validation { .. }));
    assert!(matches!(
        answer(500, "Internal Server Error"),
        ClientError::Status { status: 500, .. }
    ));
}

/// Answers each connection with the next of these.
async fn server(answers: Vec<&'static str>) -> (Client, tokio::task::JoinHandle<usize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test that awaits the task")]
    let served = tokio::spawn(async move {
        let mut served = 0;
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            served += 1;
        }
        served
    });
    (client, served)
}

const INFO: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
                    content-length: 28\r\n\r\n{\"server_version\":\"0.22.5\"}\n";

fn busy(seconds: u32) -> String {
    format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

#[tokio::test]
async fn a_busy_server_is_asked_again_as_it_says() {
    let zero = busy(0).leak();
    let (client, served) = server(vec![zero, zero, INFO]).await;
    let info = client
        .call::<crate::routes::ServerGetInfo>((), &crate::Nothing)
        .await
        .unwrap();
    assert_eq!(info.server_version.as_deref(), Some("0.22.5"));
    assert_eq!(served.await.unwrap(), 3);
}

#[tokio::test]
async fn a_long_wait_is_left_to_the_caller() {
    let (client, served) = server(vec![busy(60).leak()]).await;
    let error = client
        .call::<crate::routes::ServerGetInfo>((), &crate::Nothing)
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Busy { .. }), "{error}");
    assert_eq!(served.await.unwrap(), 1);
}

#[test]
fn nulls_are_left_out_of_queries() {
    let pairs = query_pairs(&serde_json::json!({"run_id": null, "limit": 5, "after": "x"}));
    assert_eq!(
        pairs,
        [
            ("limit".to_owned(), "5".to_owned()),
            ("after".to_owned(), "x".to_owned())
        ]
    );
}
