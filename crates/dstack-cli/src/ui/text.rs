//! Text made of styled pieces, measured in terminal cells.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::style::{Role, Style};

/// A piece of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The characters, without escape sequences.
    pub text: String,
    /// How all of them are printed.
    pub style: Style,
}

/// Styled text. May hold several lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text {
    spans: Vec<Span>,
}

impl Text {
    /// Empty text, to build upon.
    pub const fn new() -> Self {
        Self { spans: Vec::new() }
    }

    /// Text in one style.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Self::new().push_styled(text, style)
    }

    /// Adds text in a style.
    #[must_use]
    pub fn push_styled(mut self, text: impl Into<String>, style: Style) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.spans.push(Span { text, style });
        }
        self
    }

    /// Adds plain text.
    #[must_use]
    pub fn push(self, text: impl Into<String>) -> Self {
        self.push_styled(text, Style::PLAIN)
    }

    /// Adds a name, command or other literal.
    #[must_use]
    pub fn code(self, text: impl Into<String>) -> Self {
        self.push_styled(text, Style::of(Role::Code))
    }

    /// Adds a detail.
    #[must_use]
    pub fn secondary(self, text: impl Into<String>) -> Self {
        self.push_styled(text, Style::SECONDARY)
    }

    /// Adds text in a role.
    #[must_use]
    pub fn role(self, role: Role, text: impl Into<String>) -> Self {
        self.push_styled(text, Style::of(role))
    }

    /// Adds other text.
    #[must_use]
    pub fn append(mut self, other: Self) -> Self {
        self.spans.extend(other.spans);
        self
    }

    /// Returns the pieces of equal style.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether there are no characters.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The characters without styles.
    pub fn plain(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// Puts a style under all pieces.
    #[must_use]
    pub fn under(mut self, below: Style) -> Self {
        for span in &mut self.spans {
            span.style = span.style.over(below);
        }
        self
    }

    /// Its lines, without line ends.
    pub fn lines(&self) -> Vec<Self> {
        let mut lines = vec![Self::new()];
        for span in &self.spans {
            for (index, part) in span.text.split('\n').enumerate() {
                if index > 0 {
                    lines.push(Self::new());
                }
                if let Some(line) = lines.pop() {
                    lines.push(line.push_styled(part, span.style));
                }
            }
        }
        lines
    }

    /// Width of its widest line in cells.
    pub fn width(&self) -> usize {
        self.plain().split('\n').map(cells).max().unwrap_or(0)
    }

    /// Cuts one line at character offsets.
    pub(super) fn divide(&self, offsets: &[usize]) -> Vec<Self> {
        let mut lines = vec![Self::new()];
        let mut at = 0;
        for span in &self.spans {
            for character in span.text.chars() {
                if offsets.contains(&at) {
                    lines.push(Self::new());
                }
                if let Some(line) = lines.last_mut() {
                    line.push_char(character, span.style);
                }
                at += 1;
            }
        }
        lines
    }

    /// The first `width` cells.
    #[must_use]
    pub(super) fn crop(&self, width: usize) -> Self {
        let mut cropped = Self::new();
        let mut used = 0;
        for span in &self.spans {
            for character in span.text.chars() {
                used += character.width().unwrap_or(0);
                if used > width {
                    return cropped;
                }
                cropped.push_char(character, span.style);
            }
        }
        cropped
    }

    /// Cut to `width` cells, with `…` when something was cut.
    #[must_use]
    pub(super) fn ellipsis(self, width: usize) -> Self {
        if self.width() <= width {
            return self;
        }
        if width == 0 {
            return Self::new();
        }
        let style = self.spans.last().map_or(Style::PLAIN, |span| span.style);
        self.crop(width.saturating_sub(1)).push_styled("…", style)
    }

    /// Without white space at the end.
    #[must_use]
    pub(super) fn trim_end(mut self) -> Self {
        while let Some(span) = self.spans.last_mut() {
            let kept = span.text.trim_end().len();
            span.text.truncate(kept);
            if kept > 0 {
                break;
            }
            self.spans.pop();
        }
        self
    }

    fn push_char(&mut self, character: char, style: Style) {
        match self.spans.last_mut() {
            Some(span) if span.style == style => span.text.push(character),
            _ => self.spans.push(Span {
                text: character.into(),
                style,
            }),
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::new().push(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::new().push(text)
    }
}

/// Width of a text without line ends in cells.
pub fn cells(text: &str) -> usize {
    text.width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_styles() {
        let text = Text::new().push("a\nb").code("c\n");
        let lines = text.lines();
        assert_eq!(lines.iter().map(Text::plain).collect::<Vec<_>>(), ["a", "bc", ""]);
        assert_eq!(lines[1].spans()[1].style, Style::of(Role::Code));
    }

    #[test]
    fn cells_are_not_characters() {
        assert_eq!(cells("日本"), 4);
        assert_eq!(Text::from("日本語").ellipsis(4).plain(), "日…");
        assert_eq!(Text::from("abc").ellipsis(3).plain(), "abc");
    }

    #[test]
    fn trims_across_pieces() {
        assert_eq!(Text::new().push("a ").code("  ").trim_end().plain(), "a");
    }
}
