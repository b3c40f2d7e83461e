//! Resource usage of the container the runner is in.

mod gpu;
mod network;

use std::io;
use std::path::{Path, PathBuf};

use dstack_agent_api::runner::Metrics;
use dstack_system::task;
use dstack_units::Time;

use network::{Network, Traffic};

/// Reads usage from the runner's control group, and from the job's network where it has one of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    proc: PathBuf,
    mounts: Mounts,
    network: Option<Network>,
}

/// Where the control groups are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mounts {
    V2(PathBuf),
    V1 { cpu: PathBuf, memory: PathBuf },
}

/// Usage that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A file of the control group.
    #[error("cannot read the control group")]
    Read(#[source] io::Error),
    /// A file does not hold what it should.
    #[error("{0} has no {1}")]
    Missing(PathBuf, &'static str),
}

impl Collector {
    /// Finds the control groups of this machine; `None`: there are none. `own_network`: what goes through the network that is seen
    /// here is of the job alone.
    pub fn detect(own_network: bool) -> Option<Self> {
        Self::at("/proc".into(), own_network)
    }

    fn at(proc: PathBuf, own_network: bool) -> Option<Self> {
        let text = fs_err::read_to_string(proc.join("self/mounts")).ok()?;
        let mounts = parse_mounts(&text)?;
        let network = own_network.then(|| Network::at(&proc));
        Some(Self {
            proc,
            mounts,
            network,
        })
    }

    /// Usage now. A GPU tool that fails leaves the GPUs out.
    pub async fn collect(&self, now: Time) -> Result<Metrics, MetricsError> {
        let collector = self.clone();
        let read = move || Ok((collector.cgroup()?, collector.network()));
        let ((cpu, memory, working_set), traffic) = task::blocking("metrics", read)
            .await
            .unwrap_or_else(|_| Err(MetricsError::Read(io::ErrorKind::Other.into())))?;
        Ok(Metrics {
            timestamp_micro: now.as_micros(),
            cpu_usage_micro: cpu,
            memory_usage_bytes: memory,
            memory_working_set_bytes: working_set,
            gpus: gpu::collect().await,
            network_receive_bytes: traffic.map(|traffic| traffic.received),
            network_transmit_bytes: traffic.map(|traffic| traffic.sent),
        })
    }

    fn network(&self) -> Option<Traffic> {
        self.network.as_ref()?.traffic(&self.proc)
    }

    fn cgroup(&self) -> Result<(i64, i64, i64), MetricsError> {
        let own = read(&self.proc.join("self/cgroup"))?;
        match &self.mounts {
            Mounts::V2(mount) => {
                let dir = dir_of(mount, &own, |line| line.strip_prefix("0::"));
                let cpu = field(&dir.join("cpu.stat"), "usage_usec")?;
                let memory = number(&dir.join("memory.current"))?;
                let inactive = field(&dir.join("memory.stat"), "inactive_file")?;
                Ok((cpu, memory, (memory - inactive).max(0)))
            }
            Mounts::V1 { cpu, memory } => {
                let cpu = dir_of(cpu, &own, |line| of_controller(line, "cpuacct"));
                let memory = dir_of(memory, &own, |line| of_controller(line, "memory"));
                let used = number(&memory.join("memory.usage_in_bytes"))?;
                let inactive = field(&memory.join("memory.stat"), "total_inactive_file")?;
                Ok((
                    number(&cpu.join("cpuacct.usage"))? / 1000,
                    used,
                    (used - inactive).max(0),
                ))
            }
        }
    }
}

fn parse_mounts(mounts: &str) -> Option<Mounts> {
    let mut v2 = None;
    let (mut cpu, mut memory) = (None, None);
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(_), Some(path), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = || PathBuf::from(path.replace("\\040", " "));
        let has = |name: &str| options.split(',').any(|option| option == name);
        match kind {
            "cgroup2" => v2 = v2.or_else(|| Some(path())),
            "cgroup" if has("cpuacct") => cpu = Some(path()),
            "cgroup" if has("memory") => memory = Some(path()),
            _ => {}
        }
    }
    // A hybrid machine mounts an empty v2 tree beside the v1 controllers, which then are the ones that count.
    match (cpu, memory) {
        (Some(cpu), Some(memory)) => Some(Mounts::V1 { cpu, memory }),
        _ => v2.map(Mounts::V2),
    }
}

