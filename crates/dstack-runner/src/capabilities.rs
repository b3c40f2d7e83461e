//! What the kernel lets the runner do.

/// Effective capabilities of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

const CHOWN: u64 = 1 << 0;
const SETGID: u64 = 1 << 6;
const SETUID: u64 = 1 << 7;
const SYS_RESOURCE: u64 = 1 << 24;

impl Capabilities {
    /// Reads them from `/proc`; none when that cannot be read.
    pub fn effective() -> Self {
        parse(&fs_err::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Whether commands can be started as another user and files given away.
    pub const fn can_switch_user(self) -> bool {
        self.0 & (CHOWN | SETGID | SETUID) == CHOWN | SETGID | SETUID
    }

    /// Whether limits can be raised.
    pub const fn can_raise_limits(self) -> bool {
        self.0 & SYS_RESOURCE != 0
    }
}

fn parse(status: &str) -> Capabilities {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .unwrap_or_default();
    Capabilities(u64::from_str_radix(mask.trim(), 16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask() {
        let root = parse("Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n");
        assert!(root.can_switch_user() && root.can_raise_limits());
        let docker = parse("CapEff:\t00000000a80425fb\n");
        assert!(docker.can_switch_user() && !docker.can_raise_limits());
        assert!(!parse("").can_switch_user());
        assert!(!parse("CapEff:\t0000000000000081\n").can_switch_user());
    }
}
