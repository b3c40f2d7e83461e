use super::*;

fn text(table: &Table, width: usize) -> String {
    let lines: Vec<String> = table.render(width).iter().map(Text::plain).collect();
    lines.join("\n")
}

fn offers(expand: bool) -> Table {
    let mut table = Table::new(vec![
        Column::new("#"),
        Column::new("BACKEND").ratio(2),
        Column::new("RESOURCES").ratio(4),
        Column::new("INSTANCE TYPE").no_wrap().ratio(2),
        Column::new("PRICE").ratio(1),
        Column::new(""),
    ])
    .expand(expand);
    for index in ["1", "2"] {
        table.row(
            [
                index,
                "runpod (EU-RO-1)",
                "cpu=x86:16 mem=62GB disk=100GB gpu=RTX4090:24GB:1",
                "NVIDIA GeForce RTX 4090",
                "$0.69",
            ]
            .map(Text::from)
            .to_vec(),
        );
    }
    table.row_styled(vec![Text::new(), "...".into()], Style::SECONDARY);
    table
}

// The expected layouts were printed by rich 14 (dstack 0.22.5's) from the same table.

#[track_caller]
fn assert_layout(expand: bool, width: usize, expected: &[&str]) {
    let dotted = text(&offers(expand), width).replace(' ', ".");
    let lines: Vec<&str> = dotted.lines().collect();
    assert_eq!(lines, expected);
}

#[test]
fn as_wide_as_its_content() {
    assert_layout(
        false,
        200,
        &[
            ".#..BACKEND...........RESOURCES..........................................INSTANCE.TYPE............PRICE...",
            ".1..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB.disk=100GB.gpu=RTX4090:24GB:1..NVIDIA.GeForce.RTX.4090..$0.69...",
            ".2..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB.disk=100GB.gpu=RTX4090:24GB:1..NVIDIA.GeForce.RTX.4090..$0.69...",
            "..........................................................................................................",
        ],
    );
}

#[test]
fn stretched_by_ratios() {
    let line = text(&offers(true), 160);
    let line = line.lines().nth(1).unwrap();
    let starts: Vec<usize> = ["1", "runpod", "cpu=", "NVIDIA", "$"]
        .iter()
        .map(|word| line.find(word).unwrap())
        .collect();
    assert_eq!(starts, [1, 4, 39, 108, 142]);
}

// Where rich cuts titles and cells, columns are narrower and cells wrap.

#[test]
fn cells_wrap_where_the_terminal_is_narrow() {
    let empty = ".".repeat(80);
    assert_layout(
        true,
        80,
        &[
            ".#..BACKEND...........RESOURCES..................INSTANCE.TYPE............PRICE.",
            ".1..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB........NVIDIA.GeForce.RTX.4090..$0.69.",
            "......................disk=100GB................................................",
            "......................gpu=RTX4090:24GB:1........................................",
            ".2..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB........NVIDIA.GeForce.RTX.4090..$0.69.",
            "......................disk=100GB................................................",
            "......................gpu=RTX4090:24GB:1........................................",
            &empty,
        ],
    );
}

#[test]
fn names_are_broken_last_and_after_hyphens() {
    let mut table = Table::new(vec![
        Column::new("NAME").no_wrap(),
        Column::new("BACKEND").minor(),
        Column::new("ERROR"),
    ]);
    table.row(
        ["   instance=0", "ssh (remote)", "no_offers"]
            .map(Text::from)
            .to_vec(),
    );
    assert_eq!(
        text(&table, 33),
        " NAME           BACKEND   ERROR  \n    instance=0  ssh       no_    \n                (remote)  offers "
    );
}

#[test]
fn a_long_line_goes_on_below_its_text() {
    let line = Text::from("[12:00] ")
        .secondary("[run a]")
        .push(" Status changed to FAILED");
    let lines: Vec<String> = wrap::hanging(&line, 8, 30).iter().map(Text::plain).collect();
    assert_eq!(lines, ["[12:00] [run a] Status changed", "        to FAILED"]);
    let lines = wrap::hanging(&line, 8, 80);
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_column_without_cells_makes_room_for_others() {
    let mut table = Table::new(vec![
        Column::new("NAME").no_wrap(),
        Column::new("SUBMITTED").minor().no_wrap(),
        Column::new("ERROR"),
    ]);
    table.row(["bad-task-name", "3 mins ago", ""].map(Text::from).to_vec());
    assert_eq!(
        text(&table, 29),
        " NAME           SUBMITTED  \n bad-task-name  3 mins ago "
    );
    assert_eq!(
        text(&table, 26),
        " NAME           SUBMITTED \n bad-task-name  3 mins    \n                ago       "
    );
    assert_eq!(
        text(&table, 22),
        " NAME       SUBMITTED \n bad-task-  3 mins    \n name       ago       "
    );
}

proptest::proptest! {
    #[test]
    fn nothing_is_cut_while_titles_have_their_place(width in 45usize..200, expand: bool) {
        let printed = text(&offers(expand), width);
        proptest::prop_assert!(!printed.contains('…'), "{printed}");
        let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
        proptest::prop_assert_eq!(letters(&printed), letters(&text(&offers(false), 200)));
    }
}

#[test]
fn rows_below_are_grey_and_headers_bold() {
    let lines = offers(false).render(200);
    assert!(
        lines[0]
            .spans()
            .iter()
            .filter(|span| !span.text.trim().is_empty())
            .all(|span| span.style == Style::BOLD)
    );
    assert!(
        lines[3]
            .spans()
            .iter()
            .filter(|span| !span.text.trim().is_empty())
            .all(|span| span.style == Style::SECONDARY)
    );
}

proptest::proptest! {
    #[test]
    fn no_line_is_wider_than_the_terminal(width in 1usize..200, expand: bool) {
        for line in offers(expand).render(width) {
            proptest::prop_assert!(line.width() <= width, "{}", line.width());
        }
    }
}
