//! Intel Gaudi: hl-smi.

use std::time::Duration;

use super::{DetectError, Gpu, rows, stdout_of};
use crate::command::Commands;

pub(super) async fn detect(commands: &dyn Commands) -> Result<Vec<Gpu>, DetectError> {
    let args = [
        "--query-aip=name,memory.total,index",
        "--format=csv,noheader,nounits",
    ];
    let output = commands.run("hl-smi", &args, Duration::from_secs(60)).await?;
    Ok(parse(&stdout_of("hl-smi", output)?))
}

/// Rows of `name, memory MiB, index`.
fn parse(text: &str) -> Vec<Gpu> {
    rows(text)
        .filter_map(|row| match row.as_slice() {
            [name, memory, index] => Some(Gpu {
                name: name.clone(),
                memory_mib: memory.parse().unwrap_or(0),
                id: index.clone(),
                driver_version: String::new(),
            }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaudi2() {
        let found = parse("HL-225, 98304, 0\nHL-225, 98304, 1\n");
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[1].name.as_str(), found[1].memory_mib, found[1].id.as_str()),
            ("HL-225", 98_304, "1")
        );
    }
}
