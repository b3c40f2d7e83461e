//! What `dstack` is made of: for the program itself, and for test servers with doubles in place of clouds.

mod backend_check;
mod backends;
mod collectors;
mod local_machine;
mod logging;
mod prompts;
mod protected_paths;
mod server;

pub use backend_check::check_backend;
pub use collectors::register_collectors;
pub use prompts::{RENDER_PROMPT, render_prompt};
pub use server::server;
