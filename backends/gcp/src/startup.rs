//! What machines are made of, and what they do at their first start.

use dstack_backend::{KEEP_GPUS, cloud_config};
use dstack_model::instances::Resources;
use serde_json::{Value, json};

/// GPUs before Turing, which NVIDIA's open kernel modules do not know; the names are those of the catalogue.
const OLD_GPUS: &[&str] = &["V100", "P100", "P40", "P4", "P6", "M60", "M40", "M4", "K80"];

/// With GPUDirect-TCPXO, for which Google has an image of its own, of which dstack's is made.
pub(crate) const TCPXO: &str = "a3-megagpu-8g";

/// With GPUDirect-TCPX, which Google has for Container-Optimized OS.
pub(crate) const TCPX: &[&str] = &["a3-highgpu-8g", "a3-edgegpu-8g"];

/// The newest of the milestone that dstack 0.22.5 takes.
const COS_IMAGE: &str = "projects/cos-cloud/global/images/family/cos-121-lts";

/// The newest Ubuntu 22.04 of Canonical, for x86. Gateways have what they need brought to them.
pub(crate) const GATEWAY_IMAGE: &str = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts";

/// Nobody but root logs in before all is there: a host is taken as soon as it can be, and its agent may start jobs at once.
const HOLD: &[&str] = &["cloud-init-per", "once", "dstack-hold", "touch", "/etc/nologin"];

/// The library of NCCL for it in `/var/lib/tcpxo`, and the daemon that receives for the GPUs ("Maximize GPU network bandwidth with
/// GPUDirect-TCPXO"). The images are in the machine's image.
const TCPXO_COMMANDS: &[&str] = &[
    "modprobe import-helper",
    "gcloud -q auth configure-docker us-docker.pkg.dev",
    "docker run --rm --name nccl-installer --pull=never --network=host -v /var/lib:/var/lib \
     us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/nccl-plugin-gpudirecttcpx-dev:v1.0.8-1 install --install-nccl",
    "docker run --name receive-datapath-manager --detach --pull=never --restart=unless-stopped --cap-add=NET_ADMIN --network=host \
     --privileged --gpus all -v /usr/lib32:/usr/local/nvidia/lib64 \
     -v /dev/dmabuf_import_helper:/dev/dmabuf_import_helper -e LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu \
     us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.14 \
     --num_hops=2 --num_nics=8 --uid= --alsologtostderr",
    "rm -f /etc/nologin",
];

/// Nobody logs in before all is there. What logins look at is another matter on Container-Optimized OS, whose firewall is by iptables.
const COS_HOLD: &[&str] = &[
    "iptables",
    "-w",
    "-I",
    "INPUT",
    "-p",
    "tcp",
    "--dport",
    "22",
    "-j",
    "REJECT",
    "--reject-with",
    "tcp-reset",
];

/// The driver, the library of NCCL in `/var/lib/tcpx`, and the daemon that receives for the GPUs ("Run GPUs on Container-Optimized
/// OS", "Maximize GPU network bandwidth with GPUDirect-TCPX"), at every start: what is in `/etc`, and what is mounted, is gone with the
/// last one. `/var` lets nothing be executed. Machines whose GPUs do not come up stay closed, and are given up.
const TCPX_COMMANDS: &[&str] = &[
    "set -ex",
    "export PATH=/var/lib/nvidia/bin:$PATH",
    "cos-extensions install gpu -- --version=latest",
    "mount --bind /var/lib/nvidia /var/lib/nvidia",
    "mount -o remount,exec /var/lib/nvidia",
    "nvidia-smi -pm 1",
    "docker run --rm --name nccl-installer -v /var/lib:/var/lib \
     us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/nccl-plugin-gpudirecttcpx install --install-nccl",
    "mount --bind /var/lib/tcpx /var/lib/tcpx",
    "mount -o remount,exec /var/lib/tcpx",
    // That of the last start has lost its GPUs.
    "docker rm -f receive-datapath-manager || :",
    "docker run --name receive-datapath-manager --detach --restart=unless-stopped --privileged --cap-add=NET_ADMIN --network=host \
     -v /var/lib/nvidia/lib64:/usr/local/nvidia/lib64 -v /run/tcpx:/run/tcpx -e LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
     $(for gpu in 0 1 2 3 4 5 6 7 -uvm ctl; do printf ' --device /dev/nvidia%s' $gpu; done) \
     --entrypoint /tcpgpudmarxd/build/app/tcpgpudmarxd us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd \
     --gpu_nic_preset a3vm --gpu_shmem_type fd --uds_path /run/tcpx --setup_param '--verbose 128 2 0'",
    // Nodes reach each other at all ports, and now everybody may log in.
    "iptables -w -D INPUT -p tcp --dport 22 -j REJECT --reject-with tcp-reset",
    "iptables -w -I INPUT -p tcp -j ACCEPT",
];

/// With it, the agent finds the programs of the driver: its unit has no path of its own.
const DRIVER_PATH: &str = "[Service]\n\
    Environment=PATH=/var/lib/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n";

