//! Serves the API without an engine: nothing changes state but the requests.
//!
//! `DSTACK_SERVER_DIR=/tmp/x DSTACK_SERVER_PORT=3001 cargo run -p dstack-server --example api_only`

use dstack_server::{ServerError, ServerOptions, serve};

#[tokio::main]
async fn main() -> Result<(), ServerError> {
    serve(ServerOptions {
        home: None,
        ..ServerOptions::from_env()
    })
    .await
}
