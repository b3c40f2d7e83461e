//! Lines of one cell.

use crate::ui::text::{Text, cells};

/// The lines of a cell that is `width` cells wide inside its padding.
pub(super) fn cell(text: &Text, width: usize, no_wrap: bool, center: bool) -> Vec<Text> {
    let mut lines = Vec::new();
    for line in text.lines() {
        if no_wrap {
            lines.push(line);
        } else {
            lines.extend(line.divide(&breaks(&line.plain(), width)));
        }
    }
    lines.into_iter().map(|line| fit(line, width, center)).collect()
}

fn fit(line: Text, width: usize, center: bool) -> Text {
    let line = if center || line.width() > width {
        line.trim_end()
    } else {
        line
    };
    let line = line.ellipsis(width);
    if center {
        let left = width.saturating_sub(line.width()) / 2;
        return Text::from(" ".repeat(left)).append(line);
    }
    line
}

/// Character offsets at which a line is broken: between words, never inside one.
fn breaks(line: &str, width: usize) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut used = 0;
    for (start, word) in words(line) {
        let length = cells(word.trim_end());
        if width.saturating_sub(used) >= length {
            used += cells(&word);
        } else if (length > width || used > 0) && start > 0 {
            offsets.push(start);
            used = cells(&word);
        } else if length > width {
            used = cells(&word);
        }
    }
    offsets
}

/// Words with the white space around them, and the character offset at which each starts.
fn words(line: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut in_word = false;
    for (at, character) in line.chars().enumerate() {
        // White space belongs to the word before it; at the start of the line, to the one after it.
        let starts = !character.is_whitespace()
            && !in_word
            && words.last().is_some_and(|(_, word)| !word.trim().is_empty());
        if words.is_empty() || starts {
            words.push((at, String::new()));
        }
        in_word = !character.is_whitespace();
        if let Some((_, word)) = words.last_mut() {
            word.push(character);
        }
    }
    words
}
