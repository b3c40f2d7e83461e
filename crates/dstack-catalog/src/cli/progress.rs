//! Progress of a collection on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Progress;

/// Steps and warnings as lines above a bar that shows the download; nothing but the lines without a terminal.
pub(super) struct TerminalProgress {
    bar: ProgressBar,
    plain: bool,
}

impl TerminalProgress {
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr();
        let plain = target.is_hidden();
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) =
            ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, plain }
    }

    fn line(&self, text: &str) {
        if self.plain {
            // A closed stderr is no reason to stop collecting.
            drop(std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("{text}\n"),
            ));
        } else {
            self.bar.println(text);
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for TerminalProgress {
    fn step(&self, what: &str) {
        self.line(what);
    }

    fn bytes(&self, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    fn warn(&self, what: &str) {
        self.line(&format!("warning: {what}"));
    }
}
