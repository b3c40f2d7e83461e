//! A replica that is not there, for tests.

use std::io;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, Wire};

/// Nothing listens.
#[derive(Debug)]
pub(crate) struct Nowhere;

#[async_trait]
impl Connector for Nowhere {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}
