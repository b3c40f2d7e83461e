//! Agents that are known to be out of reach.

use std::io;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, Wire};

/// Connects to nothing, and says why.
#[derive(Debug, Clone)]
pub struct UnreachableConnector {
    /// What the error says.
    pub reason: String,
}

#[async_trait]
impl Connector for UnreachableConnector {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        Err(io::Error::new(io::ErrorKind::NotConnected, self.reason.clone()))
    }
}
