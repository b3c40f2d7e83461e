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
    let empty = ".".repeat(80);
    assert_layout(
        true,
        80,
        &[
            ".#..BACKEND..........RESOURCES.........................INSTANCE.TYPE...PRICE....",
            ".1..runpod...........cpu=x86:16.mem=62GB.disk=100GB....NVIDIA.GeForc…..$0.69....",
            "....(EU-RO-1)........gpu=RTX4090:24GB:1.........................................",
            ".2..runpod...........cpu=x86:16.mem=62GB.disk=100GB....NVIDIA.GeForc…..$0.69....",
            "....(EU-RO-1)........gpu=RTX4090:24GB:1.........................................",
            &empty,
        ],
    );
}

#[test]
fn narrowed_until_words_are_cut() {
    let empty = ".".repeat(60);
    assert_layout(
        false,
        60,
        &[
            ".#..BACKEND.....RESOURCES..INSTANCE.TYPE............PRICE...",
            ".1..runpod......cpu=x86:…..NVIDIA.GeForce.RTX.4090..$0.69...",
            "....(EU-RO-1)...mem=62GB....................................",
            "................disk=100…...................................",
            "................gpu=RTX4…...................................",
            ".2..runpod......cpu=x86:…..NVIDIA.GeForce.RTX.4090..$0.69...",
            "....(EU-RO-1)...mem=62GB....................................",
            "................disk=100…...................................",
            "................gpu=RTX4…...................................",
            &empty,
        ],
    );
    let empty = ".".repeat(40);
    assert_layout(
        true,
        40,
        &[
            ".#..BACKE…..RESOURCES.......INSTA…..…...",
            ".1..runpod..cpu=x86:16......NVIDI…..…...",
            "....(EU-R…..mem=62GB....................",
            "............disk=100GB..................",
            "............gpu=RTX4090:2…..............",
            ".2..runpod..cpu=x86:16......NVIDI…..…...",
            "....(EU-R…..mem=62GB....................",
            "............disk=100GB..................",
            "............gpu=RTX4090:2…..............",
            &empty,
        ],
    );
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
