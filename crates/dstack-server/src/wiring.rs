//! The engine's ends in this server: its output goes to the log store, its inputs come from the database, and the
//! API reaches it through [`dstack_control::EngineHandle`].

mod handle;
mod inputs;
mod output;
mod runner_tokens;

pub use handle::Connected;
pub use inputs::SqlInputs;
pub use output::LogOutput;
pub use runner_tokens::RunnerTokens;
