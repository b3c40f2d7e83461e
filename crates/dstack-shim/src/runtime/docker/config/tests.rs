use super::*;
use crate::runtime::RunnerSettings;
use dstack_agent_api::shim::{GpuDevice, InstanceMount, Volume, VolumeMount};
use serde_json::{Value, json};

fn settings(vendor: Vendor) -> DockerSettings {
    DockerSettings {
        runner: RunnerSettings {
            binary: "/opt/dstack-agent".into(),
            http_port: 10999,
            ssh_port: 10022,
            log_level: "info".into(),
            ssh_log_level: None,
        },
        pass_env: vec![("http_proxy".into(), "http://proxy".into())],
        privileged: false,
        pjrt_device: None,
        vendor,
        root: "/home/runners".into(),
    }
}

fn config() -> TaskConfig {
    TaskConfig {
        id: "1".into(),
        name: "run-0-0".into(),
        image_name: "ubuntu".into(),
        ..TaskConfig::default()
    }
}

fn body(config: &TaskConfig, settings: &DockerSettings, gpus: &[String], devices: &HostDevices) -> Value {
    let spec = Spec {
        config,
        name: "run-0-0-x",
        dir: Path::new("/home/runners/x"),
        gpus,
        display: true,
    };
    serde_json::to_value(container(&spec, settings, RunnerKind::ServesSsh, devices)).unwrap()
}

#[test]
fn a_plain_task() {
    let body = body(&config(), &settings(Vendor::Nvidia), &[], &HostDevices::default());
    assert_eq!(
        body,
        json!({
            "Image": "ubuntu:latest",
            "User": "root",
            "Entrypoint": ["/usr/local/bin/dstack-runner"],
            "Cmd": ["--log-level", "info", "start", "--temp-dir", "/tmp/runner", "--http-port", "10999", "--ssh-port", "10022",
                    "--http-address", "localhost"],
            "Env": ["http_proxy=http://proxy"],
            "Labels": {"ai.dstack.shim.is-task": "true", "ai.dstack.shim.task-id": "1"},
            "ExposedPorts": {"10999/tcp": {}, "10022/tcp": {}},
            "HostConfig": {
                "NetworkMode": "host",
                "Privileged": false,
                "Mounts": [
                    {"Source": "/home/runners/x/runner", "Target": "/tmp/runner", "Type": "bind"},
                    {"Source": "/opt/dstack-agent", "Target": "/usr/local/bin/dstack-runner", "Type": "bind", "ReadOnly": true},
                ],
                "PortBindings": {
                    "10999/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
                    "10022/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
                },
            },
        })
    );
}

#[test]
fn the_runner_is_told_its_token_by_a_variable_unless_it_is_an_original_one() {
    let config = TaskConfig {
        runner_token: "t0ken".into(),
        ..config()
    };
    let body = |runner| {
        let spec = Spec {
            config: &config,
            name: "x",
            dir: Path::new("/x"),
            gpus: &[],
            display: true,
        };
        container(&spec, &settings(Vendor::None), runner, &HostDevices::default())
    };
    let env = |runner| body(runner).env.unwrap();
    assert_eq!(
        env(RunnerKind::ServesSsh),
        ["http_proxy=http://proxy", "DSTACK_RUNNER_TOKEN=t0ken"]
    );
    // It does not know the variable, and would pass it on to its job.
    assert_eq!(env(RunnerKind::NeedsSshd), ["http_proxy=http://proxy"]);
    assert!(
        !format!("{:?}", body(RunnerKind::ServesSsh).cmd).contains("t0ken"),
        "arguments are public"
    );
}

/// In the host's network, the runner would show the host's traffic as the job's.
#[test]
fn the_runner_is_told_when_the_network_is_the_jobs_own() {
    let env = |network_mode, runner| {
        let config = TaskConfig {
            network_mode,
            ..config()
        };
        let spec = Spec {
            config: &config,
            name: "x",
            dir: Path::new("/x"),
            gpus: &[],
            display: true,
        };
        let body = container(&spec, &settings(Vendor::None), runner, &HostDevices::default());
        body.env.unwrap()
    };
    let plain = ["http_proxy=http://proxy"];
    let told = ["http_proxy=http://proxy", "DSTACK_RUNNER_OWN_NETWORK=1"];
    assert_eq!(env(NetworkMode::Bridge, RunnerKind::ServesSsh), told);
    assert_eq!(env(NetworkMode::Host, RunnerKind::ServesSsh), plain);
    assert_eq!(env(NetworkMode::Bridge, RunnerKind::NeedsSshd), plain);
}

