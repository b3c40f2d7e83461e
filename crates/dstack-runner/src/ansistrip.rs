//! Terminal output as plain log text: a small screen model keeps what a person would have seen last.
//!
//! Reference: the job log filter of dstack 0.22.5's runner. Colours vanish, CRLF becomes LF, a progress bar redrawn with
//! `\r` or cursor movements collapses to its last state. Three differences: blank lines are kept, tabs are kept, and finished
//! lines are handed on at once, not after half a second, unless the output moves the cursor up.

mod parser;
mod screen;

use std::time::Duration;

use tokio::time::Instant;

use parser::{Action, Parser};
use screen::Screen;

/// One piece of log is at most so long.
pub const MAX_CHUNK_BYTES: usize = 32 * 1024;
/// Finished lines wait so long for company.
const GATHER: Duration = Duration::from_millis(25);
/// After the cursor moved up, finished lines wait until it has rested so long.
const REST: Duration = Duration::from_millis(500);
/// But never longer than this.
const MAX_DELAY: Duration = Duration::from_secs(3);

/// The filter of one output.
#[derive(Debug)]
pub struct Filter {
    parser: Parser,
    screen: Screen,
    // When the oldest finished line was finished.
    pending_since: Option<Instant>,
    moved_up: Option<Instant>,
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

impl Filter {
    /// An empty screen.
    pub fn new() -> Self {
        Self {
            parser: Parser::default(),
            screen: Screen::default(),
            pending_since: None,
            moved_up: None,
        }
    }

    /// Takes terminal output; hands finished text, at most [`MAX_CHUNK_BYTES`] a piece, to `emit`.
    pub fn write(&mut self, bytes: &[u8], now: Instant, mut emit: impl FnMut(&[u8])) {
        let Self {
            parser,
            screen,
            moved_up,
            ..
        } = self;
        parser.feed(bytes, |action| {
            if let Action::Move(movement) = &action
                && movement.may_go_up()
            {
                *moved_up = Some(now);
            }
            screen.apply(&action);
            if screen.len() > MAX_CHUNK_BYTES {
                screen.flush_to_limit(MAX_CHUNK_BYTES, &mut emit);
            }
        });
        if self.screen.has_finished() {
            self.pending_since.get_or_insert(now);
        } else {
            self.pending_since = None;
        }
        self.flush_due(now, emit);
    }

    /// When [`Self::flush_due`] has something to do without more output.
    pub fn deadline(&self) -> Option<Instant> {
        let since = self.pending_since?;
        let gathered = since + GATHER;
        // Output that moves up rewrites lines: while it goes on, what is above the cursor is not final.
        let rested = self
            .moved_up
            .map_or(gathered, |moved| (moved + REST).max(gathered));
        Some(rested.min(since + MAX_DELAY))
    }

    /// Hands on finished lines whose time has come.
    pub fn flush_due(&mut self, now: Instant, emit: impl FnMut(&[u8])) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.screen.flush_finished(MAX_CHUNK_BYTES, emit);
            self.pending_since = None;
        }
    }

    /// The output is over: hands on everything, also a last line without an end.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        let Self { parser, screen, .. } = self;
        parser.finish(|action| screen.apply(&action));
        self.screen.flush_all(MAX_CHUNK_BYTES, &mut emit);
        self.pending_since = None;
    }
}

#[cfg(test)]
mod tests;
