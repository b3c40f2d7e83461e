//! The shapes of refusals (dstack 0.22.5's recorded answers).

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::{ADMIN, Server, request};

#[tokio::test]
async fn bodies_that_are_not_valid() {
    let server = Server::new().await;
    let get_user = "/api/users/get_user";
    let answer = server
        .post(ADMIN, get_user, json!({"username": "admin", "extra": 1}))
        .await;
    assert_eq!(answer.status, 422);
    assert_eq!(
        answer.body,
        json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "extra"], "msg": "Extra inputs are not permitted", "input": 1}]})
    );
    let answer = server.post(ADMIN, get_user, json!({})).await;
    assert_eq!(
        answer.body,
        json!({"detail": [{"type": "missing", "loc": ["body", "username"], "msg": "Field required", "input": {}}]})
    );
    let answer = server.send(request("POST", get_user, Some(ADMIN), None)).await;
    assert_eq!(
        answer.body,
        json!({"detail": [{"type": "missing", "loc": ["body"], "msg": "Field required", "input": null}]})
    );
    // Numbers become texts; there is no such user.
    assert_eq!(
        server
            .post(ADMIN, get_user, json!({"username": 12}))
            .await
            .refused()
            .1,
        Some("resource_not_exists")
    );
}

#[tokio::test]
async fn a_body_needs_a_json_media_type() {
    let server = Server::new().await;
    let send = |kind: Option<&'static str>, text: &'static str| {
        let mut builder =
            Request::post("/api/project/main/runs/get").header("authorization", format!("bearer {ADMIN}"));
        if let Some(kind) = kind {
            builder = builder.header("content-type", kind);
        }
        server.send(builder.body(Body::from(text)).unwrap())
    };
    let answer = send(None, r#"{"run_name": "x"}"#).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.body["detail"][0]["type"], "model_attributes_type");
    assert_eq!(answer.body["detail"][0]["loc"], json!(["body"]));
    for kind in ["application/json; charset=utf-8", "application/merge-patch+json"] {
        assert_eq!(
            send(Some(kind), r#"{"run_name": "x"}"#).await.refused().0,
            "Run not found",
            "{kind}"
        );
    }
    let answer = send(Some("application/json"), r#"{"run_name": "#).await;
    assert_eq!(answer.body["detail"][0]["type"], "json_invalid");
    assert_eq!(answer.body["detail"][0]["loc"], json!(["body", 13]));
}

#[tokio::test]
async fn unknown_paths_and_methods() {
    let server = Server::new().await;
    let answer = server
        .send(request("GET", "/api/users/get_my_user", Some(ADMIN), None))
        .await;
    assert_eq!(
        (answer.status, answer.body),
        (404, json!({"detail": "Not Found"}))
    );
    for (method, path) in [
        ("POST", "/api/server/nope"),
        ("PUT", "/api/users/get_my_user"),
        ("POST", "/api/server/get_info/"),
    ] {
        let answer = server.send(request(method, path, Some(ADMIN), None)).await;
        assert_eq!(
            (answer.status, &answer.body),
            (405, &json!({"detail": "Method Not Allowed"})),
            "{method} {path}"
        );
        assert_eq!(answer.headers["allow"], "GET, HEAD");
    }
}

#[tokio::test]
async fn the_project_comes_before_the_body_and_the_token_before_the_project() {
    let server = Server::new().await;
    let answer = server
        .post(ADMIN, "/api/project/nope/runs/get", json!({"bad": 1}))
        .await;
    assert_eq!(
        (answer.status, answer.body),
        (404, json!({"detail": {"msg": "Not found", "code": null}}))
    );
    let answer = server
        .post("wrong", "/api/project/nope/runs/get", json!({}))
        .await;
    assert_eq!(
        (answer.status, answer.body),
        (403, json!({"detail": {"msg": "Invalid token", "code": null}}))
    );
    let answer = server
        .post(ADMIN, "/api/project/MAIN/runs/get", json!({"run_name": "x"}))
        .await;
    assert_eq!(answer.refused().0, "Run not found");
}

#[tokio::test]
async fn versions_of_clients() {
    let server = Server::new().await;
    let send = |version: &'static str| {
        server.send(
            Request::post("/api/server/get_info")
                .header("x-api-version", version)
                .body(Body::empty())
                .unwrap(),
        )
    };
    assert_eq!(send("0.22.9").await.ok(), json!({"server_version": "0.22.5"}));
    let answer = send("0.23.0").await;
    assert_eq!(
        answer.refused(),
        (
            "The client/CLI version (0.23.0) is incompatible with the server version (0.22.5).",
            Some("error")
        )
    );
    assert_eq!(send("newest").await.refused(), ("Invalid version: newest", None));
    // On every route there is, and on none that there is not.
    let get = async |path: &str, version: &str| {
        let mut asked = request("GET", path, None, None);
        asked
            .headers_mut()
            .insert("x-api-version", version.parse().unwrap());
        server.send(asked).await
    };
    for path in [
        "/healthcheck",
        "/metrics",
        "/proxy/services/main/web/",
        "/proxy/models/main/models",
        "/api/docs",
    ] {
        assert_eq!(
            get(path, "newest").await.refused().0,
            "Invalid version: newest",
            "{path}"
        );
        assert_ne!(get(path, "9.0.0").await.status, 400, "{path}");
    }
    assert_eq!(get("/api/nothing", "newest").await.status, 404);
}
