//! A host that was set up anew, or whose keys were replaced, is accepted again.

use dstack_model::reach::Reach;
use dstack_store::rows::{AgentAddress, InstanceRow, OperationKind, OperationRow};
use dstack_store::{Json, events};
use dstack_units::ProjectId;

use super::{FleetRights, Fleets, check_rights};
use crate::core::Actor;
use crate::error::{ControlError, Result};

/// A host key that is accepted from now on.
#[derive(Debug, Clone)]
pub struct TrustedHost {
    /// In which project.
    pub project: ProjectId,
    /// Name of the fleet.
    pub fleet: String,
    /// Number of the host's instance.
    pub instance_num: i64,
    /// Fingerprint of the key: `SHA256:` and base64 without padding.
    pub host_key: String,
    /// It is the key of the jump host before the host.
    pub jump_host: bool,
}

impl Fleets {
    /// Accepts a host key in place of those that were seen before, and has the host set up again.
    ///
    /// # Errors
    /// There is no such host, it was never connected to, or the text is no fingerprint.
    pub async fn trust_host(&self, actor: Actor, rights: FleetRights, host: &TrustedHost) -> Result<()> {
        check_rights(true, rights)?;
        if !is_fingerprint(&host.host_key) {
            return Err(ControlError::refused(format!(
                "{:?} is not the fingerprint of a host key: it has to look like SHA256:AbC... as `ssh-keygen -lf` prints it",
                host.host_key
            )));
        }
        let busy = format!(
            "Fleet {} is being processed currently. Try again later.",
            host.fleet
        );
        self.core
            .retry_on_conflict(&busy, || self.try_trust_host(actor, host))
            .await
    }

    async fn try_trust_host(&self, actor: Actor, host: &TrustedHost) -> Result<()> {
        let fleet = self.core.store.fleet_by_name(host.project, &host.fleet).await?;
        let fleet = fleet.ok_or_else(ControlError::not_found)?;
        let snapshot = self.core.store.fleet(fleet.id).await?;
        let snapshot = snapshot.ok_or_else(ControlError::not_found)?;
        let mut rows = snapshot.instances.iter();
        let named = |row: &&InstanceRow| row.instance_num == host.instance_num && row.status().is_active();
        let named = rows.find(named).ok_or_else(ControlError::not_found)?;
        let found = self.core.store.instance(named.id).await?;
        let found = found.ok_or_else(ControlError::not_found)?;
        let before = &found.instance;
        let Some(AgentAddress::Ssh {
            reach,
            shim_port,
            runtime,
        }) = before.agent.as_deref()
        else {
            return Err(ControlError::refused(format!(
                "{} has not been connected to yet: its first host key is accepted as it is",
                before.name
            )));
        };
        let mut reach = Reach::clone(reach);
        let hop = match host.jump_host {
            false => &mut reach.host,
            true => reach.jumps.last_mut().ok_or_else(|| {
                ControlError::refused(format!("{} is reached without a jump host", before.name))
            })?,
        };
        hop.host_keys = vec![host.host_key.clone()];
        let text = format!("Host key accepted for {}: {}", hop.host, host.host_key);
        let mut row = before.clone();
        row.agent = Some(Json::new(AgentAddress::Ssh {
            reach: Box::new(reach),
            shim_port: *shim_port,
            runtime: runtime.clone(),
        }));
        row.last_processed_at = self.core.now();
        let mut changes = self.core.changes(actor);
        changes.note(text, vec![events::instance(&row)]);
        changes.update(before, row);
        // A machine that was installed anew has no agent; where there is one, nothing happens to it.
        let is_preparation = |operation: &&OperationRow| operation.kind == OperationKind::Prepare;
        if let Some(last) = found.operations.iter().rev().find(is_preparation) {
            changes.intend(last.clone().anew(self.core.now()));
        }
        self.core.commit(changes).await
    }
}

/// Whether it is a SHA-256 in base64 without padding, as OpenSSH writes it.
fn is_fingerprint(text: &str) -> bool {
    let base64 = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
    text.strip_prefix("SHA256:")
        .is_some_and(|hash| hash.len() == 43 && hash.chars().all(base64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_those_of_openssh() {
        assert!(is_fingerprint(
            "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
        ));
        for other in [
            "",
            "SHA256:",
            "MD5:16:27:ac:a5",
            "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU=",
        ] {
            assert!(!is_fingerprint(other), "{other}");
        }
    }
}
