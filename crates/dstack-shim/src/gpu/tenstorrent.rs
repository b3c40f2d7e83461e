//! Tenstorrent: tt-smi, run in a container. Boards carry one or two chips; chips are grouped into GPUs.

use std::time::Duration;

use serde_json::Value;

use super::{DetectError, Gpu, HostFiles, known_version, stdout_of};
use crate::command::Commands;

const TOOL: &str = "tt-smi";
const GIB: u64 = 1024;

pub(super) async fn detect(commands: &dyn Commands, files: &dyn HostFiles) -> Result<Vec<Gpu>, DetectError> {
    let args = [
        "run",
        "--rm",
        "--device",
        "/dev/tenstorrent",
        "dstackai/tt-smi:latest",
        "-s",
    ];
    let output = commands.run("docker", &args, Duration::from_secs(120)).await?;
    let version = files
        .read("/sys/module/tenstorrent/version")
        .map(|text| known_version(&text))
        .unwrap_or_default();
    let chips = parse(&stdout_of(TOOL, output)?)?;
    Ok(group(&chips)
        .into_iter()
        .enumerate()
        .map(|(index, board)| Gpu {
            name: board.name,
            memory_mib: board.memory_mib,
            id: index.to_string(),
            driver_version: version.clone(),
        })
        .collect())
}

/// Which chip of a two-chip board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Single,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Chip {
    name: String,
    side: Side,
    board: String,
    remote: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grouped {
    name: String,
    board: String,
    memory_mib: u64,
}

fn parse(text: &str) -> Result<Vec<Chip>, DetectError> {
    let unexpected = |what: String| DetectError::Unexpected { tool: TOOL, what };
    let value: Value = serde_json::from_str(text).map_err(|error| unexpected(error.to_string()))?;
    let list = value
        .get("device_info")
        .and_then(Value::as_array)
        .ok_or_else(|| unexpected("no device_info".into()))?;
    Ok(list
        .iter()
        .filter_map(|device| device.get("board_info"))
        .map(chip)
        .collect())
}

fn chip(info: &Value) -> Chip {
    let text = |key: &str| {
        info.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let board_type = text("board_type");
    let (name, side) = if let Some(name) = board_type.strip_suffix(" L") {
        (name, Side::Left)
    } else if let Some(name) = board_type.strip_suffix(" R") {
        (name, Side::Right)
    } else {
        (board_type.as_str(), Side::Single)
    };
    Chip {
        name: normal_name(name.trim()),
        side,
        board: text("board_id"),
        remote: text("bus_id") == "N/A",
    }
}

fn normal_name(name: &str) -> String {
    match name {
        "bh-scrappy" | "p100" => "p100a",
        name if name.starts_with("p150") => "p150",
        name if name.starts_with("p300") => "p300",
        name => name,
    }
    .to_owned()
}

fn memory_mib(name: &str) -> u64 {
    match name {
        "p100a" => 28 * GIB,
        "p150" | "p300" | "tt-galaxy-bh" => 32 * GIB,
        name if ["n150", "n300", "tt-galaxy-wh"]
            .iter()
            .any(|prefix| name.starts_with(prefix)) =>
        {
            12 * GIB
        }
        _ => 0,
    }
}

fn blackhole(name: &str) -> bool {
    matches!(name, "p100a" | "p150" | "p300" | "tt-galaxy-bh")
}

/// Chips of one board become one GPU, by the rules of each generation; left chips first, then single ones.
fn group(chips: &[Chip]) -> Vec<Grouped> {
    let mut boards: Vec<Grouped> = chips
        .iter()
        .filter(|chip| chip.side == Side::Left)
        .map(own)
        .collect();
    for chip in chips.iter().filter(|chip| chip.side == Side::Right) {
        let partner = boards
            .iter_mut()
            .find(|board| board.board == chip.board && (!blackhole(&chip.name) || board.name == chip.name));
        if let Some(board) = partner {
            board.memory_mib += memory_mib(&chip.name);
        }
    }
    let mut singles: Vec<Grouped> = Vec::new();
    let mut remote: Vec<&Chip> = Vec::new();
    for chip in chips.iter().filter(|chip| chip.side == Side::Single) {
        if blackhole(&chip.name) {
            if chip.remote {
                remote.push(chip);
            } else {
                singles.push(own(chip));
            }
        } else if let Some(board) = singles.iter_mut().find(|board| board.board == chip.board) {
            board.memory_mib += memory_mib(&chip.name);
        } else {
            singles.push(own(chip));
        }
    }
    for chip in remote {
        let board = singles
            .iter_mut()
            .find(|board| board.board == chip.board && board.name == chip.name);
        if let Some(board) = board {
            board.memory_mib += memory_mib(&chip.name);
        }
    }
    boards.extend(singles);
    boards
}

fn own(chip: &Chip) -> Grouped {
    Grouped {
        name: chip.name.clone(),
        board: chip.board.clone(),
        memory_mib: memory_mib(&chip.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(boards: &[(&str, &str, &str)]) -> Vec<(String, u64)> {
        let devices: Vec<Value> = boards
            .iter()
            .map(|(kind, board, bus)| {
                serde_json::json!({"board_info": {"board_type": kind, "board_id": board, "bus_id": bus}})
            })
            .collect();
        let text = serde_json::json!({ "device_info": devices }).to_string();
        group(&parse(&text).unwrap())
            .into_iter()
            .map(|gpu| (gpu.name, gpu.memory_mib / GIB))
            .collect()
    }

    fn gpu(name: &str, gib: u64) -> (String, u64) {
        (name.to_owned(), gib)
    }

    #[test]
    fn two_chip_boards() {
        // n300: the right chip's memory joins the left one's.
        let n300 = [
            ("n300 L", "a", "0000:01:00.0"),
            ("n300 R", "a", "N/A"),
            ("n300 L", "b", "0000:02:00.0"),
            ("n300 R", "b", "N/A"),
        ];
        assert_eq!(found(&n300), [gpu("n300", 24), gpu("n300", 24)]);
        assert_eq!(
            found(&[("p300c L", "a", "1"), ("p300c R", "a", "2")]),
            [gpu("p300", 64)]
        );
    }

    #[test]
    fn single_chips() {
        assert_eq!(
            found(&[("n150", "a", "1"), ("n150", "b", "2")]),
            [gpu("n150", 12), gpu("n150", 12)]
        );
        // A galaxy's Wormhole chips share a board id.
        assert_eq!(
            found(&[("tt-galaxy-wh", "a", "1"), ("tt-galaxy-wh", "a", "2")]),
            [gpu("tt-galaxy-wh", 24)]
        );
        // Blackhole chips are GPUs of their own, but remote ones are not.
        assert_eq!(
            found(&[("p150b", "a", "1"), ("p150a", "a", "2")]),
            [gpu("p150", 32), gpu("p150", 32)]
        );
        assert_eq!(
            found(&[("p300", "a", "N/A"), ("p300", "a", "2")]),
            [gpu("p300", 64)]
        );
        assert_eq!(found(&[("bh-scrappy", "a", "1")]), [gpu("p100a", 28)]);
        assert_eq!(found(&[("new", "a", "1")]), [gpu("new", 0)]);
    }

    #[test]
    fn left_chips_come_first() {
        assert_eq!(
            found(&[("n150", "x", "1"), ("n300 L", "a", "2")]),
            [gpu("n300", 12), gpu("n150", 12)]
        );
        assert!(parse("[]").is_err());
    }
}
