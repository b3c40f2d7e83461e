//! Slurm's commands. Options that they do not know are refused as the real ones do.

use dstack_backend_kit::Ledger;
use tokio::time::Instant;

use crate::shell::Said;
use crate::{Job, Node, Slurm};

/// Seconds since 1970 when a cluster begins.
const EPOCH: u64 = 1_700_000_000;

/// Answers a command; `None`: it is not of Slurm.
pub(crate) fn run(slurm: &Slurm, name: &str, arguments: &[&str], input: &str) -> Option<Said> {
    Some(match name {
        "scontrol" => scontrol(slurm, arguments),
        "sinfo" => sinfo(slurm, arguments),
        "sbatch" => sbatch(slurm, arguments, input),
        "squeue" => squeue(slurm, arguments),
        "scancel" => scancel(slurm, arguments),
        "getent" => getent(arguments),
        _ => return None,
    })
}

fn scontrol(slurm: &Slurm, arguments: &[&str]) -> Said {
    match arguments {
        ["ping"] => Said::of("Slurmctld(primary) at head is UP\n"),
        ["show", "-o", "node"] => Said::of(slurm.0.nodes.iter().map(describe).collect::<String>()),
        ["show", "-o", one] if one.starts_with("node=") => {
            let names: Vec<&str> = one["node=".len()..].split(',').collect();
            let find = |name: &&str| slurm.0.nodes.iter().find(|node| node.name == **name);
            match names.iter().map(find).collect::<Option<Vec<&Node>>>() {
                Some(nodes) => Said::of(nodes.into_iter().map(describe).collect::<String>()),
                None => Said::error(1, format!("Node {one} not found\n")),
            }
        }
        _ => Said::error(1, format!("invalid keyword: {arguments:?}\n")),
    }
}

fn describe(node: &Node) -> String {
    let gres = match node.gpus {
        0 => "(null)".to_owned(),
        gpus => format!("gpu:a100:{gpus}(S:0-1)"),
    };
    let (name, partitions) = (&node.name, node.partitions.join(","));
    format!(
        "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.01 Gres={gres} NodeAddr={name} \
         NodeHostName={name} Version=22.05.8 OS=Linux 6.1.0 #1 SMP  RealMemory=65536 AllocMem=0 State=IDLE Partitions={partitions}  \
         CfgTRES=cpu=16,mem=64G,billing=16\n"
    )
}

fn sinfo(slurm: &Slurm, arguments: &[&str]) -> Said {
    if arguments != ["-h", "-o", "%P"] {
        return Said::error(1, "sinfo: unrecognized option\n");
    }
    let mut names: Vec<&String> = slurm.0.nodes.iter().flat_map(|node| &node.partitions).collect();
    names.sort();
    names.dedup();
    let line = |(at, name): (usize, &&String)| format!("{name}{}\n", if at == 0 { "*" } else { "" });
    Said::of(names.iter().enumerate().map(line).collect::<String>())
}

/// Options of the script's head.
#[derive(Debug, Default)]
struct Asked<'a> {
    name: &'a str,
    partitions: Vec<&'a str>,
    nodes: usize,
    gpus: usize,
}

fn sbatch(slurm: &Slurm, arguments: &[&str], script: &str) -> Said {
    if arguments != ["--parsable"] || !script.starts_with("#!/bin/sh\n") {
        return Said::error(255, "sbatch: unrecognized option\n");
    }
    let asked = match asked_for(script) {
        Ok(asked) => asked,
        Err(option) => return Said::error(255, format!("sbatch: unrecognized option '{option}'\n")),
    };
    let failed = |text: &str| Said::error(1, format!("sbatch: error: Batch job submission failed: {text}\n"));
    let known = |partition: &&str| {
        slurm
            .0
            .nodes
            .iter()
            .any(|node| node.partitions.iter().any(|name| name == partition))
    };
    if asked.partitions.is_empty() || !asked.partitions.iter().all(known) {
        return failed("Invalid partition name specified");
    }
    let fits = |node: &&Node| {
        let is_in = asked
            .partitions
            .iter()
            .any(|partition| node.partitions.iter().any(|name| name == partition));
        is_in && node.gpus >= asked.gpus
    };
    let nodes: Vec<String> = slurm
        .0
        .nodes
        .iter()
        .filter(fits)
        .take(asked.nodes)
        .map(|node| node.name.clone())
        .collect();
    if nodes.len() < asked.nodes || asked.nodes == 0 {
        return failed("Requested node configuration is not available");
    }
    let id = submit(slurm, &slurm.0.ledger, &asked, nodes);
    Said::of(format!("{id}\n"))
}

