use dstack_model::decode::decode_strict;
use dstack_system::Random;
use serde_json::{Value, json};

use super::*;

fn fleet(ssh_config: &Value) -> FleetSpec {
    let spec =
        json!({"configuration": {"type": "fleet", "name": "lab", "ssh_config": ssh_config}, "profile": {}});
    decode_strict(&spec).unwrap()
}

fn way(ssh_config: &Value, hostname: &str) -> Option<Reach> {
    let random = Random::seeded(1);
    reach(random.uuid().into(), &fleet(ssh_config), &at(hostname, None))
}

/// The instance of a host before it was ever reached.
fn at(hostname: &str, ssh_port: Option<i64>) -> JobProvisioningData {
    JobProvisioningData {
        hostname: Some(hostname.to_owned()),
        ssh_port,
        ..place(None, None)
    }
}

fn place(internal_ip: Option<&str>, network: Option<&str>) -> JobProvisioningData {
    let kind = json!({"name": "ssh", "resources": {"cpus": 2, "memory_mib": 8, "gpus": [], "spot": false}});
    let place = json!({"backend": "remote", "instance_type": kind, "instance_id": "lab-0", "hostname": "a",
        "internal_ip": internal_ip, "instance_network": network, "region": "remote", "price": 0.0, "username": "me",
        "ssh_port": 22, "dockerized": true});
    decode_strict(&place).unwrap()
}

fn info(cpus: u32, gpus: u32) -> HostInfo {
    HostInfo {
        gpu_vendor: "nvidia".to_owned(),
        gpu_name: "NVIDIA H100 80GB HBM3".to_owned(),
        gpu_memory: 81_559,
        gpu_count: gpus,
        cpus,
        memory: 64 << 30,
        disk_size: 512 << 30,
        addresses: ["fe80::1/64", "192.168.0.4/24", "10.1.2.3/16"]
            .map(str::to_owned)
            .to_vec(),
    }
}

#[test]
fn what_a_host_says_wins_over_what_the_fleet_says() {
    let config = json!({"user": "fleet", "port": 2200, "proxy_jump": {"hostname": "j", "user": "jump", "identity_file": "x"},
        "hosts": ["a", {"hostname": "b", "user": "own", "port": 2022,
            "proxy_jump": {"hostname": "k", "port": 22022, "user": "other", "identity_file": "x"}}]});
    let random = Random::seeded(1);
    let id = random.uuid().into();
    let brief = |hostname, port| {
        let way = reach(id, &fleet(&config), &at(hostname, Some(port))).unwrap();
        let hops: Vec<String> = way
            .hops()
            .map(|hop| format!("{}@{}:{}", hop.user, hop.host, hop.port))
            .collect();
        hops.join(" ")
    };
    assert_eq!(brief("a", 2200), "jump@j:22 fleet@a:2200");
    assert_eq!(brief("b", 2022), "other@k:22022 own@b:2022");
    assert_eq!(way(&config, "c"), None);
}

