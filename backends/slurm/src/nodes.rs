//! Nodes as `scontrol show -o node` tells of them: a line for each, of `Key=Value` pairs (<https://slurm.schedmd.com/scontrol.html>).

use std::collections::HashMap;

use dstack_units::CpuArchitecture;

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) arch: Option<CpuArchitecture>,
    /// CPUs that jobs may have.
    pub(crate) cpus: i64,
    pub(crate) memory_mib: i64,
    pub(crate) gpus: usize,
    pub(crate) partitions: Vec<String>,
    /// By which Slurm reaches it: a name or an address.
    pub(crate) address: String,
    /// What it calls itself.
    pub(crate) host_name: String,
    /// Jobs start there, now or once others have ended.
    pub(crate) is_up: bool,
}

/// States in which no job starts until somebody does something, and the flag of nodes that do not answer.
const DOWN: &[&str] = &[
    "DOWN",
    "DRAIN",
    "FAIL",
    "ERROR",
    "FUTURE",
    "UNKNOWN",
    "INVAL",
    "MAINT",
    "NOT_RESPONDING",
    "*",
];

/// As many GPUs has no node: more is a mistake.
const MAX_GPUS: usize = 1024;

/// All nodes that the text tells of whole.
pub(crate) fn read_nodes(text: &str) -> Vec<Node> {
    text.lines().filter_map(read_node).collect()
}

fn read_node(line: &str) -> Option<Node> {
    let pairs = pairs(line);
    let get = |key: &str| {
        pairs
            .get(key)
            .map(String::as_str)
            .filter(|value| *value != "(null)")
    };
    let number = |key: &str| get(key)?.parse::<i64>().ok().filter(|number| *number > 0);
    let name = get("nodename").filter(|name| !name.is_empty())?;
    let state = get("state").unwrap_or_default().to_ascii_uppercase();
    Some(Node {
        name: name.to_owned(),
        arch: get("arch").and_then(architecture),
        cpus: number("cpuefctv").or_else(|| number("cputot"))?,
        memory_mib: number("realmemory")?,
        gpus: get("gres").map_or(0, count_gpus),
        partitions: get("partitions").map_or_else(Vec::new, |list| words(list, ',')),
        address: get("nodeaddr").unwrap_or(name).to_owned(),
        host_name: get("nodehostname").unwrap_or(name).to_owned(),
        is_up: !DOWN.iter().any(|down| state.contains(down)),
    })
}

/// Keys are in lower case. Values may have blanks in them; of several pairs with the same key, the first counts: what people write
/// (`Reason`, `Comment`) comes last.
fn pairs(line: &str) -> HashMap<String, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let key = word.split_once('=').filter(|(key, _)| is_key(key));
        match (key, pairs.last_mut()) {
            (Some((key, value)), _) => pairs.push((key.to_ascii_lowercase(), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(' ');
                value.push_str(word);
            }
            (None, None) => {}
        }
    }
    let mut first = HashMap::new();
    for (key, value) in pairs {
        first.entry(key).or_insert(value);
    }
    first
}