/// The image of a machine.
pub(crate) fn image_of(machine_type: &str, resources: &Resources) -> String {
    if TCPX.contains(&machine_type) {
        return COS_IMAGE.to_owned();
    }
    let name = match resources.gpus.first() {
        _ if machine_type == TCPXO => "dstack-a3mega-5",
        None => "dstack-0-14",
        Some(gpu) if OLD_GPUS.contains(&gpu.name.as_str()) => "dstack-cuda-0-10",
        Some(_) => "dstack-cuda-0-14",
    };
    format!("projects/dstack/global/images/{name}")
}

/// For cloud-init.
pub(crate) fn user_data(machine_type: &str, authorized_keys: &[String]) -> String {
    let config = match machine_type {
        TCPXO => with_tcpxo(authorized_keys),
        _ if TCPX.contains(&machine_type) => with_tcpx(authorized_keys),
        _ => return cloud_config(authorized_keys, &[]),
    };
    format!("#cloud-config\n{config}\n")
}

fn with_tcpxo(authorized_keys: &[String]) -> Value {
    let run: Vec<_> = TCPXO_COMMANDS
        .iter()
        .map(|command| ["sh", "-c", command])
        .collect();
    json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [json!(HOLD), json!(["python3", "-c", KEEP_GPUS])],
        "runcmd": run,
    })
}

fn with_tcpx(authorized_keys: &[String]) -> Value {
    json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [COS_HOLD],
        "write_files": [{
            "path": "/etc/systemd/system/dstack-shim.service.d/nvidia.conf",
            "permissions": "0644",
            "content": DRIVER_PATH,
        }],
        "runcmd": [["sh", "-c", TCPX_COMMANDS.join("\n")]],
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::job_needs;

    fn config_of(machine_type: &str) -> Value {
        let text = user_data(machine_type, &["ssh-ed25519 AAAA".to_owned()]);
        serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap()
    }

    /// Runs the commands of the first start of a machine with GPUDirect-TCPX, with programs in their stead that write down how they
    /// are called, and of which one fails; what was called.
    fn first_start(failing: &str) -> (bool, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        for name in ["cos-extensions", "mount", "nvidia-smi", "docker", "iptables"] {
            let text = format!(
                "#!/bin/sh\necho {name} \"$@\" >> {}\n[ {name} != '{failing}' ]\n",
                log.display()
            );
            let path = dir.path().join(name);
            fs_err::write(&path, text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs_err::set_permissions(path, mode).unwrap();
        }
        let config = config_of("a3-highgpu-8g");
        let words: Vec<&str> = config["runcmd"][0]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        let status = Command::new(words[0])
            .args(&words[1..])
            .env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()))
            .status()
            .unwrap();
        let log = fs_err::read_to_string(log).unwrap();
        (status.success(), log.lines().map(ToOwned::to_owned).collect())
    }

    #[test]
    fn machines_with_tcpx_are_open_once_their_gpus_work() {
        let (done, called) = first_start("");
        assert!(done, "{called:#?}");
        let programs: Vec<&str> = called
            .iter()
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(
            programs,
            [
                "cos-extensions",
                "mount",
                "mount",
                "nvidia-smi",
                "docker",
                "mount",
                "mount",
                "docker",
                "docker",
                "iptables",
                "iptables"
            ]
        );
        let manager = &called[8];
        for device in job_needs::of_type("a3-highgpu-8g").gpu_devices {
            assert!(
                manager.contains(&format!(" --device {device} ")),
                "{device}: {manager}"
            );
        }
        // What was begun with is taken back, and it is that what keeps logins out.
        let hold = config_of("a3-edgegpu-8g")["bootcmd"][0]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(called[9], hold.replace(" -I ", " -D "));

        for failing in ["cos-extensions", "mount", "nvidia-smi"] {
            let (done, called) = first_start(failing);
            assert!(
                !done && !called.iter().any(|line| line.starts_with("iptables")),
                "{called:#?}"
            );
        }
    }

    #[test]
    fn machines_with_tcpx_have_their_own_system_and_the_agent_finds_the_driver() {
        let resources =
            json!({"cpus": 208, "memory_mib": 1, "gpus": [], "spot": false, "disk": {"size_mib": 1}});
        let resources: Resources = dstack_model::decode::decode_strict(&resources).unwrap();
        for machine_type in TCPX {
            assert!(image_of(machine_type, &resources).contains("/cos-cloud/"));
            let file = &config_of(machine_type)["write_files"][0];
            assert!(
                file["path"]
                    .as_str()
                    .unwrap()
                    .starts_with("/etc/systemd/system/dstack-shim.service.d/")
            );
            let lines: Vec<&str> = file["content"].as_str().unwrap().lines().collect();
            assert_eq!(lines[0], "[Service]");
            assert!(
                lines[1].starts_with("Environment=PATH=/var/lib/nvidia/bin:/"),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn who_has_to_install_something_lets_nobody_in_before() {
        let keys = ["ssh-ed25519 AAAA".to_owned()];
        let plain = user_data("a3-ultragpu-8g", &keys);
        assert_eq!(plain, cloud_config(&keys, &[]));
        let config = config_of(TCPXO);
        assert_eq!(config["bootcmd"][0], json!(HOLD));
        let run = config["runcmd"].as_array().unwrap();
        assert_eq!(run.last().unwrap()[2], "rm -f /etc/nologin");
    }
}