#[test]
fn limits_mounts_and_network() {
    let config = TaskConfig {
        cpu: 1.5,
        memory: 1 << 30,
        shm_size: 1024,
        network_mode: NetworkMode::Bridge,
        privileged: true,
        volumes: vec![Volume {
            name: "data".into(),
            volume_id: "vol-0abc".into(),
            ..Volume::default()
        }],
        volume_mounts: vec![VolumeMount {
            name: "data".into(),
            path: "/data".into(),
        }],
        instance_mounts: vec![InstanceMount {
            instance_path: "/cache".into(),
            path: "/root/.cache".into(),
            optional: false,
        }],
        ..config()
    };
    let body = body(
        &config,
        &settings(Vendor::None),
        &[],
        &HostDevices {
            infiniband: true,
            hugepages_1g: false,
        },
    );
    let host = &body["HostConfig"];
    assert_eq!(host["NanoCpus"], 1_500_000_000);
    assert_eq!(host["Memory"], 1 << 30);
    assert_eq!(host["ShmSize"], 1024);
    assert_eq!(host["Tmpfs"], json!({"/dev/shm": "exec,size=1024"}));
    assert_eq!(
        (&host["NetworkMode"], &host["Privileged"]),
        (&json!("bridge"), &json!(true))
    );
    assert!(!body["Cmd"].as_array().unwrap().contains(&json!("--http-address")));
    assert_eq!(host["Mounts"][2]["Source"], "/mnt/disks/dstack-volumes/vol-0abc");
    assert_eq!(host["Mounts"][3]["Target"], "/root/.cache");
    assert_eq!(host["Devices"][0]["PathOnHost"], "/dev/infiniband");
    assert_eq!(
        host["Ulimits"],
        json!([{"Name": "memlock", "Soft": -1, "Hard": -1}])
    );
}

#[test]
fn gpus_by_vendor() {
    let none = HostDevices::default();
    let host = |vendor, ids: &[&str], config: &TaskConfig| {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let body = body(
            config,
            &settings(vendor),
            &ids,
            &HostDevices {
                hugepages_1g: true,
                ..none
            },
        );
        (body["HostConfig"].clone(), body["Env"].clone())
    };
    let (nvidia, _) = host(Vendor::Nvidia, &["GPU-1"], &config());
    assert_eq!(
        nvidia["DeviceRequests"],
        json!([{"DeviceIDs": ["GPU-1"],
                "Capabilities": [["gpu", "utility", "compute", "graphics", "video", "display", "compat32"]]}])
    );
    let (amd, _) = host(Vendor::Amd, &["/dev/dri/renderD128"], &config());
    assert_eq!(amd["Devices"][0]["PathOnHost"], "/dev/kfd");
    assert_eq!(
        amd["Devices"][1],
        json!({"PathOnHost": "/dev/dri/renderD128", "PathInContainer": "/dev/dri/renderD128", "CgroupPermissions": "rwm"})
    );
    assert_eq!(
        (&amd["IpcMode"], &amd["CapAdd"], &amd["SecurityOpt"]),
        (
            &json!("host"),
            &json!(["SYS_PTRACE"]),
            &json!(["seccomp=unconfined"])
        )
    );
    let (tt, _) = host(Vendor::Tenstorrent, &["1"], &config());
    assert_eq!(tt["Devices"][0]["PathOnHost"], "/dev/tenstorrent/1");
    assert_eq!(tt["Mounts"][2]["Source"], "/dev/hugepages-1G");
    let (intel, env) = host(Vendor::Intel, &["0", "3"], &config());
    assert_eq!(
        (&intel["Runtime"], &intel["CapAdd"]),
        (&json!("habana"), &json!(["SYS_NICE"]))
    );
    assert!(
        env.as_array()
            .unwrap()
            .contains(&json!("HABANA_VISIBLE_DEVICES=0,3"))
    );
    let own = TaskConfig {
        gpu_devices: vec![GpuDevice {
            path_on_host: "/dev/nvidia0".into(),
            path_in_container: "/dev/nvidia9".into(),
        }],
        ..config()
    };
    let (own, _) = host(Vendor::Nvidia, &["GPU-1"], &own);
    assert_eq!(own["DeviceRequests"], Value::Null);
    assert_eq!(own["Devices"][0]["PathInContainer"], "/dev/nvidia9");
}

#[test]
fn an_original_runner_gets_a_shell_that_installs_sshd() {
    let config = config();
    let spec = Spec {
        config: &config,
        name: "x",
        dir: Path::new("/x"),
        gpus: &[],
        display: true,
    };
    let body = container(
        &spec,
        &settings(Vendor::None),
        RunnerKind::NeedsSshd,
        &HostDevices::default(),
    );
    assert_eq!(body.entrypoint.unwrap(), ["/bin/sh", "-c"]);
    let line = body.cmd.unwrap().join("");
    assert!(line.contains("openssh-server") && line.ends_with("&& /usr/local/bin/dstack-runner --log-level info start --temp-dir /tmp/runner --http-port 10999 --ssh-port 10022 --http-address localhost"), "{line}");
    let checked = std::process::Command::new("sh")
        .args(["-n", "-c", &line])
        .status()
        .unwrap();
    assert!(checked.success());
}
