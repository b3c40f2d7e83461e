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
