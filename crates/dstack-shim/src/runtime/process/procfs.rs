//! Processes as /proc shows them.

use rustix::process::{Pid, Signal, kill_process};

use super::files::Identity;

/// What is read of /proc/<pid>/stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
    start_time: u64,
}

fn parse(text: &str) -> Option<Stat> {
    // The name in parentheses may hold anything, also parentheses.
    let rest = text.get(text.rfind(')')? + 2..)?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // `starttime` is field 22; `ppid` was field 4.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        state,
        parent,
        start_time,
    })
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn boot_id() -> String {
    fs_err::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Who this process is.
pub(super) fn own_identity() -> Identity {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    Identity {
        pid,
        start_time: stat(pid).map_or(0, |stat| stat.start_time),
        boot_id: boot_id(),
    }
}

/// Whether that very process lives. One that has ended and was not yet collected does not.
pub(super) fn is_alive(identity: &Identity) -> bool {
    identity.boot_id == boot_id()
        && stat(identity.pid)
            .is_some_and(|stat| stat.start_time == identity.start_time && !matches!(stat.state, 'Z' | 'X'))
}

/// Processes whose parent is `pid`.
pub(super) fn children(pid: i32) -> Vec<i32> {
    all()
        .into_iter()
        .filter(|(_, parent)| *parent == pid)
        .map(|(child, _)| child)
        .collect()
}

fn all() -> Vec<(i32, i32)> {
    let Ok(entries) = fs_err::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.parent)))
        .collect()
}

/// Kills a process and all its descendants, which are stopped first so that they cannot fork away.
pub(super) fn kill_tree(root: i32) {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next).copied() {
        signal(pid, Signal::STOP);
        tree.extend(children(pid));
        next += 1;
    }
    for pid in tree {
        signal(pid, Signal::KILL);
    }
}

/// Sends a signal; a process that is gone is fine.
pub(super) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        let line =
            "42 (a) b) S 7 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 987654 1000 10 18446744073709551615";
        assert_eq!(
            parse(line),
            Some(Stat {
                state: 'S',
                parent: 7,
                start_time: 987_654
            })
        );
        assert_eq!(parse("42"), None);
    }

    #[test]
    fn identity_is_more_than_the_process_id() {
        let me = own_identity();
        assert!(is_alive(&me));
        assert!(!is_alive(&Identity {
            start_time: me.start_time + 1,
            ..me.clone()
        }));
        assert!(!is_alive(&Identity {
            boot_id: "other".into(),
            ..me
        }));
    }

    #[test]
    fn a_tree_is_killed() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & sleep 1000"])
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        kill_tree(pid);
        assert!(!child.wait().unwrap().success());
        assert!(children(pid).is_empty());
    }
}
