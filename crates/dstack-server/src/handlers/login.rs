//! Single sign-on.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use dstack_api::{Nothing, routes};
use dstack_model::requests::{
    OAuthAuthorizeRequest, OAuthAuthorizeResponse, OAuthCallbackRequest, OAuthGetNextRedirectRequest,
    OAuthGetNextRedirectResponse, OAuthProviderInfo,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::Arc;
use url::Url;

use crate::api::{Api, Call, shown};
use crate::error::{ApiError, Result};
use crate::login::config::is_secure;
use crate::login::{Provider, attempt};
use crate::render;

/// What whoever began a login keeps (dstack 0.22.5 has the same name).
const COOKIE: &str = "oauth-state";

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::AuthListProviders, _, _>(list_providers)
        .on::<routes::AuthGetNextRedirect, _, _>(get_next_redirect)
        .on_raw::<routes::AuthAuthorize, _, _>(authorize)
        .on_raw::<routes::AuthCallback, _, _>(callback)
}

async fn list_providers(call: Call, _: Nothing) -> Result<Vec<OAuthProviderInfo>> {
    let names = call.state.auth.logins.names().into_iter();
    Ok(names
        .map(|name| OAuthProviderInfo {
            name: name.to_owned(),
            enabled: true,
        })
        .collect())
}

async fn get_next_redirect(
    _: Call,
    request: OAuthGetNextRedirectRequest,
) -> Result<OAuthGetNextRedirectResponse> {
    let state =
        attempt::decode_state(&request.state).ok_or_else(|| ApiError::client("Invalid state token"))?;
    let escape = |text: &str| utf8_percent_encode(text, FORM).to_string().replace("%20", "+");
    let redirect_url = state.local_port.map(|port| {
        format!(
            "http://localhost:{port}/auth/callback?code={}&state={}",
            escape(&request.code),
            escape(&request.state)
        )
    });
    Ok(OAuthGetNextRedirectResponse { redirect_url })
}

/// What Python's `urlencode` leaves as it is.
const FORM: &percent_encoding::AsciiSet = &NON_ALPHANUMERIC
    .remove(b'_')
    .remove(b'.')
    .remove(b'-')
    .remove(b'~');

/// The provider of the path.
fn provider(call: &Call) -> Result<Arc<Provider>> {
    let name = call.param("provider");
    call.state.auth.logins.get(name).ok_or_else(|| {
        let all = call.state.auth.logins.names().join(", ");
        let hint = match all.is_empty() {
            true => "None is".to_owned(),
            false => format!("Available: {all}"),
        };
        ApiError::client(format!(
            "Login provider {name} is not configured on this server. {hint}"
        ))
    })
}

async fn authorize(call: Call, request: OAuthAuthorizeRequest) -> Result<Response<Body>> {
    let provider = provider(&call)?;
    let server = call.state.edge.settings.server_url();
    let base = match &request.base_url {
        Some(url) => origin(url, &server)?,
        None => server.trim_end_matches('/').to_owned(),
    };
    let redirect_url = format!("{base}/auth/{}/callback", provider.name);
    let (attempt, browser) =
        attempt::begin(&call.state.data, &provider, redirect_url, request.local_port).await?;
    let authorization_url = call
        .state
        .auth
        .logins
        .authorization_url(&provider, &attempt)
        .await?;
    let answer = shown(&OAuthAuthorizeResponse { authorization_url }, &call.version)?;
    Ok(with_cookie(
        answer,
        &browser,
        attempt::LIFETIME.as_secs(),
        &server,
    ))
}

/// The address by which a browser knows this server; providers take only those that are registered with them.
fn origin(text: &str, server: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    let refused = || {
        ApiError::client("base_url must be the address of this server, such as https://dstack.example.com")
    };
    if text == server.trim_end_matches('/') {
        return Ok(text.to_owned());
    }
    let url = Url::parse(text).map_err(|_| refused())?;
    match is_secure(&url) && url.origin().ascii_serialization() == text {
        true => Ok(text.to_owned()),
        false => Err(refused()),
    }
}

async fn callback(call: Call, request: OAuthCallbackRequest) -> Result<Response<Body>> {
    let (state, provider) = (&call.state, provider(&call)?);
    let attempt = attempt::finish(&state.data, &provider, &request.state, call.cookie(COOKIE)).await?;
    let now = state.data.clock.now();
    let person = state
        .auth
        .logins
        .identify(&provider, &attempt, request.code, now)
        .await?;
    if let Some(refusal) = provider.policy.refusal(&person) {
        return Err(ApiError::client(refusal));
    }
    let verbs = &state.control.verbs.logins;
    let user = verbs.log_in(&provider.login_policy(), &person.proven()).await?;
    let answer = shown(
        &render::users::with_creds(&state.data, &state.auth, &user).await?,
        &call.version,
    )?;
    Ok(with_cookie(answer, "", 0, &state.edge.settings.server_url()))
}

fn with_cookie(mut answer: Response<Body>, value: &str, seconds: u64, server: &str) -> Response<Body> {
    let secure = if server.starts_with("https://") {
        "; Secure"
    } else {
        ""
    };
    // Without a path it is for what is beside this route (RFC 6265, 5.1.4), wherever a proxy has put the server.
    let cookie = format!("{COOKIE}={value}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    let no_store = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(header::CACHE_CONTROL, no_store);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_may_know_the_server_by_another_name() {
        let origin = |text| origin(text, "http://10.0.0.5:3000").ok();
        for good in [
            "https://dstack.example.com",
            "http://localhost:3000",
            "http://10.0.0.5:3000",
        ] {
            assert_eq!(origin(good).as_deref(), Some(good));
        }
        assert_eq!(origin("https://a.example/").as_deref(), Some("https://a.example"));
        for bad in [
            "http://a.example",
            "https://a@b.example",
            "https://a.example/x",
            "https://a.example?x",
            "a",
            "",
        ] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }
}
