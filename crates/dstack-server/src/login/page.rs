//! Where providers send the browser: on to the command line that waits for it on this machine, else to the web page.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, Response, StatusCode, Uri, header};
use axum::routing::get;
use url::Url;
use url::form_urlencoded;

use super::attempt::decode_state;
use crate::error::text_response;
use crate::state::AppState;

/// Serves `GET /auth/{provider}/callback`, where providers send browsers back to.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/auth/{provider}/callback", get(came_back))
        .with_state(state)
}

async fn came_back(
    State(state): State<Arc<AppState>>,
    uri: Uri,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let query = query.unwrap_or_default();
    match local_url(&query).and_then(|url| HeaderValue::from_str(url.as_str()).ok()) {
        Some(location) => {
            let mut response = text_response(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "");
            let headers = response.headers_mut();
            headers.insert(header::LOCATION, location);
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        // The page finishes the login that it began.
        None => state.edge.site.page(uri.path()).unwrap_or_else(page),
    }
}

/// The port that the state names, with everything that the provider said: also a refusal, so that nobody waits in vain.
fn local_url(query: &str) -> Option<Url> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let (_, state) = pairs.find(|(name, _)| name == "state")?;
    let port = decode_state(&state)?.local_port?;
    let mut url = Url::parse("http://localhost/auth/callback").ok()?;
    url.set_port(Some(u16::try_from(port).ok()?)).ok()?;
    url.query_pairs_mut()
        .extend_pairs(form_urlencoded::parse(query.as_bytes()));
    Some(url)
}

/// In a build without the web page. Nothing of the request is shown.
fn page() -> Response<Body> {
    let text = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>dstack</title>\
                <h1>This login cannot be finished here</h1>\
                <p>It was not begun by a command line, or its address is damaged. Run <code>dstack login</code>.</p></html>";
    let mut response = text_response(StatusCode::BAD_REQUEST, "text/html; charset=utf-8", text);
    let policy = HeaderValue::from_static("default-src 'none'; base-uri 'none'; frame-ancestors 'none'");
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn state(json: &str) -> String {
        form_urlencoded::byte_serialize(STANDARD.encode(json).as_bytes()).collect()
    }

    #[test]
    fn a_browser_is_sent_to_this_machine_and_nowhere_else() {
        let state = state(r#"{"value": "v", "local_port": 41001}"#);
        let url = local_url(&format!("code=a%20b&state={state}")).unwrap();
        assert_eq!(
            url.as_str(),
            format!("http://localhost:41001/auth/callback?code=a+b&state={state}")
        );
        let refused = local_url(&format!("error=access_denied&state={state}")).unwrap();
        assert!(
            refused.as_str().contains("?error=access_denied&state="),
            "{refused}"
        );
    }

    #[test]
    fn without_a_port_there_is_nowhere_to_go() {
        for json in [
            r#"{"value": "v"}"#,
            r#"{"value": "v", "local_port": 70000}"#,
            "{}",
        ] {
            assert_eq!(
                local_url(&format!("code=c&state={}", state(json))),
                None,
                "{json}"
            );
        }
        assert_eq!(local_url("code=c"), None);
        assert_eq!(local_url("code=c&state=%%%"), None);
    }
}
