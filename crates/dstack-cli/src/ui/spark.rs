//! Sparklines: a series as one line of bars. Height is the peak of a cell, colour its mean, on a fixed scale.

use super::style::{Role, Style};
use super::text::Text;

/// No full block: it would touch the row above.
const BARS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];

/// Colours by percent: the first whose bound is above the value.
pub type Ramp = [(f64, Role); 4];

/// What belongs to an accelerator.
pub const GPU: Ramp = [
    (25.0, Role::Heat(242)),
    (50.0, Role::Heat(64)),
    (75.0, Role::Heat(76)),
    (f64::INFINITY, Role::Heat(46)),
];

/// What belongs to the host.
pub const HOST: Ramp = [
    (50.0, Role::Heat(68)),
    (90.0, Role::Heat(32)),
    (97.0, Role::Heat(166)),
    (f64::INFINITY, Role::Heat(160)),
];

/// The series (percents, oldest first) in at most `width` cells.
pub fn line(percents: &[f64], width: usize, ramp: &Ramp) -> Text {
    cells(percents, width)
        .into_iter()
        .fold(Text::new(), |text, cell| {
            let role = ramp
                .iter()
                .find(|(bound, _)| cell.mean < *bound)
                .map_or(Role::Plain, |(_, role)| *role);
            text.push_styled(bar(cell.peak), Style::of(role))
        })
}

fn bar(percent: f64) -> char {
    let top = BARS.len() - 1;
    // Between 0 and `top`, rounded down.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let index = (percent.clamp(0.0, 100.0) / 100.0 * top as f64) as usize;
    BARS.get(index).copied().unwrap_or('▇')
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    peak: f64,
    mean: f64,
}

/// One cell per value where they fit. Otherwise the last cell is the last value, and the others share the rest.
fn cells(values: &[f64], width: usize) -> Vec<Cell> {
    let single = |value: &f64| Cell {
        peak: *value,
        mean: *value,
    };
    if width < 2 || values.len() <= width {
        let skipped = values.len().saturating_sub(width);
        return values.iter().skip(skipped).map(single).collect();
    }
    let Some((last, history)) = values.split_last() else {
        return Vec::new();
    };
    let at = |cell: usize| cell * history.len() / (width - 1);
    let shared = (0..width - 1).map(|cell| {
        let part = history
            .get(at(cell)..at(cell + 1).max(at(cell) + 1))
            .unwrap_or_default();
        let count = u32::try_from(part.len()).map_or(1.0, f64::from);
        Cell {
            peak: part.iter().copied().fold(0.0, f64::max),
            mean: part.iter().sum::<f64>() / count,
        }
    });
    shared.chain([single(last)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_on_a_fixed_scale() {
        let values = [0.0, 20.0, 50.0, 99.0, 100.0, 250.0, -3.0];
        assert_eq!(line(&values, 80, &HOST).plain(), "▁▂▄▆▇▇▁");
    }

    #[test]
    fn many_values_share_cells_and_the_last_stands_alone() {
        let values: Vec<f64> = (0..9).map(|i| if i == 4 { 100.0 } else { 0.0 }).collect();
        let cells = cells(&values, 5);
        let peaks: Vec<f64> = cells.iter().map(|cell| cell.peak).collect();
        assert_eq!(peaks, [0.0, 0.0, 100.0, 0.0, 0.0]);
        assert_eq!(cells[2].mean, 50.0, "the colour is that of the mean");
    }

    #[test]
    fn few_cells() {
        assert_eq!(line(&[1.0, 100.0], 1, &GPU).plain(), "▇");
        assert_eq!(line(&[], 10, &GPU).plain(), "");
        assert_eq!(line(&[1.0], 0, &GPU).plain(), "");
    }
}
