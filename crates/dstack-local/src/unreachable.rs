//! Machines on which other servers run: their agents listen only there.

use std::io;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, Wire};

/// Connects to nothing, and says why.
#[derive(Debug, Clone)]
pub(crate) struct UnreachableConnector {
    /// Host of the agent, which the error names.
    pub(crate) host: String,
}

#[async_trait]
impl Connector for UnreachableConnector {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let host = &self.host;
        Err(io::Error::new(
            io::ErrorKind::NotConnected,
            format!("only the server {host} reaches this machine, and it does not run: start it again"),
        ))
    }
}
