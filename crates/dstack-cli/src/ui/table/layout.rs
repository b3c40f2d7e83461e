//! How wide each column is.

use super::{Column, PADDING, Table, narrow};

/// Widths of all columns, padding included, for a terminal of `width` cells.
pub(super) fn widths(table: &Table, width: usize) -> Vec<usize> {
    let natural: Vec<usize> = (0..table.columns.len())
        .map(|index| content(table, index).saturating_add(PADDING))
        .collect();
    let widths = reference(table, &natural, width);
    let mut columns = table.columns.iter().zip(&natural).zip(&widths).enumerate();
    let cuts = |(index, ((column, natural), width)): (usize, ((&Column, &usize), &usize))| {
        narrow::cuts(table, index, column, *natural, *width)
    };
    let is_cut = columns.any(cuts);
    match is_cut {
        true if natural.iter().sum::<usize>() <= width => fill(table, natural, width),
        true => fill(table, narrow::squeeze(table, &natural, width), width),
        false => widths,
    }
}

/// The widths of dstack 0.22.5, which cuts what has no place.
fn reference(table: &Table, natural: &[usize], width: usize) -> Vec<usize> {
    let natural: Vec<usize> = natural.iter().map(|natural| *natural.min(&width)).collect();
    let mut widths = stretched(table, &natural, width);
    if widths.iter().sum::<usize>() > width {
        let wrapable: Vec<bool> = table.columns.iter().map(|column| !column.no_wrap).collect();
        widths = collapse(widths, &wrapable, width);
        let total: usize = widths.iter().sum();
        if total > width {
            let ones = vec![1; widths.len()];
            widths = reduce(total - width, &ones, &widths.clone(), &widths);
        }
        widths = natural
            .iter()
            .zip(&widths)
            .map(|(natural, width)| {
                if *width <= PADDING {
                    *width
                } else {
                    *natural.min(width)
                }
            })
            .collect();
    }
    fill(table, widths, width)
}

/// Gives what is left of the full width to all columns of a table that is stretched.
fn fill(table: &Table, widths: Vec<usize>, width: usize) -> Vec<usize> {
    let total: usize = widths.iter().sum();
    if !table.expand || total >= width || total == 0 {
        return widths;
    }
    let more = distribute(width - total, &widths, &[]);
    widths
        .iter()
        .zip(more)
        .map(|(width, more)| width + more)
        .collect()
}

/// Widest line of a column, its title included.
fn content(table: &Table, index: usize) -> usize {
    let cells = table
        .rows
        .iter()
        .filter_map(|row| row.cells.get(index))
        .map(super::Text::width);
    let title = table
        .columns
        .get(index)
        .filter(|_| table.header)
        .map_or(0, |column| super::super::text::cells(&column.title));
    cells.max().unwrap_or(0).max(title)
}

/// Natural widths, or shares of the full width for columns with a ratio.
fn stretched(table: &Table, natural: &[usize], width: usize) -> Vec<usize> {
    let flexible: Vec<&Column> = table
        .columns
        .iter()
        .filter(|column| column.ratio.is_some())
        .collect();
    if !table.expand || flexible.is_empty() {
        return natural.to_vec();
    }
    let fixed: usize = table
        .columns
        .iter()
        .zip(natural)
        .filter(|(column, _)| column.ratio.is_none())
        .map(|(_, width)| *width)
        .sum();
    let ratios: Vec<usize> = flexible.iter().filter_map(|column| column.ratio).collect();
    let minimums = vec![1 + PADDING; ratios.len()];
    let mut shares = distribute(width.saturating_sub(fixed), &ratios, &minimums).into_iter();
    table
        .columns
        .iter()
        .zip(natural)
        .map(|(column, natural)| {
            if column.ratio.is_some() {
                shares.next().unwrap_or(0)
            } else {
                *natural
            }
        })
        .collect()
}

/// Narrows the widest columns that may wrap until the table fits.
fn collapse(mut widths: Vec<usize>, wrapable: &[bool], width: usize) -> Vec<usize> {
    if !wrapable.contains(&true) {
        return widths;
    }
    loop {
        let total: usize = widths.iter().sum();
        let excess = total.saturating_sub(width);
        if total == 0 || excess == 0 {
            return widths;
        }
        let candidates = || {
            widths
                .iter()
                .zip(wrapable)
                .filter(|(_, wrapable)| **wrapable)
                .map(|(width, _)| *width)
        };
        let widest = candidates().max().unwrap_or(0);
        let second = candidates().filter(|width| *width != widest).max().unwrap_or(0);
        let difference = widest - second;
        if difference == 0 {
            return widths;
        }
        let ratios: Vec<usize> = widths
            .iter()
            .zip(wrapable)
            .map(|(width, wrapable)| usize::from(*wrapable && *width == widest))
            .collect();
        let limits = vec![excess.min(difference); widths.len()];
        widths = reduce(excess, &ratios, &limits, &widths);
    }
}

/// Takes `total` away from `values` by ratio, at most `limits` from each.
fn reduce(total: usize, ratios: &[usize], limits: &[usize], values: &[usize]) -> Vec<usize> {
    let ratios: Vec<usize> = ratios
        .iter()
        .zip(limits)
        .map(|(ratio, limit)| if *limit > 0 { *ratio } else { 0 })
        .collect();
    let mut ratio_left: usize = ratios.iter().sum();
    let mut total_left = total;
    ratios
        .iter()
        .zip(limits)
        .zip(values)
        .map(|((ratio, limit), value)| {
            if *ratio == 0 || ratio_left == 0 {
                return *value;
            }
            let taken = round_half_even(ratio * total_left, ratio_left).min(*limit);
            total_left = total_left.saturating_sub(taken);
            ratio_left -= ratio;
            value.saturating_sub(taken)
        })
        .collect()
}

/// Splits `total` by ratio, at least `minimums` each (none when empty).
fn distribute(total: usize, ratios: &[usize], minimums: &[usize]) -> Vec<usize> {
    let mut ratio_left: usize = ratios.iter().sum();
    let mut total_left = total;
    ratios
        .iter()
        .enumerate()
        .map(|(index, ratio)| {
            let minimum = minimums.get(index).copied().unwrap_or(0);
            let share = if ratio_left > 0 {
                (ratio * total_left).div_ceil(ratio_left).max(minimum)
            } else {
                total_left
            };
            ratio_left = ratio_left.saturating_sub(*ratio);
            total_left = total_left.saturating_sub(share);
            share
        })
        .collect()
}

/// `numerator / denominator`, halves to the even neighbour.
const fn round_half_even(numerator: usize, denominator: usize) -> usize {
    let (quotient, rest) = (numerator / denominator, numerator % denominator);
    let up = rest * 2 > denominator || (rest * 2 == denominator && quotient % 2 == 1);
    quotient + up as usize
}
