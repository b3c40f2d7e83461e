//! Lines addressed by row, and a cursor.

use std::collections::BTreeMap;

use super::parser::{Action, Erase, Movement};

/// Farthest column a movement reaches: gaps are filled with spaces, so a movement must not cost memory at will.
const MAX_COLUMN: usize = 4096;

/// What is on the screen and not yet handed on.
#[derive(Debug, Default)]
pub(super) struct Screen {
    // Rows that were written or passed by a line end; rows skipped by a movement are not there.
    rows: BTreeMap<u64, Row>,
    // The row of the cursor, not in `rows`.
    current: Row,
    row: u64,
    column: usize,
    // Rows before this one are handed on.
    first: u64,
    // Characters in `rows`.
    characters: usize,
}

#[derive(Debug, Default)]
struct Row {
    text: Vec<char>,
    // Columns of this row that are handed on already: `text` begins there.
    start: usize,
    // Written to, or ended.
    present: bool,
}

impl Row {
    fn put(&mut self, column: usize, text: impl ExactSizeIterator<Item = char>) {
        self.present = true;
        let from = column.saturating_sub(self.start);
        if from >= self.text.len() {
            self.text.resize(from, ' ');
            self.text.extend(text);
            return;
        }
        let end = from + text.len();
        if end > self.text.len() {
            self.text.resize(end, ' ');
        }
        for (slot, char) in self.text.iter_mut().skip(from).zip(text) {
            *slot = char;
        }
    }

    fn blank(&mut self, from: usize, to: usize) {
        let (from, to) = (from.saturating_sub(self.start), to.saturating_sub(self.start));
        self.text
            .iter_mut()
            .take(to)
            .skip(from)
            .for_each(|slot| *slot = ' ');
    }

    /// The row's bytes, each end space and NUL removed.
    fn write_trimmed(&self, to: &mut Vec<u8>) {
        let end = self
            .text
            .iter()
            .rposition(|char| !matches!(char, ' ' | '\0'))
            .map_or(0, |last| last + 1);
        encode(self.text.get(..end).unwrap_or_default(), to);
    }
}

fn encode(text: &[char], to: &mut Vec<u8>) {
    let mut utf8 = [0; 4];
    for char in text {
        to.extend_from_slice(char.encode_utf8(&mut utf8).as_bytes());
    }
}

impl Screen {
    pub(super) fn apply(&mut self, action: &Action<'_>) {
        match action {
            Action::Ascii(bytes) => {
                self.current
                    .put(self.column, bytes.iter().map(|&byte| char::from(byte)));
                self.column += bytes.len();
            }
            Action::Char(char) => {
                self.current.put(self.column, std::iter::once(*char));
                self.column += 1;
            }
            Action::Newline => {
                self.current.present = true;
                self.go_to_row(self.row.saturating_add(1));
                self.column = 0;
            }
            Action::Return => self.column = 0,
            Action::Backspace => self.column = self.column.saturating_sub(1),
            Action::Move(movement) => self.step(*movement),
            Action::Erase(erase) => self.erase(*erase),
        }
    }

    /// Characters not yet handed on; a line end counts as one.
    pub(super) fn len(&self) -> usize {
        self.characters + self.current.text.len()
    }

    /// Whether there is something above the cursor.
    pub(super) fn has_finished(&self) -> bool {
        self.rows
            .first_key_value()
            .is_some_and(|(row, _)| *row < self.row)
    }

    fn step(&mut self, movement: Movement) {
        match movement {
            Movement::Up(count) => self.go_to_row(self.row.saturating_sub(count)),
            Movement::Down(count) => self.go_to_row(self.row.saturating_add(count)),
            Movement::Right(count) => self.column = self.right_of(self.column, count),
            Movement::Left(count) => self.column = self.column.saturating_sub(to_usize(count)),
            Movement::Column(column) => self.column = self.right_of(0, column - 1),
            // Rows count from what is left of the screen: what is handed on has scrolled away.
            Movement::To(row, column) => {
                self.go_to_row(self.first.saturating_add(row - 1));
                self.column = self.right_of(0, column - 1);
            }
        }
    }

    fn right_of(&self, column: usize, count: u64) -> usize {
        let farthest = self.column.max(MAX_COLUMN);
        column.saturating_add(to_usize(count)).min(farthest)
    }

