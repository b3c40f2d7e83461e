//! Which machine is which: two names, or two ports, may lead to one.

use std::time::Duration;

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
    let (kernel, network) = (said.get("kernel"), said.get("network"));
    let is_known = !kernel.is_empty() && !network.is_empty();
    Ok(is_known.then(|| format!("{kernel} {network}")))
}