#[test]
fn keys_are_those_of_the_host_else_of_the_fleet_and_a_jump_host_without_one_takes_the_hosts() {
    let key = |name: &str| json!({"public": "", "private": name});
    let spec = fleet(&json!({"user": "me", "ssh_key": key("fleet"),
        "proxy_jump": {"hostname": "j", "user": "jump", "identity_file": "x"},
        "hosts": ["a", {"hostname": "b", "ssh_key": key("b"),
            "proxy_jump": {"hostname": "k", "user": "jump", "identity_file": "x", "ssh_key": key("k")}}]}));
    let random = Random::seeded(1);
    let opened = |hostname: &str| {
        let way = reach(random.uuid().into(), &spec, &at(hostname, None)).unwrap();
        let of = |hop: &Hop| {
            hop.keys
                .iter()
                .filter_map(|key| private_key(&spec, key))
                .collect::<Vec<_>>()
                .join(" ")
        };
        way.hops().map(of).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(opened("a"), "fleet, fleet");
    assert_eq!(opened("b"), "k, b");
}

#[test]
fn the_host_key_that_a_backend_gave_its_jump_host_is_pinned() {
    let mut place = place(None, None);
    let project = ProjectId::from(Random::seeded(1).uuid());
    place.ssh_proxy = Some(SshConnectionParams {
        hostname: "j".to_owned(),
        username: "root".to_owned(),
        port: 32_000,
    });
    let pinned =
        |place: &JobProvisioningData| cloud_reach(project, place).unwrap().jumps[0].host_keys.clone();
    assert_eq!(pinned(&place), Vec::<String>::new());
    place.backend_data = Some(json!({"ssh_proxy_host_key": "ssh-ed25519 AAAA", "uid": "u"}).to_string());
    assert_eq!(pinned(&place), ["ssh-ed25519 AAAA"]);
}

#[test]
fn the_internal_address_is_the_given_one_else_of_the_network_else_the_first() {
    let way = way(&json!({"user": "me", "hosts": ["a"]}), "a").unwrap();
    let address = |before: &JobProvisioningData| {
        prepared(&way, before, Some(1), &info(8, 0), "amd64")
            .map(|host| host.place.internal_ip.unwrap_or_default())
    };
    assert_eq!(address(&place(None, None)).unwrap(), "192.168.0.4");
    assert_eq!(
        address(&place(None, Some("10.1.0.0/255.255.0.0"))).unwrap(),
        "10.1.2.3"
    );
    assert_eq!(address(&place(Some("10.1.2.3"), None)).unwrap(), "10.1.2.3");
    let none = address(&place(None, Some("172.16.0.0/12")))
        .unwrap_err()
        .to_string();
    assert!(
        none.starts_with("Failed to locate internal IP address on the given network"),
        "{none}"
    );
    assert!(
        none.contains("192.168.0.4/24, 10.1.2.3/16") && none.contains("172.16.0.0/12"),
        "{none}"
    );
    let other = address(&place(Some("10.9.9.9"), None)).unwrap_err().to_string();
    assert!(
        other.starts_with("Specified internal IP not found among instance interfaces"),
        "{other}"
    );
}

#[test]
fn blocks_divide_what_the_host_has() {
    let blocks = |wanted, cpus, gpus| total_blocks(wanted, cpus, gpus).ok();
    assert_eq!(blocks(None, 16, 8), Some(8));
    assert_eq!(blocks(None, 16, 0), Some(16));
    assert_eq!(blocks(None, 4, 8), Some(4));
    assert_eq!(blocks(Some(4), 16, 8), Some(4));
    assert_eq!(blocks(Some(1), 7, 3), Some(1));
    assert_eq!(blocks(Some(3), 16, 8), None);
    assert_eq!(blocks(None, 6, 4), None);
    let problem = total_blocks(Some(3), 16, 8).unwrap_err().to_string();
    assert!(problem.starts_with("Cannot split into blocks"), "{problem}");
}

#[test]
fn a_host_offers_what_it_has() {
    let way = way(
        &json!({"user": "me", "hosts": ["a"], "proxy_jump": {"hostname": "j", "port": 2022, "user": "jump", "identity_file": "x"}}),
        "a",
    );
    let host = prepared(&way.unwrap(), &place(None, None), None, &info(16, 8), "arm64").unwrap();
    let resources = &host.offer.instance.resources;
    assert_eq!(
        (resources.gpus.len(), resources.gpus[0].memory_mib),
        (8, 80 * 1024)
    );
    assert_eq!(resources.gpus[0].name, "H100");
    assert_eq!(
        (resources.memory_mib, resources.disk.size_mib),
        (64 * 1024, 512 * 1024)
    );
    assert_eq!(resources.cpu_arch, Some(CpuArchitecture::Arm));
    assert_eq!((host.total_blocks, host.offer.total_blocks), (8, 8));
    let proxy = host.place.ssh_proxy.unwrap();
    assert_eq!(
        (proxy.hostname.as_str(), proxy.port, proxy.username.as_str()),
        ("j", 2022, "jump")
    );
}

#[test]
fn what_no_machine_has_is_not_believed() {
    let way = way(&json!({"user": "me", "hosts": ["a"]}), "a").unwrap();
    let told = |info: &HostInfo| {
        prepared(&way, &place(None, None), None, info, "amd64").map(|host| host.total_blocks)
    };
    assert_eq!(told(&info(256, 16)), Ok(16));
    for info in [info(u32::MAX, 0), info(8, u32::MAX)] {
        let refused = told(&info).unwrap_err().to_string();
        assert!(refused.contains("cannot be"), "{refused}");
    }
    let long = HostInfo {
        gpu_name: "x".repeat(1_000_000),
        ..info(8, 1)
    };
    assert!(told(&long).is_err());
}

#[test]
fn several_hosts_behind_one_address_have_their_own_ports_and_keys() {
    let key = |name: &str| json!({"public": "", "private": name});
    let spec = fleet(&json!({"user": "me", "ssh_key": key("fleet"), "hosts": [
        {"hostname": "nat", "port": 2201, "ssh_key": key("first"), "internal_ip": "10.0.0.1"},
        {"hostname": "nat", "port": 2202, "ssh_key": key("second"), "blocks": 2}]}));
    let random = Random::seeded(1);
    let id = random.uuid().into();
    for (port, wanted) in [(2201, "first"), (2202, "second")] {
        let way = reach(id, &spec, &at("nat", Some(port))).unwrap();
        assert_eq!(i64::from(way.host.port), port);
        assert_eq!(private_key(&spec, &way.host.keys[0]), Some(wanted));
        assert!(names_key(&spec, &way.host.keys[0]));
        // Alone, after the list has lost it.
        let alone = only(&spec, &at("nat", Some(port))).unwrap();
        assert_eq!(private_key(&alone, &way.host.keys[0]), Some(wanted));
        let empty = fleet(&json!({"user": "me", "ssh_key": key("fleet"), "hosts": []}));
        assert!(!names_key(&empty, &way.host.keys[0]));
    }
    // Nor is the one taken for the other, once the list has only that.
    assert!(reach(id, &spec, &at("nat", Some(2203))).is_none());
    assert!(only(&spec, &at("nat", None)).is_none());
    // Named when it was the only one of its name.
    let alone =
        fleet(&json!({"user": "me", "hosts": [{"hostname": "nat", "port": 2202, "ssh_key": key("second")}]}));
    let way = reach(id, &alone, &at("nat", Some(2202))).unwrap();
    assert_eq!(private_key(&spec, &way.host.keys[0]), Some("second"));
    let was = JobProvisioningData {
        internal_ip: Some("192.168.0.9".to_owned()),
        ..at("nat", Some(2201))
    };
    let (before, blocks) = as_configured(&spec, &was);
    assert_eq!(
        (before.internal_ip.as_deref(), blocks),
        (Some("10.0.0.1"), Some(1))
    );
    let (before, blocks) = as_configured(&spec, &at("nat", Some(2202)));
    assert_eq!((before.internal_ip, blocks), (None, Some(2)));
}

#[test]
fn names_and_addresses_are_compared_as_they_are_meant() {
    for (written, meant) in [
        ("Host.Example.", "host.example"),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:0DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
    ] {
        assert_eq!(normalised(written), meant);
    }
}

#[test]
fn whose_host_a_key_may_name_is_told_without_a_list() {
    let random = Random::seeded(1);
    let config = json!({"user": "me", "proxy_jump": {"hostname": "j", "user": "jump", "identity_file": "x"},
        "hosts": [{"hostname": "a", "port": 2201}, {"hostname": "a", "port": 2202}, "b"]});
    let (id, spec) = (random.uuid().into(), fleet(&config));
    for (hostname, port) in [("a", 2201), ("a", 2202), ("b", 22)] {
        let way = reach(id, &spec, &at(hostname, Some(port))).unwrap();
        for key in way.hops().flat_map(|hop| &hop.keys) {
            let named: Vec<_> = [("a", 2201), ("a", 2202), ("b", 22), ("b", 2201)]
                .into_iter()
                .filter(|(hostname, port)| may_be_named(&at(hostname, Some(*port)), key))
                .collect();
            let wanted = match port {
                // Rows of earlier versions have the name alone.
                22 => vec![("b", 22), ("b", 2201)],
                _ => vec![(hostname, port)],
            };
            assert_eq!(named, wanted, "{key:?}");
        }
    }
}
