use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{KEEP_GPUS, Made, apt_install, compute_error, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Marks, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::instances::Gpu;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use serde_json::{Value, json};

use crate::client::{self, Kind, NewMachine, OperationState};
use crate::placements::has_fabric;
use crate::{Crusoe, removed, told};

/// Longest name of a machine or disk.
const NAME_LENGTH: usize = 60;

/// The user that the vendor's images have.
const USER: &str = "ubuntu";

/// Pieces of a machine, in the order in which they are made.
const DISK: &str = "disk";
const MACHINE: &str = "machine";

/// Pause while a disk is made.
const DISK_INTERVAL: Duration = Duration::from_secs(3);

/// Pause while a machine starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// Of a machine that does not run any more.
const OVER: &[&str] = &["DELETING", "DELETED", "STOPPING", "STOPPED", "SHUTOFF", "FAILED"];

/// First of all, so that nobody uses Docker before its files are where there is room for them: masked, nothing starts it again.
const HOLD_DOCKER: &str = "systemctl mask --now docker.socket docker.service
systemctl stop docker.socket docker.service containerd";

/// The images' SSH server forwards nothing. This is last of all: a machine is taken as soon as its agent is reached.
const ALLOW_FORWARDING: &str = "sed -i 's/.*AllowTcpForwarding.*/AllowTcpForwarding yes/' /etc/ssh/sshd_config; \
    systemctl restart ssh";

/// The system's disk is small: images and containers go to the data disk, or else to the NVMe drives of the machine, which are made one.
/// What is there already stays, as the script may run at each start.
const USE_DISK: &str = "\
disk=
if [ -b /dev/vdb ]; then disk=/dev/vdb
elif ls /dev/md[0-9]* >/dev/null 2>&1; then disk=$(ls /dev/md[0-9]* | head -n 1)
else
  drives=$(ls /dev/nvme*n1 2>/dev/null)
  count=$(echo $drives | wc -w)
  if [ \"$count\" -eq 1 ]; then disk=$drives
  elif [ \"$count\" -gt 1 ]; then
    command -v mdadm >/dev/null || install_mdadm
    mdadm --create /dev/md0 --level=0 --raid-devices=$count $drives --force --run && disk=/dev/md0
  fi
fi
if [ -n \"$disk\" ] && ! mountpoint -q /data; then
  blkid \"$disk\" >/dev/null || mkfs.ext4 -q -F \"$disk\"
  mkdir -p /data /var/lib/docker /var/lib/containerd
  if mount \"$disk\" /data; then
    for folder in containerd docker; do
      [ -d /data/$folder ] || cp -a /var/lib/$folder /data/
      mount --bind /data/$folder /var/lib/$folder
    done
  fi
fi";

/// Of the images with drivers for AMD it is not known that they have it.
const START_DOCKER: &str = "systemctl unmask docker.socket docker.service
command -v docker >/dev/null || install_docker
systemctl start containerd docker.socket docker.service";

#[async_trait]
impl Lifecycle<Machine> for Crusoe {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let underway = |doing: &str, again: Duration| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again,
        };
        let disk = match needs_disk(&want.offer) {
            true => Some(self.ensure_disk(want, call).await?),
            false => None,
        };
        if let Some(disk) = &disk
            && call.made::<Made>(MACHINE)?.is_none()
            // What it tells nothing of yet is not made.
            && self.is_being_made(Kind::Disk, &disk.id).await?.unwrap_or(disk.is_new(call))
        {
            return Ok(underway("the disk is made", DISK_INTERVAL));
        }
        let disk = disk.map(|disk| disk.id);
        let name = want.marks.name(NAME_LENGTH);
        let ask = async || Ok(Made::now(self.start(want, &name, disk.as_deref()).await?, call));
        let find = || self.find_machine(&name, call);
        let made: Made = call.make(MACHINE, LISTED_WITHIN, ask, find).await?;
        if self.is_being_made(Kind::Machine, &made.id).await? == Some(true) {
            return Ok(underway("the machine starts", STARTS_INTERVAL));
        }
        let Some(machine) = told(self.client.machine(&made.id).await)? else {
            return match made.is_new(call) {
                true => Ok(underway("the machine is listed", STARTS_INTERVAL)),
                false => Err(ComputeError::Broken(
                    "Crusoe does not have the machine".to_owned(),
                )),
            };
        };
        if let Some(end) = end_of(&machine) {
            return Err(ComputeError::Broken(end));
        }
        Ok(match addresses(&machine) {
            Some(addresses) => Step::Ready(place(&want.offer, made.id, addresses, disk.as_deref())),
            None => underway("the machine gets an address", STARTS_INTERVAL),
        })
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = told(self.client.machines().await)?;
        let mut signs = Vec::with_capacity(known.len());
        for known in known {
            signs.push(match &known.place {
                Some(place) => self.sign(&all, &place.instance_id).await,
                None => None,
            });
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let (name, disk_name) = (known.marks.name(NAME_LENGTH), disk_name(&known.marks));
        let place = known.place.as_ref();
        let machine = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find_machine(&name, call);
        let delete = async |made: Made| {
            let told = self.delete_machine(&made.id).await?;
            Ok(made.removal(call, told, ENDS_INTERVAL))
        };
        let removal = call.unmake(MACHINE, machine, LISTED_WITHIN, find, delete).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        let disk = place.and_then(disk_of).map(Made::long_ago);
        let find = || self.find_disk(&disk_name, call);
        let delete = async |made: Made| {
            let told = self.delete_disk(&made.id).await?;
            Ok(made.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(DISK, disk, LISTED_WITHIN, find, delete).await
    }
}

impl Crusoe {
    async fn ensure_disk(&self, want: &MachineRequest, call: &Call<'_>) -> Result<Made, ComputeError> {
        let name = disk_name(&want.marks);
        let gib = (want.offer.instance.resources.disk.size_mib / 1024).max(1);
        let ask = async || {
            let made = self.client.make_disk(&name, &want.offer.region, gib).await;
            let id = made.map_err(|error| not_made(&error))?;
            Ok(Made::now(id.ok_or_else(unnamed)?, call))
        };
        let find = || self.find_disk(&name, call);
        call.make(DISK, LISTED_WITHIN, ask, find).await
    }

    async fn start(
        &self,
        want: &MachineRequest,
        name: &str,
        disk: Option<&str>,
    ) -> Result<String, ComputeError> {
        let size = &want.offer.instance.name;
        let group = want.placement_group.as_deref().filter(|_| has_fabric(size));
        let adapter = match group {
            None => None,
            Some(group) => Some(self.partition(group).await.map_err(not_asked)?.ok_or_else(|| {
                ComputeError::Refused(format!(
                    "the placement group has no InfiniBand partition, which {size} needs: it was made for machines without InfiniBand"
                ))
            })?),
        };
        let attach = |id: &str| json!({"disk_id": id, "mode": "read-write", "attachment_type": "data"});
        let machine = NewMachine {
            name,
            size,
            location: &want.offer.region,
            image: image_for(&want.offer),
            ssh_public_key: want.authorized_keys.first().map_or("", String::as_str),
            startup_script: &startup_script(&want.authorized_keys),
            disks: disk.map(attach).into_iter().collect(),
            host_channel_adapters: adapter
                .map(|partition| json!({"ib_partition_id": partition.id}))
                .into_iter()
                .collect(),
        };
        let id = self.client.make_machine(&machine).await;
        id.map_err(|error| not_made(&error))?.ok_or_else(unnamed)
    }

    /// How one is, that was listed with all or is asked for; `None`: Crusoe does not tell.
    async fn sign(&self, all: &[client::Machine], id: &str) -> Option<Sign<JobProvisioningData>> {
        let asked;
        let machine = match all.iter().find(|machine| machine.id == id) {
            Some(machine) => Some(machine),
            // While others end, a page may begin one entry later than the one before it ended.
            None => {
                asked = self.client.machine(id).await.ok()?;
                asked.as_ref()
            }
        };
        Some(match machine {
            None => Sign::Lost("Crusoe does not have the machine any more".to_owned()),
            Some(machine) => end_of(machine).map_or(Sign::Well, Sign::Lost),
        })
    }

    /// Whether Crusoe is still at it; an error when it has failed. `None`: Crusoe tells nothing of it, yet or any more.
    async fn is_being_made(&self, kind: Kind, id: &str) -> Result<Option<bool>, ComputeError> {
        let operations = told(self.client.operations(kind, id).await)?;
        let failed = operations
            .iter()
            .find(|operation| operation.state == OperationState::Failed);
        match failed.map(client::Operation::failure) {
            Some((code, text)) => Err(failure(code, text)),
            None if operations.is_empty() => Ok(None),
            None => Ok(Some(
                operations
                    .iter()
                    .any(|operation| operation.state != OperationState::Succeeded),
            )),
        }
    }

    async fn find_machine(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = told(self.client.machines().await)?;
        let is_it = |machine: &client::Machine| machine.name == name && !is_ending(machine);
        Ok(all
            .into_iter()
            .find(is_it)
            .map(|machine| Made::now(machine.id, call)))
    }

    async fn find_disk(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = told(self.client.disks().await)?;
        let found = all.into_iter().find(|disk| disk.name == name);
        Ok(found.map(|disk| Made::now(disk.id, call)))
    }

    pub(crate) async fn delete_machine(&self, id: &str) -> Result<Removal, ComputeError> {
        let Some(machine) = told(self.client.machine(id).await)? else {
            return Ok(Removal::Gone);
        };
        if state(&machine) == "DELETED" {
            return Ok(Removal::Gone);
        }
        if !is_ending(&machine) {
            match told(self.client.delete(Kind::Machine, id).await) {
                // It is made first.
                Err(ComputeError::Refused(_) | ComputeError::Credentials(_)) if is_starting(&machine) => {}
                answer => {
                    answer?;
                }
            }
        }
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }

    /// Of a machine that is gone.
    pub(crate) async fn delete_disk(&self, id: &str) -> Result<Removal, ComputeError> {
        if !told(self.client.has_disk(id).await)? {
            return Ok(Removal::Gone);
        }
        removed(self.client.delete(Kind::Disk, id).await)?;
        Ok(Removal::Underway { again: ENDS_INTERVAL })
    }
}

/// Machines without drives of their own have a data disk, or else only the system's small one.
fn needs_disk(offer: &InstanceOfferWithAvailability) -> bool {
    let own = offer.backend_data.get("disk_gb").and_then(Value::as_i64);
    own.unwrap_or(0) == 0
}

/// Another name than that of the machine, whose system disk Crusoe names.
fn disk_name(marks: &Marks) -> String {
    let marks = Marks {
        name: format!("data-{}", marks.name),
        ..marks.clone()
    };
    marks.name(NAME_LENGTH)
}

fn disk_of(place: &JobProvisioningData) -> Option<String> {
    let data: Value = serde_json::from_str(place.backend_data.as_deref()?).ok()?;
    data.get("data_disk_id")?.as_str().map(str::to_owned)
}

/// Crusoe makes a thing that it does not name: that is looked for.
fn unnamed() -> ComputeError {
    ComputeError::Unclear("Crusoe does not name what it makes".to_owned())
}

/// Crusoe refuses to make something.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    match compute_error(error) {
        ComputeError::Refused(text) => failure(error.body(), text),
        other => other,
    }
}

/// What it means that something cannot be made: the code (`out_of_stock`) or the text says why.
fn failure(code: &str, text: String) -> ComputeError {
    let said = format!("{code} {text}").to_ascii_lowercase();
    match () {
        () if said.contains("out_of_stock") || said.contains("capacity") => ComputeError::NoCapacity(text),
        () if said.contains("quota") => ComputeError::NoQuota(text),
        () => ComputeError::Broken(format!("Crusoe could not make it: {text}")),
    }
}

/// `RUNNING` of `STATE_RUNNING`: the description has both forms.
fn state(machine: &client::Machine) -> &str {
    let state = machine.state.as_str();
    state.strip_prefix("STATE_").unwrap_or(state)
}

fn is_starting(machine: &client::Machine) -> bool {
    matches!(state(machine), "CREATING" | "STARTING")
}

fn is_ending(machine: &client::Machine) -> bool {
    matches!(state(machine), "DELETING" | "DELETED")
}

/// Why a machine will never work (again).
fn end_of(machine: &client::Machine) -> Option<String> {
    let state = state(machine);
    let is_over = OVER.contains(&state);
    is_over.then(|| format!("Crusoe has ended the machine (its state is {state})"))
}

/// The public address and the private one; `None`: not yet.
fn addresses(machine: &client::Machine) -> Option<(String, Option<String>)> {
    let addresses = machine.network_interfaces.first()?.ips.first()?;
    let text = |address: &Option<client::Address>| {
        let address = address.as_ref().map(|address| address.address.clone());
        address.filter(|address| !address.is_empty())
    };
    Some((text(&addresses.public_ipv4)?, text(&addresses.private_ipv4)))
}

fn place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    (hostname, internal_ip): (String, Option<String>),
    disk: Option<&str>,
) -> JobProvisioningData {
    JobProvisioningData {
        internal_ip,
        // The form of dstack 0.22.5.
        backend_data: Some(json!({"data_disk_id": disk}).to_string()),
        ..machine_place(offer, id, hostname, USER, 22)
    }
}

/// Images with Docker, and with drivers for SXM boards, AMD, or cards. That of cards serves machines without GPUs too: the plain image of
/// Ubuntu has no Docker.
fn image_for(offer: &InstanceOfferWithAvailability) -> &'static str {
    let is_amd = |gpu: &Gpu| gpu.vendor == Some(dstack_units::AcceleratorVendor::Amd);
    match () {
        () if offer.instance.name.contains("-sxm") => "ubuntu22.04-nvidia-sxm-docker:latest",
        () if offer.instance.resources.gpus.iter().any(is_amd) => "ubuntu-rocm:latest",
        () => "ubuntu22.04-nvidia-pcie-docker:latest",
    }
}

/// Runs as root. Crusoe takes one key by itself: the others are put beside it, on lines of their own.
fn startup_script(authorized_keys: &[String]) -> String {
    let keys = authorized_keys.iter().skip(1).map(|key| {
        let key = key.replace('\'', "");
        format!("printf '\\n%s\\n' '{key}' >> /home/{USER}/.ssh/authorized_keys\n")
    });
    let keys: String = keys.collect();
    let (docker, mdadm) = (apt_install("docker.io"), apt_install("mdadm"));
    format!(
        "#!/bin/bash
install_docker() {{ {docker}; }}
install_mdadm() {{ {mdadm}; }}
{HOLD_DOCKER}
{keys}{USE_DISK}
python3 - <<'EOF'
{KEEP_GPUS}
EOF
{START_DOCKER}
{ALLOW_FORWARDING}
"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        for (code, text, expected) in [
            ("out_of_stock", "none left", "no capacity: none left"),
            (
                "",
                "There is not enough capacity",
                "no capacity: There is not enough capacity",
            ),
            ("quota_exceeded", "too many", "over the quota: too many"),
            ("internal", "no", "Crusoe could not make it: no"),
        ] {
            assert_eq!(failure(code, text.to_owned()).to_string(), expected);
        }
    }

    #[test]
    fn the_first_script_is_one() {
        let keys = ["ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"].map(str::to_owned);
        let script = startup_script(&keys);
        assert!(!script.contains("AAAA"), "{script}");
        // The image's file may end without a newline.
        assert!(
            script.contains("printf '\\n%s\\n' 'ssh-ed25519 BBBB b' >>"),
            "{script}"
        );
        let parts = [
            "systemctl mask --now docker.socket docker.service",
            "mount --bind",
            KEEP_GPUS,
            "systemctl unmask",
            "systemctl start containerd docker",
            "AllowTcpForwarding yes",
        ];
        let at: Vec<Option<usize>> = parts.iter().map(|part| script.find(part)).collect();
        assert!(
            at.is_sorted() && at.iter().all(Option::is_some),
            "{at:?} {script}"
        );
        assert_eq!(
            script.matches("for i in $(seq 10)").count(),
            2,
            "what is installed is tried again"
        );
        let checked = Command::new("bash").args(["-n", "-c", &script]).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}
