//! A part of the screen that is redrawn in place.

use std::sync::Arc;
use std::time::Duration;

use dstack_system::{Locked, task};
use tokio::task::JoinHandle;

use super::style::Role;
use super::table::Table;
use super::text::Text;
use super::{Style, Ui};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const FRAME_TIME: Duration = Duration::from_millis(80);

struct Area {
    ui: Ui,
    status: Option<Text>,
    body: Vec<Text>,
    frame: usize,
    drawn: usize,
    ended: bool,
}

impl Area {
    /// Moves to the start of what was drawn and clears it.
    fn erase(&mut self) -> String {
        let up = std::mem::take(&mut self.drawn);
        if up == 0 {
            "\r\x1b[J".to_owned()
        } else {
            format!("\r\x1b[{up}A\x1b[J")
        }
    }

    fn draw(&mut self) {
        // The ticker may have waited for its turn while the area was cleared for good.
        if self.ended {
            return;
        }
        let mut text = self.erase();
        let width = self.ui.width();
        let spinner = self.status.as_ref().map(|status| {
            let frame = FRAMES.get(self.frame % FRAMES.len()).copied().unwrap_or_default();
            Text::styled(frame, Style::of(Role::Success))
                .push(" ")
                .append(status.clone())
        });
        for line in spinner.iter().chain(&self.body).flat_map(Text::lines) {
            // A line that the terminal wraps would be counted wrongly when the area is cleared.
            text.push_str(&self.ui.terminal.out.styled(&line.ellipsis(width)));
            text.push('\n');
            self.drawn += 1;
        }
        self.ui.terminal.out.write(text.as_bytes());
    }
}

/// Draws until it is dropped.
pub struct Live {
    area: Arc<Locked<Area>>,
    ticker: Option<JoinHandle<Option<()>>>,
    keep: bool,
    draws: bool,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("draws", &self.draws)
            .finish_non_exhaustive()
    }
}

impl Live {
    pub(super) fn spinner(ui: Ui, status: Text) -> Self {
        let mut live = Self::new(ui, Some(status), false);
        if live.draws {
            let area = live.area.clone();
            live.ticker = Some(task::spawn("spinner", async move {
                loop {
                    {
                        let mut area = area.lock();
                        area.frame += 1;
                        area.draw();
                    }
                    tokio::time::sleep(FRAME_TIME).await;
                }
            }));
        }
        live
    }

    pub(super) fn watch(ui: Ui) -> Self {
        Self::new(ui, None, true)
    }

    fn new(ui: Ui, status: Option<Text>, keep: bool) -> Self {
        let draws = ui.is_interactive();
        if draws {
            // Whoever ends the command is to see the cursor again.
            crate::interrupt::watch();
            ui.raw(b"\x1b[?25l");
        }
        let area = Area {
            ui,
            status,
            body: Vec::new(),
            frame: 0,
            drawn: 0,
            ended: false,
        };
        Self {
            area: Arc::new(Locked::new(area)),
            ticker: None,
            keep,
            draws,
        }
    }

    /// Changes the text beside the spinner.
    pub fn status(&self, status: impl Into<Text>) {
        self.area.lock().status = Some(status.into());
    }

    /// Changes what stands below.
    pub fn body(&self, table: &Table, below: &[Text]) {
        let mut area = self.area.lock();
        let mut lines = table.render(area.ui.width());
        lines.extend_from_slice(below);
        let changed = area.body != lines;
        area.body = lines;
        if self.draws {
            area.draw();
        } else if self.keep && changed {
            // Not a terminal: every new state is appended.
            area.ui.terminal.out.lines(&area.body);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(ticker) = self.ticker.take() {
            ticker.abort();
        }
        if !self.draws {
            return;
        }
        let mut area = self.area.lock();
        area.ended = true;
        let mut text = if self.keep { String::new() } else { area.erase() };
        text.push_str("\x1b[?25h");
        area.ui.raw(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinner_that_was_taken_away_is_not_drawn_once_more() {
        let (ui, captured) = Ui::captured(80, "");
        let mut area = Area {
            ui,
            status: Some("Stopping...".into()),
            body: Vec::new(),
            frame: 0,
            drawn: 0,
            ended: false,
        };
        area.draw();
        let drawn = captured.out();
        assert!(drawn.contains("Stopping..."), "{drawn}");
        area.ended = true;
        area.draw();
        assert_eq!(captured.out(), drawn);
    }
}
