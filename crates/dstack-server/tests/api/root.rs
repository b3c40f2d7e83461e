//! `/`: where somebody arrives who only knows the server's address.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::Server;

async fn root(server: &Server, accept: Option<&str>) -> (String, String) {
    let mut request = Request::builder().uri("/");
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    let response = server
        .router
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (kind, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn browsers_get_a_page_and_programs_are_told_where_the_api_is_described() {
    let server = Server::new().await;
    let (kind, page) = root(&server, Some("text/html,application/xhtml+xml,*/*;q=0.8")).await;
    assert_eq!(kind, "text/html; charset=utf-8");
    assert!(
        page.contains("href=\"/api/docs\"") && page.contains("dstack apply"),
        "{page}"
    );
    for accept in [None, Some("*/*"), Some("application/json")] {
        let (kind, body) = root(&server, accept).await;
        assert_eq!(kind, "application/json");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&body["docs"], &body["openapi"]),
            (&"/api/docs".into(), &"/openapi.json".into())
        );
    }
}