/// The group's directory: below the mount, or the mount itself where the container sees its own group as the root.
fn dir_of<'a>(mount: &Path, own: &'a str, path: impl Fn(&'a str) -> Option<&'a str>) -> PathBuf {
    let below = own
        .lines()
        .find_map(path)
        .unwrap_or_default()
        .trim_start_matches('/');
    let dir = mount.join(below);
    if dir.is_dir() { dir } else { mount.to_owned() }
}

fn of_controller<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':');
    let controllers = fields.nth(1)?;
    controllers
        .split(',')
        .any(|controller| controller == name)
        .then(|| fields.next())
        .flatten()
}

fn read(path: &Path) -> Result<String, MetricsError> {
    fs_err::read_to_string(path).map_err(MetricsError::Read)
}

fn number(path: &Path) -> Result<i64, MetricsError> {
    read(path)?
        .trim()
        .parse()
        .map_err(|_| MetricsError::Missing(path.to_owned(), "number"))
}

fn field(path: &Path, name: &'static str) -> Result<i64, MetricsError> {
    let text = read(path)?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    value.ok_or_else(|| MetricsError::Missing(path.to_owned(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content.replace("ROOT", dir.path().to_str().unwrap())).unwrap();
        }
        dir
    }

    #[test]
    fn reads_v2() {
        let dir = tree(&[
            (
                "proc/self/mounts",
                "proc /proc proc rw 0 0\ncgroup2 ROOT/cg cgroup2 rw 0 0\n",
            ),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cg/a/b/cpu.stat", "usage_usec 123\nuser_usec 1\n"),
            ("cg/a/b/memory.current", "1000\n"),
            ("cg/a/b/memory.stat", "anon 1\ninactive_file 300\n"),
        ]);
        let collector = Collector::at(dir.path().join("proc"), false).unwrap();
        assert_eq!(collector.cgroup().unwrap(), (123, 1000, 700));
        fs_err::write(dir.path().join("cg/a/b/memory.stat"), "inactive_file 3000\n").unwrap();
        assert_eq!(collector.cgroup().unwrap().2, 0);
        fs_err::write(dir.path().join("cg/a/b/cpu.stat"), "").unwrap();
        assert!(collector.cgroup().is_err());
    }

    #[test]
    fn reads_v1_also_beside_an_empty_v2() {
        let dir = tree(&[
            (
                "proc/self/mounts",
                "cgroup2 ROOT/unified cgroup2 rw 0 0\ncgroup ROOT/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup ROOT/mem cgroup rw,memory 0 0\n",
            ),
            (
                "proc/self/cgroup",
                "4:memory:/m\n3:cpu,cpuacct:/not/mounted\n0::/x\n",
            ),
            ("cpu/cpuacct.usage", "5000\n"),
            ("mem/m/memory.usage_in_bytes", "900\n"),
            ("mem/m/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n"),
        ]);
        let collector = Collector::at(dir.path().join("proc"), false).unwrap();
        assert_eq!(collector.cgroup().unwrap(), (5, 900, 800));
    }

    #[tokio::test]
    async fn what_goes_through_the_network_is_told_where_it_is_of_the_job_alone() {
        let dir = tree(&[
            ("proc/self/mounts", "cgroup2 ROOT/cg cgroup2 rw 0 0\n"),
            ("proc/self/cgroup", "0::/\n"),
            (
                "proc/self/net/dev",
                "a|b\nc|d\neth0: 7 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n",
            ),
            ("cg/cpu.stat", "usage_usec 1\n"),
            ("cg/memory.current", "1\n"),
            ("cg/memory.stat", "inactive_file 0\n"),
        ]);
        let measured = async |own_network| {
            let collector = Collector::at(dir.path().join("proc"), own_network).unwrap();
            let metrics = collector.collect(Time::EPOCH).await.unwrap();
            (metrics.network_receive_bytes, metrics.network_transmit_bytes)
        };
        assert_eq!(measured(true).await, (Some(7), Some(9)));
        assert_eq!(measured(false).await, (None, None), "it may be the host's");
    }

    #[test]
    fn no_control_groups_no_metrics() {
        let dir = tree(&[("proc/self/mounts", "proc /proc proc rw 0 0\n")]);
        assert_eq!(Collector::at(dir.path().join("proc"), false), None);
        assert_eq!(Collector::at(dir.path().join("none"), true), None);
    }
}
