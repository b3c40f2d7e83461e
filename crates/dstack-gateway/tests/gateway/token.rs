//! A gateway with a token takes calls only that are signed with it, as our servers do.

use std::sync::Arc;

use dstack_agent_api::gateway::{AcmeSettings, Registered};
use dstack_agent_api::gateway_client::GatewayClient;
use dstack_agent_api::http::{CallError, TcpConnector};
use serde_json::json;

use crate::support::Setup;

fn client(setup: &Setup, token: &str) -> GatewayClient {
    let address = setup.gateway.addresses().api;
    GatewayClient::new(Arc::new(TcpConnector { address }), token.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_has_the_token_calls_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let setup = Setup::start_with(|settings| settings.api_token = Some(file)).await;
    let own = client(&setup, "s3cret");
    assert_eq!(own.health().await.unwrap().services, 0);
    own.configure(&AcmeSettings::default()).await.unwrap();
    assert_eq!(own.registered().await.unwrap(), Registered::default());
    let refused = own.unregister_service("main", "web").await.unwrap_err();
    assert_eq!(
        refused.status().map(|status| status.as_u16()),
        Some(400),
        "{refused}"
    );

    let others = client(&setup, "other").health().await;
    assert!(matches!(others, Err(CallError::Unproven { .. })), "{others:?}");
    for path in ["/", "/api/services/list", "/api/stats/collect"] {
        assert_eq!(setup.get(path).await.0, 401, "{path}");
    }
    let register = "/api/registry/main/services/register";
    assert_eq!(setup.post(register, &json!({})).await.0, 401);
}
