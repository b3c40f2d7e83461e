//! Colours by meaning. Nothing else in this crate knows a colour.

use anstyle::{Ansi256Color, AnsiColor, Color, Effects};

/// What a piece of text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Ordinary text, without colour.
    #[default]
    Plain,
    /// Names, commands: bold sea green.
    Code,
    /// Details, in grey.
    Secondary,
    /// Something went well: green.
    Success,
    /// Needs attention: yellow.
    Warning,
    /// Errors, in red.
    Error,
    /// A state that is about to change: blue.
    Moving,
    /// A state in which things are well: sea green.
    Running,
    /// A state that failed: indian red.
    Failed,
    /// A state that was interrupted: gold.
    Interrupted,
    /// White, whatever the terminal's default.
    White,
    /// A bar of a chart: a colour of the 256-colour palette.
    Heat(u8),
}

/// A role, and whether the text is bold on top of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// What the text means, which decides its colour.
    pub role: Role,
    /// Whether it is printed in bold.
    pub bold: bool,
}

impl Style {
    /// No style at all.
    pub const PLAIN: Self = Self::of(Role::Plain);
    /// Bold, without a colour.
    pub const BOLD: Self = Self {
        role: Role::Plain,
        bold: true,
    };
    /// The style of details.
    pub const SECONDARY: Self = Self::of(Role::Secondary);

    /// A role as it is.
    pub const fn of(role: Role) -> Self {
        Self { role, bold: false }
    }

    /// A role in bold.
    pub const fn bold(role: Role) -> Self {
        Self { role, bold: true }
    }

    /// This style where it says something, otherwise `below`'s.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            role: if self.role == Role::Plain {
                below.role
            } else {
                self.role
            },
            bold: self.bold || below.bold,
        }
    }

    /// Escape sequences of this style.
    pub(super) fn ansi(self) -> anstyle::Style {
        let effects = if self.bold || self.role == Role::Code {
            Effects::BOLD
        } else {
            Effects::new()
        };
        anstyle::Style::new().fg_color(self.role.color()).effects(effects)
    }
}

impl Role {
    const fn color(self) -> Option<Color> {
        Some(match self {
            Self::Plain => return None,
            Self::Code | Self::Running => Color::Ansi256(Ansi256Color(78)),
            Self::Secondary => Color::Ansi256(Ansi256Color(246)),
            Self::Success => Color::Ansi(AnsiColor::Green),
            Self::Warning => Color::Ansi(AnsiColor::Yellow),
            Self::Error => Color::Ansi(AnsiColor::Red),
            Self::Moving => Color::Ansi256(Ansi256Color(39)),
            Self::Failed => Color::Ansi256(Ansi256Color(203)),
            Self::Interrupted => Color::Ansi256(Ansi256Color(220)),
            Self::Heat(index) => Color::Ansi256(Ansi256Color(index)),
            Self::White => Color::Ansi(AnsiColor::White),
        })
    }
}
