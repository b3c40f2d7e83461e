//! What machines are made of, and what they do at their first start.

use dstack_backend::{KEEP_GPUS, cloud_config};
use dstack_model::instances::Resources;
use serde_json::json;

/// GPUs before Turing, which NVIDIA's open kernel modules do not know; the names are those of the catalogue.
const OLD_GPUS: &[&str] = &["V100", "P100", "P40", "P4", "P6", "M60", "M40", "M4", "K80"];

/// With GPUDirect-TCPXO, for which Google has an image of its own, of which dstack's is made.
const TCPXO: &str = "a3-megagpu-8g";

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

/// The image of a machine.
pub(crate) fn image_of(machine_type: &str, resources: &Resources) -> String {
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
    if machine_type != TCPXO {
        return cloud_config(authorized_keys, &[]);
    }
    let run: Vec<_> = TCPXO_COMMANDS
        .iter()
        .map(|command| ["sh", "-c", command])
        .collect();
    let config = json!({
        "ssh_authorized_keys": authorized_keys,
        "bootcmd": [json!(HOLD), json!(["python3", "-c", KEEP_GPUS])],
        "runcmd": run,
    });
    format!("#cloud-config\n{config}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn who_has_to_install_something_lets_nobody_in_before() {
        let keys = ["ssh-ed25519 AAAA".to_owned()];
        let plain = user_data("a3-highgpu-8g", &keys);
        assert_eq!(plain, cloud_config(&keys, &[]));
        let text = user_data(TCPXO, &keys);
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(config["bootcmd"][0], json!(HOLD));
        let run = config["runcmd"].as_array().unwrap();
        assert_eq!(run.last().unwrap()[2], "rm -f /etc/nologin");
    }
}
