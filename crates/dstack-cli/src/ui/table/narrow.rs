//! Widths where the terminal is too narrow for the reference's layout, which would cut titles and names: columns that
//! matter least are narrowed first, and their cells wrap. Nothing is cut while every title has its place.

use super::{Column, PADDING, Table, wrap};
use crate::ui::text::cells;

/// Narrows `natural` widths, padding included, until they fit into `width`.
pub(super) fn squeeze(table: &Table, natural: &[usize], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = natural.to_vec();
    for (index, width) in widths.iter_mut().enumerate() {
        if is_empty(table, index) {
            *width = 0;
        }
    }
    let words = floors(table, |index, column| longest_word(table, index, &column.title));
    let pieces = floors(table, |index, column| {
        longest_piece(table, index, column).max(longest_part(&column.title))
    });
    let titles = floors(table, |_, column| longest_part(&column.title));
    let nothing = vec![0; widths.len()];
    let minor: Vec<bool> = table.columns.iter().map(|column| column.minor).collect();
    let may_wrap: Vec<bool> = table
        .columns
        .iter()
        .map(|column| column.minor || !column.no_wrap)
        .collect();
    let all = vec![true; widths.len()];
    for (floors, may_shrink) in [
        (&words, &minor),
        (&words, &may_wrap),
        (&pieces, &minor),
        (&pieces, &all),
        (&titles, &may_wrap),
        (&titles, &all),
        (&nothing, &all),
    ] {
        shrink(&mut widths, floors, may_shrink, width);
    }
    widths
}

/// Takes one cell after the other from the widest column that is wider than its floor.
fn shrink(widths: &mut [usize], floors: &[usize], may_shrink: &[bool], width: usize) {
    while widths.iter().sum::<usize>() > width {
        let widest = widths
            .iter_mut()
            .zip(floors)
            .zip(may_shrink)
            .filter(|((width, floor), may_shrink)| **may_shrink && **width > **floor)
            .max_by_key(|((width, _), _)| **width);
        match widest {
            Some(((width, _), _)) => *width -= 1,
            None => return,
        }
    }
}

fn floors(table: &Table, inner: impl Fn(usize, &Column) -> usize) -> Vec<usize> {
    let columns = table.columns.iter().enumerate();
    columns
        .map(|(index, column)| inner(index, column) + PADDING)
        .collect()
}

/// Whether no row says anything in a column.
fn is_empty(table: &Table, index: usize) -> bool {
    !table
        .rows
        .iter()
        .any(|row| row.cells.get(index).is_some_and(|cell| cell.width() > 0))
}

/// The longest word of a column and its title.
fn longest_word(table: &Table, index: usize, title: &str) -> usize {
    longest(table, index, |_| false).max(longest_part(title))
}

/// The longest part of a cell that is not broken while there is another way: names only after hyphens.
fn longest_piece(table: &Table, index: usize, column: &Column) -> usize {
    match column.no_wrap && !column.minor {
        true => longest(table, index, |character| character == '-'),
        false => longest(table, index, wrap::is_joint),
    }
}

/// The longest part of a column's cells that has neither a space nor, but for its end, a joint. What a line is
/// indented by belongs to its first part.
fn longest(table: &Table, index: usize, is_joint: impl Fn(char) -> bool) -> usize {
    let of_line = |line: &str| {
        let indent = cells(line) - cells(line.trim_start());
        let words = line.split_whitespace();
        let parts = words.flat_map(|word| word.split_inclusive(&is_joint)).map(cells);
        parts
            .enumerate()
            .map(|(at, width)| if at == 0 { indent + width } else { width })
            .max()
    };
    let in_cells = table.rows.iter().filter_map(|row| row.cells.get(index));
    in_cells
        .filter_map(|cell| cell.plain().lines().filter_map(of_line).max())
        .max()
        .unwrap_or(0)
}

fn longest_part(text: &str) -> usize {
    text.split_whitespace().map(cells).max().unwrap_or(0)
}

/// Whether a column of this width cuts its title or a cell.
pub(super) fn cuts(table: &Table, index: usize, column: &Column, natural: usize, width: usize) -> bool {
    if width >= natural {
        return false;
    }
    let title = match table.header {
        true => cells(&column.title),
        false => 0,
    };
    let whole = column.no_wrap && natural > width;
    whole || title + PADDING > width || longest_word(table, index, "") + PADDING > width
}
