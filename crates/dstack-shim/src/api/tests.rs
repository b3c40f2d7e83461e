use super::*;

#[test]
fn routes() {
    assert_eq!(route(&Method::GET, "/api/tasks/1"), Ok(Route::Task("1".into())));
    assert_eq!(route(&Method::HEAD, "/api/healthcheck"), Ok(Route::Healthcheck));
    assert_eq!(
        route(&Method::POST, "/api/tasks/1/remove"),
        Ok(Route::Remove("1".into()))
    );
    assert_eq!(
        route(&Method::GET, "/metrics/tasks/1"),
        Ok(Route::Metrics("1".into()))
    );
    assert_eq!(route(&Method::GET, "/api/tasks/1/remove"), Err("POST"));
    assert_eq!(route(&Method::DELETE, "/api/tasks"), Err("GET, HEAD, POST"));
    for path in ["/", "/api", "/api/tasks/", "/api/tasks/1/2/3", "/api/submit"] {
        assert_eq!(route(&Method::GET, path), Err(""), "{path}");
    }
}
