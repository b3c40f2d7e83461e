//! The engine's ends in this server: its output goes to the log store, its inputs come from the database, and the
//! API reaches it through [`dstack_control::EngineHandle`]. Agents are reached over a socket or over SSH.

mod agent_tokens;
mod agents;
mod gateways;
mod handle;
mod hosts;
mod inputs;
mod keyring;
mod output;
mod service_port;
mod slots;

pub use agent_tokens::AgentTokens;
pub use agents::{ConnectedAgents, Machine};
pub use gateways::GatewayHosts;
pub(crate) use gateways::NoWay;
pub use handle::Connected;
pub use hosts::SshHosts;
pub use inputs::SqlInputs;
pub use keyring::DatabaseKeyring;
pub use output::LogOutput;
