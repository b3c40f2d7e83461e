//! Prompts of chat templates are made in processes of their own: the program of the gateway, called so.

use std::ffi::OsString;
use std::io;

use dstack_proxy::models::{Renderer, render_from_stdin};

/// The arguments of such a process.
pub const RENDER_PROMPT: [&str; 2] = ["gateway", "--render-prompt"];

/// What makes them.
pub(crate) fn renderer() -> Renderer {
    // Where the program cannot be found, chats of format `tgi` are answered with an error.
    let program = std::env::current_exe().unwrap_or_default();
    Renderer::new(program, RENDER_PROMPT.map(OsString::from))
}

/// Makes one prompt of what stands in the standard input.
///
/// # Errors
/// The input is not of a gateway, or nobody reads the output.
pub fn render_prompt() -> io::Result<()> {
    render_from_stdin()
}
