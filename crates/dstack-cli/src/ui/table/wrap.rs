//! Lines of one cell.

use crate::ui::text::{Text, cells};

/// The lines of a cell that is `width` cells wide inside its padding.
pub(super) fn cell(text: &Text, width: usize, center: bool) -> Vec<Text> {
    let lines = text
        .lines()
        .into_iter()
        .flat_map(|line| line.divide(&breaks(&line.plain(), width)));
    lines.map(|line| fit(line, width, center)).collect()
}

/// The lines of a text that is `width` cells wide: broken between words, and all but the first below what follows the
/// first `indent` characters.
pub(in crate::ui) fn hanging(text: &Text, indent: usize, width: usize) -> Vec<Text> {
    let parts = text.divide(&[indent]);
    let [head, tail] = parts.as_slice() else {
        return parts;
    };
    let tail = tail.divide(&breaks(&tail.plain(), width.saturating_sub(indent)));
    let lines = tail.into_iter().enumerate();
    lines
        .map(|(index, line)| match index {
            0 => head.clone().append(line.trim_end()),
            _ => Text::from(" ".repeat(indent)).append(line.trim_end()),
        })
        .collect()
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

/// Character offsets at which a line is broken: between words, and inside of words that are wider than `width`.
fn breaks(line: &str, width: usize) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut used = 0;
    for (start, word) in words(line) {
        let length = cells(word.trim_end());
        if used > 0 && used + length > width {
            offsets.push(start);
            used = 0;
        }
        if length > width && width > 0 {
            used = fold(&word, start, width, &mut offsets);
        } else {
            used += cells(&word);
        }
    }
    offsets
}

/// Whether a word may be broken after this character.
pub(super) const fn is_joint(character: char) -> bool {
    matches!(character, '-' | '_' | '=' | '/' | ':' | ',')
}

/// Breaks a word that is wider than `width`, after a hyphen or the like unless that leaves most of a line empty. Returns the width of its last line.
fn fold(word: &str, start: usize, width: usize, offsets: &mut Vec<usize>) -> usize {
    let mut rest: Vec<char> = word.chars().collect();
    let mut at = start;
    while cells(String::from_iter(&rest).trim_end()) > width {
        let fits = (1..=rest.len())
            .take_while(|count| {
                rest.get(..*count)
                    .is_some_and(|part| cells(&String::from_iter(part)) <= width)
            })
            .last()
            .unwrap_or(1);
        let joint = rest
            .get(..fits)
            .and_then(|part| part.iter().rposition(|c| is_joint(*c)));
        let count = joint
            .map(|joint| joint + 1)
            .filter(|count| *count * 3 >= fits)
            .unwrap_or(fits);
        rest.drain(..count);
        at += count;
        offsets.push(at);
    }
    cells(&String::from_iter(&rest))
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
