//! Terminal output to actions: text, line control, cursor movements.

/// What a piece of output does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action<'a> {
    /// Printable ASCII characters, as they are.
    Ascii(&'a [u8]),
    /// Another printable character.
    Char(char),
    /// Next row, column 0.
    Newline,
    /// To column 0 of the same row.
    Return,
    /// One column left.
    Backspace,
    /// A CSI movement.
    Move(Movement),
    /// A CSI erasure.
    Erase(Erase),
}

/// A CSI movement; counts and positions as sent, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Movement {
    Up(u64),
    Down(u64),
    Right(u64),
    Left(u64),
    Column(u64),
    To(u64, u64),
}

impl Movement {
    /// Whether lines above the cursor come into reach.
    pub(super) const fn may_go_up(self) -> bool {
        matches!(self, Self::Up(_) | Self::To(..))
    }
}

/// A CSI erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Erase {
    LineRight,
    LineLeft,
    Line,
    DisplayBelow,
    DisplayAbove,
    /// The whole screen; the cursor goes to its first place.
    Display,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Text,
    Escape,
    Csi,
}

/// Largest parameter: beyond any screen, and far from overflow.
const MAX_PARAMETER: u64 = 9999;
/// A longer sequence is none.
const MAX_SEQUENCE_BYTES: usize = 64;

/// Keeps what a chunk leaves unfinished.
#[derive(Debug, Default)]
pub(super) struct Parser {
    state: State,
    // Parameters of the CSI sequence so far.
    sequence: Vec<u8>,
    // An incomplete UTF-8 character.
    partial: Vec<u8>,
}

impl Parser {
    /// Takes output, calls `act` for each action in order.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut act: impl FnMut(Action<'_>)) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.state == State::Text && self.partial.is_empty() && is_printable(byte) {
                let end = bytes
                    .iter()
                    .position(|&byte| !is_printable(byte))
                    .unwrap_or(bytes.len());
                let (run, rest) = bytes.split_at(end);
                act(Action::Ascii(run));
                bytes = rest;
            } else {
                self.byte(byte, &mut act);
                bytes = rest;
            }
        }
    }

    /// The output is over: an unfinished sequence is text.
    pub(super) fn finish(&mut self, mut act: impl FnMut(Action<'_>)) {
        self.give_up_sequence(&mut act);
        self.partial.clear();
    }

    fn byte(&mut self, byte: u8, act: &mut impl FnMut(Action<'_>)) {
        match self.state {
            State::Text => self.text(byte, act),
            State::Escape if byte == b'[' => self.state = State::Csi,
            // Not CSI: the ESC vanishes, the rest is text.
            State::Escape => {
                self.state = State::Text;
                self.text(byte, act);
            }
            State::Csi => self.csi(byte, act),
        }
    }

    fn text(&mut self, byte: u8, act: &mut impl FnMut(Action<'_>)) {
        if byte >= 0x80 {
            self.wide(byte, act);
            return;
        }
        // An ASCII byte ends an incomplete character, which is dropped.
        self.partial.clear();
        match byte {
            b'\n' => act(Action::Newline),
            b'\r' => act(Action::Return),
            0x08 => act(Action::Backspace),
            // A terminal would skip to the next stop; in a log the tab itself is worth more.
            b'\t' => act(Action::Ascii(b"\t")),
            0x1b => self.state = State::Escape,
            _ if is_printable(byte) => act(Action::Ascii(&[byte])),
            _ => {}
        }
    }

    fn wide(&mut self, byte: u8, act: &mut impl FnMut(Action<'_>)) {
        self.partial.push(byte);
        match std::str::from_utf8(&self.partial) {
            Ok(text) => {
                // C1 controls are control characters too.
                text.chars()
                    .filter(|char| !char.is_control())
                    .for_each(|char| act(Action::Char(char)));
                self.partial.clear();
            }
            // Invalid: drop what cannot begin a character, but look at the last byte anew.
            Err(error) if error.error_len().is_some() => {
                let alone = self.partial.len() == 1;
                self.partial.clear();
                if !alone {
                    self.wide(byte, act);
                }
            }
            Err(_) => {}
        }
    }

    fn csi(&mut self, byte: u8, act: &mut impl FnMut(Action<'_>)) {
        match byte {
            b'0'..=b'9' | b';' if self.sequence.len() < MAX_SEQUENCE_BYTES => self.sequence.push(byte),
            b'?' if self.sequence.is_empty() => self.sequence.push(byte),
            // A final byte (0x40-0x7e), known or not.
            0x40..=0x7e => {
                if let Some(action) = action(byte, &self.sequence) {
                    act(action);
                }
                self.sequence.clear();
                self.state = State::Text;
            }
            _ => {
                self.give_up_sequence(act);
                self.byte(byte, act);
            }
        }
    }

    /// A sequence that breaks off stands as text, without its ESC.
    fn give_up_sequence(&mut self, act: &mut impl FnMut(Action<'_>)) {
        if self.state == State::Csi {
            act(Action::Ascii(b"["));
            if !self.sequence.is_empty() {
                act(Action::Ascii(&self.sequence));
            }
            self.sequence.clear();
        }
        self.state = State::Text;
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e)
}

fn action(last: u8, sequence: &[u8]) -> Option<Action<'static>> {
    let private = sequence.first() == Some(&b'?');
    let mut numbers = sequence.split(|&byte| byte == b';').map(number);
    let (first, second) = (numbers.next().flatten(), numbers.next().flatten());
    let count = first.unwrap_or(1).max(1);
    let movement = match last {
        b'A' => Movement::Up(count),
        b'B' => Movement::Down(count),
        b'C' => Movement::Right(count),
        b'D' => Movement::Left(count),
        b'G' => Movement::Column(count),
        b'H' | b'f' => Movement::To(count, second.unwrap_or(1).max(1)),
        b'K' | b'J' if private => return None,
        b'K' => return erase(first, [Erase::LineRight, Erase::LineLeft, Erase::Line]),
        b'J' => return erase(first, [Erase::DisplayBelow, Erase::DisplayAbove, Erase::Display]),
        _ => return None,
    };
    Some(Action::Move(movement))
}

fn erase(parameter: Option<u64>, kinds: [Erase; 3]) -> Option<Action<'static>> {
    let index = usize::try_from(parameter.unwrap_or(0)).ok()?;
    kinds.get(index).map(|&kind| Action::Erase(kind))
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some((value * 10 + digit).min(MAX_PARAMETER))
    })
}