fn submit(slurm: &Slurm, ledger: &Ledger, asked: &Asked<'_>, nodes: Vec<String>) -> String {
    let mut state = slurm.lock();
    let id = (1_000 + ledger.count()).to_string();
    ledger.made("job", &id, asked.name);
    let now = Instant::now();
    let job = Job {
        id: id.clone(),
        name: asked.name.to_owned(),
        partitions: asked.partitions.iter().map(|name| (*name).to_owned()).collect(),
        nodes,
        made_at: now,
        listed_at: now + state.lag,
        cancelled_at: None,
        lost_at: None,
        waits: state.is_full,
    };
    state.jobs.push(job);
    id
}

fn asked_for(script: &str) -> Result<Asked<'_>, &str> {
    let mut asked = Asked::default();
    for line in script.lines().filter_map(|line| line.strip_prefix("#SBATCH ")) {
        match line.split_once('=').unwrap_or((line, "")) {
            ("--job-name", name) if name.len() <= 64 => asked.name = name,
            ("--partition", names) => asked.partitions = names.split(',').collect(),
            ("--nodes", count) => asked.nodes = count.parse().map_err(|_| line)?,
            ("--gres", gres) => {
                let count = gres.strip_prefix("gpu:").and_then(|count| count.parse().ok());
                asked.gpus = count.ok_or(line)?;
            }
            ("--cpus-per-task" | "--ntasks-per-node", count) => drop(count.parse::<u32>().map_err(|_| line)?),
            ("--mem", size) => drop(
                size.strip_suffix('M')
                    .and_then(|size| size.parse::<u32>().ok())
                    .ok_or(line)?,
            ),
            ("--output", "/dev/null") | ("--no-requeue", "") => {}
            _ => return Err(line),
        }
    }
    Ok(asked)
}

fn squeue(slurm: &Slurm, arguments: &[&str]) -> Said {
    let (mut ids, mut name, mut format, mut is_all) = (None, None, "", false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "-h" => {}
            "-t" => is_all = rest.next() == Some(&"all"),
            // Its own: there is one user.
            "-u" => drop(rest.next()),
            "-j" => ids = rest.next().map(|list| list.split(',').collect::<Vec<_>>()),
            "-o" => format = rest.next().unwrap_or(&""),
            "--only-job-state" if slurm.0.is_new => {}
            option => match option.strip_prefix("--name=") {
                Some(wanted) => name = Some(wanted),
                None => return Said::error(1, format!("squeue: unrecognized option '{option}'\n")),
            },
        }
    }
    let state = slurm.lock();
    let listed = || {
        state
            .jobs
            .iter()
            .filter(|job| job.listed_at <= Instant::now() && !job.is_forgotten())
    };
    if let Some([id]) = ids.as_deref()
        && !listed().any(|job| job.id == *id)
    {
        return Said::error(1, "slurm_load_jobs error: Invalid job id specified\n");
    }
    let wanted = listed().filter(|job| {
        ids.as_ref().is_none_or(|ids| ids.contains(&job.id.as_str()))
            && name.is_none_or(|name| job.name == name)
            && (is_all || !job.is_over())
    });
    Said::of(
        wanted
            .map(|job| fill_in(slurm, format, job) + "\n")
            .collect::<String>(),
    )
}

fn fill_in(slurm: &Slurm, format: &str, job: &Job) -> String {
    let has_nodes = job.state() != "PENDING";
    let made_at = EPOCH + job.made_at.duration_since(slurm.0.begun).as_secs();
    let (first, all) = (job.partitions[0].clone(), job.partitions.join(","));
    let fields = [
        ("%A", job.id.clone()),
        ("%T", job.state().to_owned()),
        ("%D", job.nodes.len().to_string()),
        ("%V", made_at.to_string()),
        ("%P", if has_nodes { first } else { all }),
        (
            "%N",
            if has_nodes {
                job.nodes.join(",")
            } else {
                String::new()
            },
        ),
        ("%r", job.reason().to_owned()),
        ("%j", job.name.clone()),
    ];
    fields.iter().fold(format.to_owned(), |text, (field, value)| {
        text.replace(field, value)
    })
}

fn scancel(slurm: &Slurm, arguments: &[&str]) -> Said {
    let [name, id] = arguments else {
        return Said::error(1, "scancel: unrecognized option\n");
    };
    let mut state = slurm.lock();
    let Some(job) = state.jobs.iter_mut().find(|job| job.id == *id) else {
        return Said::error(
            1,
            format!("scancel: error: Kill job error on job id {id}: Invalid job id specified\n"),
        );
    };
    if name.strip_prefix("--name=") == Some(job.name.as_str()) && job.cancelled_at.is_none() {
        job.cancelled_at = Some(Instant::now());
    }
    Said::of("")
}

/// Nodes have addresses by the numbers at the end of their names.
fn getent(arguments: &[&str]) -> Said {
    let [_, names @ ..] = arguments else {
        return Said::error(1, "Usage: getent\n");
    };
    // The script takes the status of a missing name for none.
    let names = names.iter().take_while(|word| **word != "||");
    let line = |name: &&str| {
        let number = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        format!("10.0.0.{number}        {name}\n")
    };
    Said::of(names.map(line).collect::<String>())
}
