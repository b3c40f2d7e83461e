//! Which machine is which: two names, or two ports, may lead to one.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::DeployError;
use super::host::{As, Host};
use super::script::script;

const LIMIT: Duration = Duration::from_secs(20);

/// The kernel as it was started last, and in it what tells containers apart: copies of a virtual machine differ in the one, of
/// a container in the other, and may share everything that stands on their disks.
const ID: &str = r#"
say kernel "$(cat /proc/sys/kernel/random/boot_id)"
say network "$(readlink /proc/self/ns/net)"
"#;

/// What tells the machine from all others that run now; `None`: it does not tell.
pub(super) async fn id(host: &Host) -> Result<Option<String>, DeployError> {
    let said = host
        .run(As::User, LIMIT, "asking which machine it is", &script(&[], ID))
        .await?;
    Ok(identity(said.get("kernel"), said.get("network")))
}

/// Longest identity that is kept as it is, in bytes: a boot id and the name of a namespace have 54 together.
const MAX_LENGTH: usize = 128;

/// Of what the machine says of itself; `None` if it does not say both. It is kept, and looked up: what is longer than such names are is
/// told apart by its hash.
fn identity(kernel: &str, network: &str) -> Option<String> {
    if kernel.is_empty() || network.is_empty() {
        return None;
    }
    let said = format!("{kernel} {network}");
    Some(match said.len() <= MAX_LENGTH {
        true => said,
        false => format!("sha256 {}", hex::encode(Sha256::digest(said))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_of_itself_is_kept_in_bounded_length() {
        let boot = "1a7c1f0e-9c8f-4d6e-8a53-6d6f0c2b5f11";
        let usual = identity(boot, "net:[4026531840]").unwrap();
        assert_eq!(usual, format!("{boot} net:[4026531840]"));
        let long = |end: &str| identity(boot, &format!("{}{end}", "n".repeat(100_000))).unwrap();
        assert!(long("1").len() <= MAX_LENGTH);
        assert_eq!(long("1"), long("1"));
        assert_ne!(long("1"), long("2"));
        assert_eq!((identity("", "net:[1]"), identity(boot, "")), (None, None));
    }
}
