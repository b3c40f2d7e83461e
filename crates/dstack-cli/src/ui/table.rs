//! Tables without borders, laid out as dstack 0.22.5 lays them out: every cell padded by one space on both sides,
//! columns as wide as their content, stretched by ratios where asked. Where the terminal is too narrow for that, cells
//! wrap, those of minor columns first.

use super::style::Style;
use super::text::Text;

mod layout;
mod narrow;
pub(super) mod wrap;

/// Padding of a cell: one space on each side.
const PADDING: usize = 2;

/// A column: its title, and how its cells are laid out.
#[derive(Debug, Clone, Default)]
pub struct Column {
    title: String,
    style: Style,
    no_wrap: bool,
    ratio: Option<usize>,
    center: bool,
    minor: bool,
}

impl Column {
    /// A column with a title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Style of its cells where they have none themselves.
    #[must_use]
    pub const fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Cells are not wrapped while there is a way to avoid it.
    #[must_use]
    pub const fn no_wrap(mut self) -> Self {
        self.no_wrap = true;
        self
    }

    /// Share of the width when the table is stretched.
    #[must_use]
    pub const fn ratio(mut self, ratio: usize) -> Self {
        self.ratio = Some(ratio);
        self
    }

    /// The column matters less than others: it is narrowed first.
    #[must_use]
    pub const fn minor(mut self) -> Self {
        self.minor = true;
        self
    }

    /// Cells are centred.
    #[must_use]
    pub const fn center(mut self) -> Self {
        self.center = true;
        self
    }
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<Text>,
    style: Style,
}

/// Rows below columns, laid out when it is rendered.
#[derive(Debug, Clone, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
    header: bool,
    expand: bool,
}

impl Table {
    /// A table with a header row.
    pub fn new(columns: Vec<Column>) -> Self {
        Self {
            columns,
            header: true,
            ..Self::default()
        }
    }

    /// Names in bold and their values, without a header.
    pub fn properties() -> Self {
        Self {
            columns: vec![Column::default().no_wrap(), Column::default()],
            ..Self::default()
        }
    }

    /// Stretches the table to the full width.
    #[must_use]
    pub const fn expand(mut self, expand: bool) -> Self {
        self.expand = expand;
        self
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<Text>) {
        self.row_styled(cells, Style::PLAIN);
    }

    /// Adds a row in a style, which cells and columns override.
    pub fn row_styled(&mut self, cells: Vec<Text>, style: Style) {
        self.rows.push(Row { cells, style });
    }

    /// Adds a name in bold and its value.
    pub fn property(&mut self, name: &str, value: impl Into<Text>) {
        self.row(vec![Text::styled(name, Style::BOLD), value.into()]);
    }

    /// Whether there is a column with this title.
    pub fn has_column(&self, title: &str) -> bool {
        self.columns.iter().any(|column| column.title == title)
    }

    /// Adds a row from cells named by column title; unknown names are ignored, missing ones are empty.
    pub fn row_named(&mut self, cells: &[(&str, Text)], style: Style) {
        let cells = self
            .columns
            .iter()
            .map(|column| {
                let cell = cells.iter().rev().find(|(title, _)| *title == column.title);
                cell.map(|(_, text)| text.clone()).unwrap_or_default()
            })
            .collect();
        self.row_styled(cells, style);
    }

    /// Its lines for a terminal of `width` cells.
    pub fn render(&self, width: usize) -> Vec<Text> {
        let widths = layout::widths(self, width);
        let header = self.header.then(|| {
            let cells: Vec<Text> = self
                .columns
                .iter()
                .map(|column| Text::styled(&column.title, Style::BOLD))
                .collect();
            self.render_row(&cells, Style::BOLD, &widths, true)
        });
        let rows = self
            .rows
            .iter()
            .map(|row| self.render_row(&row.cells, row.style, &widths, false));
        header.into_iter().chain(rows).flatten().collect()
    }

    fn render_row(&self, cells: &[Text], style: Style, widths: &[usize], header: bool) -> Vec<Text> {
        let columns: Vec<Vec<Text>> = self
            .columns
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(index, (column, width))| {
                let cell = cells.get(index).cloned().unwrap_or_default();
                // A column's style lies over the row's, the cell's own over both.
                let below = if header {
                    Style::BOLD
                } else {
                    column.style.over(style)
                };
                wrap::cell(&cell.under(below), width.saturating_sub(PADDING), column.center)
            })
            .collect();
        let height = columns.iter().map(Vec::len).max().unwrap_or(1);
        (0..height)
            .map(|line| join_cells(&columns, widths, line))
            .collect()
    }
}

fn join_cells(columns: &[Vec<Text>], widths: &[usize], line: usize) -> Text {
    let mut joined = Text::new();
    for (column, width) in columns.iter().zip(widths) {
        let text = column.get(line).cloned().unwrap_or_default();
        let left = usize::from(*width > 0);
        let right = width.saturating_sub(left + text.width());
        joined = joined.push(" ".repeat(left)).append(text).push(" ".repeat(right));
    }
    joined
}

#[cfg(test)]
mod tests;
