//! The run that is asked for: a task whose command is the first script of a container.

use dstack_compute::{ComputeError, ContainerRequest, Workload};
use serde_json::{Map, Value, json};

use crate::offers::can_be_used;
use crate::place::Place;

/// Port of the SSH server of ours in a container: the other server's agent has the usual one, and its ports are not those of jobs.
pub(crate) const SSH_PORT: u16 = 10_023;

/// Port of our agent on the loopback interface, which on a host is neither that of its agent nor of one for jobs.
const HTTP_PORT: u16 = 10_997;

/// Where our agent has what it needs, beside the other server's.
const RUNNER_DIR: &str = "/var/lib/dstack-inner";

/// `run_spec` of `runs/apply`.
///
/// # Errors
/// No run of another server can be like this.
pub(crate) fn run_spec(want: &ContainerRequest, name: &str) -> Result<Value, ComputeError> {
    let (workload, offer) = (&want.workload, &want.offer);
    let place = Place::read(&offer.region).filter(|place| can_be_used(&place.backend));
    let place = place.ok_or_else(|| refused(format!("{} is no region of another server", offer.region)))?;
    if let Some(volume) = workload.volumes.first() {
        return Err(refused(format!(
            "the volume {} is not one of the other server: its runs have none of ours",
            volume.name
        )));
    }
    let key = workload.authorized_keys.first();
    let key = key.ok_or_else(|| refused("a run of another server needs a public key that may log in"))?;
    let mut configuration = json!({
        "type": "task",
        "name": name,
        "image": workload.image,
        "user": "root",
        "shell": "/bin/sh",
        "commands": [command(workload)],
        "privileged": workload.privileged,
        "resources": want.requirements.resources,
        "backends": [place.backend],
        "regions": [place.region],
        "instance_types": [offer.instance.name],
        "spot_policy": if offer.instance.resources.spot { "spot" } else { "on-demand" },
        "creation_policy": "reuse-or-create",
        "retry": false,
        "max_duration": "off",
    });
    if let Some(fields) = configuration.as_object_mut() {
        fields.extend(optional(want));
    }
    Ok(json!({"run_name": name, "configuration": configuration, "ssh_key_pub": key}))
}

/// What is left out where there is nothing of it.
fn optional(want: &ContainerRequest) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(login) = &want.workload.registry {
        let login =
            json!({"username": literal(&login.username), "password": literal(login.password.expose())});
        fields.insert("registry_auth".to_owned(), login);
    }
    // Hosts of SSH fleets cost nothing, which is no price that can be asked for.
    if want.offer.price > 0.0 {
        fields.insert("max_price".to_owned(), json!(want.offer.price));
    }
    let folders = want.workload.folders.iter().map(
        |folder| json!({"instance_path": folder.node_path, "path": folder.path, "optional": folder.optional}),
    );
    let folders: Vec<Value> = folders.collect();
    if !folders.is_empty() {
        fields.insert("volumes".to_owned(), json!(folders));
    }
    fields
}

/// A text that the other server reads as it is. It would put secrets of its project in the place of `${{ secrets.NAME }}`, and send them to a
/// registry that a user here has chosen.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// The script, beside the other server's agent, which is in the same container and has the usual ports and folders.
fn command(workload: &Workload) -> String {
    format!(
        "export DSTACK_BOOTSTRAP_SSH_PORT={SSH_PORT} DSTACK_BOOTSTRAP_HTTP_PORT={HTTP_PORT} \
         DSTACK_BOOTSTRAP_RUNNER_DIR={RUNNER_DIR}\n{}{}",
        let_keys_in(&workload.authorized_keys),
        workload.script
    )
}

/// Where a container is reached through the SSH server of the other server's agent in it, users go through that too, into which the run
/// lets the first key alone. All of them may log in as root by ours in the same container.
fn let_keys_in(authorized_keys: &[String]) -> String {
    let others: Vec<&str> = authorized_keys.iter().skip(1).map(String::as_str).collect();
    if others.is_empty() {
        return String::new();
    }
    format!(
        "(\numask 077\nmkdir -p /root/.ssh\nwhile read -r key; do\n  \
         printf '\\n%s\\n' \"$key\" >> /root/.ssh/authorized_keys\n\
         done <<'END_OF_KEYS'\n{}\nEND_OF_KEYS\n)\n",
        others.join("\n")
    )
}

pub(crate) fn refused(text: impl Into<String>) -> ComputeError {
    ComputeError::Refused(text.into())
}
