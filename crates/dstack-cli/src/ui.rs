//! The terminal. Everything this crate prints or asks goes through here.
//!
//! Data and messages go to standard output, errors with their hints to standard error. Colours are dropped when the
//! stream is not a terminal or `NO_COLOR` is set.

pub mod live;
pub mod prompt;
pub mod spark;
pub mod style;
pub mod table;
pub mod text;

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

pub use live::Live;
pub use style::{Role, Style};
pub use table::{Column, Table};
pub use text::Text;

use dstack_system::{Locked, env};

/// Width when nothing says how wide the terminal is.
const DEFAULT_WIDTH: usize = 80;
/// Wider than any table.
const UNCUT_WIDTH: usize = 10_000;
/// Up to this width, tables of runs and offers are stretched to the full width.
const EXPAND_WIDTH: usize = 110;

struct Stream {
    writer: Locked<Box<dyn Write + Send>>,
    color: bool,
}

impl Stream {
    fn write(&self, bytes: &[u8]) {
        let mut writer = self.writer.lock();
        // A closed pipe (`dstack ps | head`) is no error of ours, and there is nowhere to report it.
        let _ = writer.write_all(bytes).and_then(|()| writer.flush());
    }

    fn lines(&self, lines: &[Text]) {
        let rendered: String = lines.iter().map(|line| self.styled(line) + "\n").collect();
        self.write(rendered.as_bytes());
    }

    fn styled(&self, text: &Text) -> String {
        if !self.color {
            return text.plain();
        }
        text.spans()
            .iter()
            .map(|span| {
                let style = span.style.ansi();
                format!("{style}{}{style:#}", span.text)
            })
            .collect()
    }
}

struct Terminal {
    out: Stream,
    err: Stream,
    input: Locked<Box<dyn BufRead + Send>>,
    interactive: bool,
    asks: bool,
    columns: Option<usize>,
}

/// The terminal of this process. Cheap to clone.
#[derive(Clone)]
pub struct Ui {
    terminal: Arc<Terminal>,
}

impl std::fmt::Debug for Ui {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ui")
            .field("interactive", &self.terminal.interactive)
            .finish_non_exhaustive()
    }
}

impl Ui {
    /// Standard input, output and error.
    pub fn system() -> Self {
        let plain = env::flag("NO_COLOR") || env::var("TERM").as_deref() == Some("dumb");
        let stream = |writer: Box<dyn Write + Send>, tty: bool| Stream {
            writer: Locked::new(writer),
            color: tty && !plain,
        };
        let interactive = io::stdout().is_terminal();
        Self {
            terminal: Arc::new(Terminal {
                out: stream(Box::new(io::stdout()), interactive),
                err: stream(Box::new(io::stderr()), io::stderr().is_terminal()),
                input: Locked::new(Box::new(io::BufReader::new(io::stdin()))),
                interactive,
                asks: io::stdin().is_terminal(),
                columns: env::var("COLUMNS")
                    .and_then(|text| text.parse().ok())
                    .filter(|columns| *columns > 0),
            }),
        }
    }

    /// For tests: writes into memory without colours, `columns` wide, answers prompts from `input`.
    pub fn captured(columns: usize, input: &str) -> (Self, Captured) {
        let captured = Captured::default();
        let stream = |sink: &Sink| Stream {
            writer: Locked::new(Box::new(sink.clone())),
            color: false,
        };
        let terminal = Terminal {
            out: stream(&captured.out),
            err: stream(&captured.err),
            input: Locked::new(Box::new(io::Cursor::new(input.to_owned().into_bytes()))),
            interactive: false,
            asks: false,
            columns: Some(columns),
        };
        (
            Self {
                terminal: Arc::new(terminal),
            },
            captured,
        )
    }

    /// Whether standard output is a terminal.
    pub fn is_interactive(&self) -> bool {
        self.terminal.interactive
    }

    /// Whether standard input is a terminal.
    pub fn can_ask(&self) -> bool {
        self.terminal.asks
    }

    /// Width for laying out text.
    pub fn width(&self) -> usize {
        let unknown = match self.terminal.interactive {
            true => DEFAULT_WIDTH,
            // For programs, and files: nothing is cut.
            false => UNCUT_WIDTH,
        };
        self.known_width().unwrap_or(unknown)
    }

    /// Whether tables of runs and offers are stretched to the full width.
    pub fn expands(&self) -> bool {
        self.known_width().is_some_and(|width| width <= EXPAND_WIDTH)
    }

    fn known_width(&self) -> Option<usize> {
        if self.terminal.columns.is_some() {
            return self.terminal.columns;
        }
        if !self.terminal.interactive {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// Prints text and a line end.
    pub fn say(&self, text: impl Into<Text>) {
        self.terminal.out.lines(&[text.into()]);
    }

    /// Prints text and a line end. On a terminal, what does not fit into a line goes on below what follows the first
    /// `indent` characters; for programs it stays one line.
    pub fn say_hanging(&self, text: &Text, indent: usize) {
        let out = &self.terminal.out;
        match self.terminal.interactive {
            true => out.lines(&table::wrap::hanging(text, indent, self.width())),
            false => out.lines(std::slice::from_ref(text)),
        }
    }

    /// Prints an empty line.
    pub fn blank(&self) {
        self.say("");
    }

    /// Prints a table.
    pub fn table(&self, table: &Table) {
        self.terminal.out.lines(&table.render(self.width()));
    }

    /// Prints text and a line end to standard error.
    pub fn complain(&self, text: impl Into<Text>) {
        self.terminal.err.lines(&[text.into()]);
    }

    /// Writes a text to standard error as it is: the coloured one to a terminal that takes colours.
    pub fn complain_raw(&self, colored: &str, plain: &str) {
        let err = &self.terminal.err;
        err.write(if err.color { colored } else { plain }.as_bytes());
    }

    /// Writes bytes to standard output as they are.
    pub fn raw(&self, bytes: &[u8]) {
        self.terminal.out.write(bytes);
    }

    /// A spinner with a text, until it is dropped. Shows nothing when standard output is not a terminal.
    pub fn spin(&self, status: impl Into<Text>) -> Live {
        Live::spinner(self.clone(), status.into())
    }

    /// A table that is redrawn in place; its last state stays.
    pub fn watch(&self) -> Live {
        Live::watch(self.clone())
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Locked<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a captured terminal printed.
#[derive(Clone, Default)]
pub struct Captured {
    out: Sink,
    err: Sink,
}

impl std::fmt::Debug for Captured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured")
            .field("out", &self.out())
            .field("err", &self.err())
            .finish()
    }
}

impl Captured {
    /// Standard output so far.
    pub fn out(&self) -> String {
        Self::text(&self.out)
    }

    /// Standard error so far.
    pub fn err(&self) -> String {
        Self::text(&self.err)
    }

    fn text(sink: &Sink) -> String {
        String::from_utf8_lossy(&sink.0.lock()).into_owned()
    }
}
