//! What goes through the network of the job's container.

use std::path::Path;

/// The network interfaces that were there before the job: what it makes itself (bridges and tunnels, those of containers in it) leads
/// through them, and would be counted twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Network {
    interfaces: Vec<String>,
}

/// Bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Traffic {
    pub(super) received: i64,
    pub(super) sent: i64,
}

impl Network {
    /// That of this process.
    pub(super) fn at(proc: &Path) -> Self {
        let all = read(proc).unwrap_or_default().into_iter();
        let interfaces = all.map(|(name, _)| name).filter(|name| name != "lo");
        Self {
            interfaces: interfaces.collect(),
        }
    }

    /// `None`: there are no interfaces, or it cannot be read.
    pub(super) fn traffic(&self, proc: &Path) -> Option<Traffic> {
        if self.interfaces.is_empty() {
            return None;
        }
        let all = read(proc)?.into_iter();
        let own = all.filter(|(name, _)| self.interfaces.contains(name));
        Some(own.fold(Traffic::default(), |sum, (_, one)| Traffic {
            received: sum.received.saturating_add(one.received),
            sent: sum.sent.saturating_add(one.sent),
        }))
    }
}

/// All interfaces with what went through them (proc_net_dev(5)).
fn read(proc: &Path) -> Option<Vec<(String, Traffic)>> {
    let text = fs_err::read_to_string(proc.join("self/net/dev")).ok()?;
    // Two lines of headings come first.
    Some(text.lines().skip(2).filter_map(interface).collect())
}

/// `eth0: <received bytes> <7 more of what was received> <sent bytes> ...`.
fn interface(line: &str) -> Option<(String, Traffic)> {
    let (name, counters) = line.rsplit_once(':')?;
    let counters: Vec<&str> = counters.split_whitespace().collect();
    let bytes = |place: usize| -> Option<i64> {
        let count: u64 = counters.get(place)?.parse().ok()?;
        Some(i64::try_from(count).unwrap_or(i64::MAX))
    };
    let traffic = Traffic {
        received: bytes(0)?,
        sent: bytes(8)?,
    };
    Some((name.trim().to_owned(), traffic))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADINGS: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

    fn write(proc: &Path, lines: &[(&str, u64, u64)]) {
        let lines = lines.iter().map(|(name, received, sent)| {
            format!("{name:>6}: {received:>8}      14    0    0    0     0          0         0 {sent:>8}      10    0    0    0     0       0          0\n")
        });
        let text: String = [HEADINGS.to_owned()].into_iter().chain(lines).collect();
        fs_err::create_dir_all(proc.join("self/net")).unwrap();
        fs_err::write(proc.join("self/net/dev"), text).unwrap();
    }

    #[test]
    fn interfaces_that_were_there_before_the_job_are_summed_up() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
        write(proc, &[("lo", 500, 500), ("eth0", 1000, 20), ("eth1", 1, 2)]);
        let network = Network::at(proc);
        let traffic = |received, sent| Some(Traffic { received, sent });
        assert_eq!(network.traffic(proc), traffic(1001, 22));
        // Containers in the job: what they receive came by `eth0`.
        write(
            proc,
            &[
                ("lo", 900, 900),
                ("docker0", 70, 700),
                ("eth0", 2000, u64::MAX),
                ("veth1", 70, 700),
            ],
        );
        assert_eq!(network.traffic(proc), traffic(2000, i64::MAX));
        fs_err::remove_file(proc.join("self/net/dev")).unwrap();
        assert_eq!(network.traffic(proc), None);
    }

    #[test]
    fn a_container_without_a_network_has_no_traffic() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("lo", 5, 5)]);
        assert_eq!(Network::at(dir.path()).traffic(dir.path()), None);
        assert_eq!(Network::at(&dir.path().join("none")).traffic(dir.path()), None);
    }
}
