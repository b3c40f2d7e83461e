//! Server info, health, logins.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_api::responses::ServerStatus;
use dstack_api::{Nothing, VERSION, routes};
use dstack_model::decode::decode_strict;
use dstack_model::requests::{
    OAuthGetNextRedirectRequest, OAuthGetNextRedirectResponse, OAuthProviderInfo, OAuthState, ServerInfo,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ServerGetInfo, _, _>(get_info)
        .on::<routes::Healthcheck, _, _>(healthcheck)
        .on::<routes::AuthListProviders, _, _>(list_providers)
        .on::<routes::AuthGetNextRedirect, _, _>(get_next_redirect)
}

async fn get_info(_: Call, _: Nothing) -> Result<ServerInfo> {
    Ok(ServerInfo {
        server_version: Some(VERSION.to_owned()),
    })
}

async fn healthcheck(_: Call, _: Nothing) -> Result<ServerStatus> {
    Ok(ServerStatus {
        status: "running".to_owned(),
    })
}

async fn list_providers(_: Call, _: Nothing) -> Result<Vec<OAuthProviderInfo>> {
    Ok(Vec::new())
}

async fn get_next_redirect(
    _: Call,
    request: OAuthGetNextRedirectRequest,
) -> Result<OAuthGetNextRedirectResponse> {
    let state = STANDARD
        .decode(&request.state)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .and_then(|value| decode_strict::<OAuthState>(&value).ok())
        .ok_or_else(|| ApiError::client("Invalid state token"))?;
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