    fn go_to_row(&mut self, row: u64) {
        let row = row.max(self.first);
        if row == self.row {
            return;
        }
        let next = self.rows.remove(&row).unwrap_or_default();
        if next.present {
            self.characters -= next.text.len() + 1;
        }
        let left = std::mem::replace(&mut self.current, next);
        if left.present {
            self.characters += left.text.len() + 1;
            self.rows.insert(self.row, left);
        }
        self.row = row;
    }

    fn erase(&mut self, erase: Erase) {
        match erase {
            Erase::LineRight => self
                .current
                .text
                .truncate(self.column.saturating_sub(self.current.start)),
            Erase::LineLeft => self.current.blank(0, self.column + 1),
            Erase::Line => self.current.text.clear(),
            Erase::DisplayBelow => {
                self.erase(Erase::LineRight);
                let below = self.rows.split_off(&self.row);
                self.forget(&below);
            }
            Erase::DisplayAbove => {
                self.erase(Erase::LineLeft);
                let below = self.rows.split_off(&self.row);
                let above = std::mem::replace(&mut self.rows, below);
                self.forget(&above);
            }
            Erase::Display => {
                self.rows.clear();
                self.characters = 0;
                self.current = Row::default();
                self.row = self.first;
                self.column = 0;
            }
        }
    }

    fn forget(&mut self, rows: &BTreeMap<u64, Row>) {
        self.characters -= rows.values().map(|row| row.text.len() + 1).sum::<usize>();
    }

    /// Hands on the rows above the cursor.
    pub(super) fn flush_finished(&mut self, limit: usize, emit: impl FnMut(&[u8])) {
        let below = self.rows.split_off(&self.row);
        let above = std::mem::replace(&mut self.rows, below);
        self.forget(&above);
        self.first = self.row;
        let mut text = Vec::new();
        for row in above.values() {
            row.write_trimmed(&mut text);
            text.push(b'\n');
        }
        emit_pieces(&text, limit, emit);
    }

    /// Makes room: hands on the rows above the cursor, and the cursor's own row when it is too long by itself.
    pub(super) fn flush_to_limit(&mut self, limit: usize, mut emit: impl FnMut(&[u8])) {
        self.flush_finished(limit, &mut emit);
        if self.current.text.len() > limit {
            let mut text = Vec::new();
            encode(&self.current.text, &mut text);
            self.current.start += self.current.text.len();
            self.current.text.clear();
            emit_pieces(&text, limit, emit);
        } else if self.len() > limit {
            // Rows below the cursor: they cannot be final, but they cannot be kept either.
            self.flush_all(limit, emit);
        }
    }

    /// Hands on everything, each line with an end, and goes on below.
    pub(super) fn flush_all(&mut self, limit: usize, emit: impl FnMut(&[u8])) {
        let last = std::mem::take(&mut self.current);
        // A last row in which nothing was ever written is just the cursor's place after a line end.
        if last.present && (!last.text.is_empty() || last.start > 0) {
            self.rows.insert(self.row, last);
        }
        let mut text = Vec::new();
        for row in std::mem::take(&mut self.rows).values() {
            row.write_trimmed(&mut text);
            text.push(b'\n');
        }
        self.characters = 0;
        self.first = self.row;
        self.column = 0;
        emit_pieces(&text, limit, emit);
    }
}

/// Cuts at line ends where a piece has one, never within a character.
fn emit_pieces(mut text: &[u8], limit: usize, mut emit: impl FnMut(&[u8])) {
    while !text.is_empty() {
        let (piece, rest) = text.split_at(cut(text, limit));
        emit(piece);
        text = rest;
    }
}

fn cut(text: &[u8], limit: usize) -> usize {
    let Some(piece) = text.get(..limit).filter(|_| text.len() > limit) else {
        return text.len();
    };
    if let Some(end) = piece.iter().rposition(|&byte| byte == b'\n') {
        return end + 1;
    }
    let boundary = text
        .get(..=limit)
        .unwrap_or(text)
        .iter()
        .rposition(|&byte| byte & 0xc0 != 0x80);
    boundary.filter(|&at| at > 0).unwrap_or(limit)
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
