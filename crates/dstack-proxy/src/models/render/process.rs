//! The process in which one prompt is made. It is bounded, and does nothing else.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::write;
use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};

use super::Chat;
use super::messages;
use crate::models::template::{PromptError, prompt};

/// What a prompt may take.
const MAX_MEMORY_BYTES: u64 = 1024 * 1024 * 1024;
const MAX_CPU_SECONDS: u64 = 5;
/// Of priorities, and for the kernel where memory is short.
const LEAST_IMPORTANT: i32 = 19;
const FIRST_TO_END: &[u8] = b"1000";

/// The other side of [`Renderer`](super::Renderer): makes one prompt of what stands in the standard input. The process is bounded
/// from now on, and does nothing else.
///
/// # Errors
/// The input is not of a `Renderer`, or nobody reads the output.
pub fn render_from_stdin() -> io::Result<()> {
    render_within(MAX_MEMORY_BYTES)
}

/// With so much memory, in bytes.
pub(super) fn render_within(memory: u64) -> io::Result<()> {
    step_back();
    limit(Resource::As, memory)?;
    limit(Resource::Cpu, MAX_CPU_SECONDS)?;
    limit(Resource::Core, 0)?;
    let mut job = Vec::new();
    io::stdin().lock().read_to_end(&mut job)?;
    let chat: Chat<'_> = serde_json::from_slice(&job)?;
    // Some of what is too much is a panic.
    let rendered = catch_unwind(AssertUnwindSafe(|| made_of(&chat)));
    let rendered = rendered.unwrap_or(Err(PromptError::TooMuch));
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(&rendered)?)?;
    output.flush()
}

fn made_of(chat: &Chat<'_>) -> Result<String, PromptError> {
    let messages = messages::read(chat.messages)?;
    prompt(&chat.template, &chat.eos_token, &messages)
}

/// Whatever else runs goes first; and where memory is short, this process is the one that ends. One that may not is as important
/// as others.
fn step_back() {
    nice(LEAST_IMPORTANT).ok();
    let victim = open(
        "/proc/self/oom_score_adj",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    if let Ok(victim) = victim {
        write(victim, FIRST_TO_END).ok();
    }
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource)
        .maximum
        .map_or(most, |maximum| maximum.min(most));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}
