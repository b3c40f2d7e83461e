use super::*;
use crate::ui::style::Role;

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

#[test]
fn as_wide_as_its_content() {
    insta::assert_snapshot!(text(&offers(false), 200).replace(' ', "."), @r"
    .#..BACKEND...........RESOURCES..........................................INSTANCE.TYPE............PRICE....
    .1..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB.disk=100GB.gpu=RTX4090:24GB:1..NVIDIA.GeForce.RTX.4090..$0.69....
    .2..runpod.(EU-RO-1)..cpu=x86:16.mem=62GB.disk=100GB.gpu=RTX4090:24GB:1..NVIDIA.GeForce.RTX.4090..$0.69....
    ........................................................................................................
    ");
}