fn is_key(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn architecture(text: &str) -> Option<CpuArchitecture> {
    match text.to_ascii_lowercase().as_str() {
        "x86_64" | "amd64" => Some(CpuArchitecture::X86),
        "aarch64" | "arm64" => Some(CpuArchitecture::Arm),
        _ => None,
    }
}

/// Of entries `gpu[:type]:count[(S:…)]`, and others, with commas between them that may stand in brackets as well.
fn count_gpus(gres: &str) -> usize {
    let mut depth = 0_u32;
    let mut outside = String::new();
    for c in gres.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    let counts = outside.split(',').filter_map(|entry| {
        let mut parts = entry.trim().split(':');
        if !parts.next()?.eq_ignore_ascii_case("gpu") {
            return None;
        }
        match parts.next_back() {
            None => Some(1),
            Some(last) => match (last.parse::<usize>(), parts.next_back()) {
                (Ok(count), _) => Some(count),
                // A type alone.
                (Err(_), None) if !last.is_empty() => Some(1),
                (Err(_), _) => None,
            },
        }
    });
    let sum = counts.fold(0_usize, usize::saturating_add);
    if sum > MAX_GPUS { 0 } else { sum }
}

/// Names of partitions, as `sinfo -h -o '%P'` lists them: that which is taken otherwise has a star.
pub(crate) fn read_partitions(text: &str) -> Vec<String> {
    let names = text.lines().map(|line| line.trim().trim_end_matches('*'));
    let mut names: Vec<String> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.dedup();
    names
}

fn words(list: &str, separator: char) -> Vec<String> {
    let words = list
        .split(separator)
        .map(str::trim)
        .filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As Slurm 22.05.8 says it.
    const LINE: &str = "NodeName=node2 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=14 CPUTot=16 CPULoad=1.43 \
        AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:a100:2 NodeAddr=127.0.0.1 NodeHostName=localhost Port=28967 \
        Version=22.05.8 OS=Linux 6.1.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=65536 AllocMem=0 FreeMem=22390 Sockets=16 Boards=1 \
        State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=cpu,gpu  \
        BootTime=2026-11-25T01:08:56 CfgTRES=cpu=16,mem=64G,billing=16 AllocTRES= CapWatts=n/a";

    #[test]
    fn nodes_are_read() {
        let expected = Node {
            name: "node2".to_owned(),
            arch: Some(CpuArchitecture::X86),
            cpus: 14,
            memory_mib: 65_536,
            gpus: 2,
            partitions: vec!["cpu".to_owned(), "gpu".to_owned()],
            address: "127.0.0.1".to_owned(),
            host_name: "localhost".to_owned(),
            is_up: true,
        };
        assert_eq!(
            read_nodes(&format!("{LINE}\n\n")),
            std::slice::from_ref(&expected)
        );
        // What people write takes nothing for itself.
        let reason = format!("{LINE} Reason=broken Gres=gpu:8 State=DOWN [root@2026]");
        assert_eq!(read_nodes(&reason), [expected]);
        let older = LINE.replace("CPUEfctv=14 ", "");
        assert_eq!(read_nodes(&older)[0].cpus, 16);
        for state in ["DOWN", "IDLE+DRAIN", "MIXED*", "down*+drain"] {
            let line = LINE.replace("State=IDLE", &format!("State={state}"));
            assert!(!read_nodes(&line)[0].is_up, "{state}");
        }
        for state in ["MIXED", "ALLOCATED", "IDLE+CLOUD", "COMPLETING"] {
            let line = LINE.replace("State=IDLE", &format!("State={state}"));
            assert!(read_nodes(&line)[0].is_up, "{state}");
        }
        assert_eq!(read_nodes("No nodes in the system\nNodeName=x Arch=x86_64\n"), []);
    }

    #[test]
    fn gpus_are_counted() {
        for (gres, gpus) in [
            ("(null)", 0),
            ("gpu:2", 2),
            ("gpu", 1),
            ("gpu:a100", 1),
            ("gpu:a100:4", 4),
            ("gpu:a100:4(S:0-1)", 4),
            ("gpu:a100:4(S:0,1),gpu:h100:2(S:1)", 6),
            ("nic:2,gpu:1,shard:8", 1),
            ("GPU:3", 3),
            ("gpu:", 0),
            ("gpu:a:b", 0),
            ("gpu:99999999999999999999", 1),
            ("gpu:18446744073709551615,gpu:1", 0),
        ] {
            assert_eq!(count_gpus(gres), gpus, "{gres}");
        }
    }

    #[test]
    fn partitions_are_read() {
        assert_eq!(read_partitions("cpu*\ngpu\n\n"), ["cpu", "gpu"]);
    }

    proptest! {
        #[test]
        fn odd_lines_do_no_harm(text in "([A-Za-z]{0,4}=[^\n]{0,20} ?|NodeName=|Gres=gpu:|RealMemory=|CPUTot=|\\PC|\n){0,20}") {
            for node in read_nodes(&text) {
                prop_assert!(node.cpus > 0 && node.memory_mib > 0 && node.gpus <= MAX_GPUS && !node.name.is_empty());
            }
        }

        #[test]
        fn what_was_written_is_read(gpus in 1_usize..9, cpus in 1_i64..999, memory in 1_i64..9_999_999, kind in "[a-z][a-z0-9]{0,6}") {
            let line = LINE
                .replace("gpu:a100:2", &format!("gpu:{kind}:{gpus}(S:0-1),gres/x:1"))
                .replace("CPUEfctv=14", &format!("CPUEfctv={cpus}"))
                .replace("RealMemory=65536", &format!("RealMemory={memory}"));
            let nodes = read_nodes(&line);
            prop_assert_eq!((nodes[0].gpus, nodes[0].cpus, nodes[0].memory_mib), (gpus, cpus, memory));
        }
    }
}
