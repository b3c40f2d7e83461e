//! Runs of several nodes on two hosts of an SSH fleet: how nodes find, wait for and reach one another, MPI, and the end of one of them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use dstack_tests::fleets::{apply, events, start, task, until_idle};
use dstack_tests::hosts::{Host, Lab, USUAL};
use dstack_tests::runs::{Run, TEST_TIMEOUT};
use dstack_tests::server::{Server, eventually};
use dstack_tests::{need, parts};
use serde_json::{Value, json};

/// What programs of the hosts need, mounted into jobs: there is no registry with an image that has MPI.
fn with_programs(more: &Value) -> Value {
    let mounts = [
        "/usr:/usr",
        "/usr/lib:/lib",
        "/usr/lib64:/lib64",
        "/etc/alternatives:/etc/alternatives",
        "/etc/openmpi:/etc/openmpi",
    ];
    let mut fields = json!({"volumes": mounts});
    let (base, more) = (fields.as_object_mut().unwrap(), more.as_object().unwrap());
    base.extend(more.clone());
    fields
}

/// Two hosts; the first node of a run need not be on the first of them.
fn two(lab: &Lab) -> Result<[Host<'_>; 2], String> {
    Ok([lab.host("one", 2, USUAL)?, lab.host("two", 3, USUAL)?])
}

/// Makes a cluster of them; `more` has further fields of `ssh_config`.
fn cluster(server: &Server, lab: &Lab, hosts: &[Host<'_>; 2], more: &Value) {
    let entries: Vec<Value> = hosts.iter().map(Host::entry).collect();
    let mut spec = lab.fleet("lab", &entries, more).unwrap();
    spec["configuration"]["placement"] = json!("cluster");
    apply(server, &spec);
    until_idle(server, "lab", 2);
}

fn is_done(run: &Run<'_>, server: &Server) {
    let ended = run.wait_until_finished().unwrap();
    assert_eq!(ended, "done", "{:#}\n{}", run.get().unwrap(), server.output());
}

/// The lines that a node has printed, without what its shell says.
fn lines(run: &Run<'_>, node: usize) -> Vec<String> {
    run.logs_of(node).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn mpirun_starts_processes_on_both_nodes_and_ssh_leads_from_one_to_the_other() {
    need!(parts::program("mpirun"));
    let (server, lab) = need!(start());
    let hosts = need!(two(&lab));
    cluster(&server, &lab, &hosts, &json!({}));
    let commands = [
        "if [ $DSTACK_NODE_RANK != 0 ]; then sleep 600; fi",
        "for address in $DSTACK_NODES_IPS; do echo ssh $(ssh $address hostname); done",
        "for node in 0 1; do echo by-name $(ssh $DSTACK_RUN_NAME-$node-0 hostname); done",
        // The hosts' engines have networks with the same addresses: MPI must take that of the nodes.
        "mpirun --allow-run-as-root --hostfile $DSTACK_MPI_HOSTFILE --mca oob_tcp_if_include eth0 -np 2 -N 1 \
         sh -c 'echo mpi $OMPI_COMM_WORLD_RANK $(hostname)'",
    ];
    let more = json!({"nodes": 2, "startup_order": "workers-first", "stop_criteria": "master-done"});
    let run = task(&server, "train", &commands, &with_programs(&more));
    is_done(&run, &server);
    let printed = lines(&run, 0);
    for said in ["ssh one", "ssh two", "by-name one", "by-name two"] {
        assert!(printed.iter().any(|line| line == said), "{said}: {printed:#?}");
    }
    let mut by_mpi: Vec<&str> = printed
        .iter()
        .filter_map(|line| line.strip_prefix("mpi "))
        .collect();
    by_mpi.sort_unstable();
    let names: Vec<&str> = by_mpi.iter().filter_map(|line| line.get(2..)).collect();
    assert!(names == ["one", "two"] || names == ["two", "one"], "{printed:#?}");
}

#[test]
fn nodes_know_one_another_by_addresses_of_the_fleets_network() {
    let (server, lab) = need!(start());
    let hosts = need!(two(&lab));
    for (number, host) in hosts.iter().enumerate() {
        let add = format!("ip addr add 192.168.77.1{number}/24 dev eth0");
        host.run(&add).unwrap();
    }
    cluster(&server, &lab, &hosts, &json!({"network": "192.168.77.0/24"}));
    let commands = [
        "echo nodes $DSTACK_NODES_IPS",
        "echo master $DSTACK_MASTER_NODE_IP",
        "echo rank $DSTACK_NODE_RANK of $DSTACK_NODES_NUM",
        "echo gpus $DSTACK_GPUS_PER_NODE of $DSTACK_GPUS_NUM",
        "echo run $DSTACK_RUN_NAME",
        "echo file $(cat $DSTACK_MPI_HOSTFILE)",
    ];
    let run = task(&server, "train", &commands, &json!({"nodes": 2}));
    is_done(&run, &server);
    let placed: Vec<String> = (0..2)
        .map(|node| {
            let submission = run.submission_of(node).unwrap();
            let address = &submission["job_provisioning_data"]["internal_ip"];
            address.as_str().unwrap().to_owned()
        })
        .collect();
    let mut sorted = placed.clone();
    sorted.sort();
    assert_eq!(sorted, ["192.168.77.10", "192.168.77.11"]);
    let both = placed.join(" ");
    for node in 0..2 {
        let printed = lines(&run, node);
        for said in [
            format!("nodes {both}"),
            format!("master {}", placed[0]),
            format!("rank {node} of 2"),
            "gpus 0 of 0".to_owned(),
            "run train".to_owned(),
            format!("file {both}"),
        ] {
            assert!(printed.contains(&said), "{said}: {printed:#?}");
        }
    }
}

#[test]
fn groups_name_one_anothers_nodes_and_start_in_the_order_that_is_asked_for() {
    let (server, lab) = need!(start());
    let hosts = need!(two(&lab));
    cluster(&server, &lab, &hosts, &json!({}));
    let resources = dstack_tests::runs::small();
    let groups = json!([
        {"name": "head", "commands": ["echo worker ${{ groups[1].nodes[0].IP_ADDRESS }}"], "resources": resources},
        {"name": "workers", "commands": ["echo head ${{ groups[0].nodes[0].IP_ADDRESS }}", "sleep 600"],
         "resources": resources},
    ]);
    let more = json!({
        "groups": groups, "commands": null, "resources": null, "startup_order": "workers-first", "stop_criteria": "master-done",
    });
    let run = task(&server, "train", &[], &more);
    is_done(&run, &server);
    let address = |node: usize| {
        let submission = run.submission_of(node).unwrap();
        let address = &submission["job_provisioning_data"]["internal_ip"];
        address.as_str().unwrap().to_owned()
    };
    for (node, said) in [(0, "worker"), (1, "head")] {
        let line = format!("{said} {}", address(1 - node));
        assert!(
            lines(&run, node).contains(&line),
            "{line}: {:#?}",
            lines(&run, node)
        );
    }
    // The head has no task before the worker's commands run.
    let body = json!({"within_runs": [run.get().unwrap()["id"]], "limit": 100, "ascending": true});
    let story = server.get("/api/events/list", &body).unwrap();
    let story = story.as_array().unwrap();
    let position = |job: &str, status: &str| {
        let is_it = |event: &Value| {
            let message = event["message"].as_str().unwrap();
            message.starts_with("Job status changed")
                && message.contains(status)
                && event["targets"].to_string().contains(job)
        };
        story.iter().position(is_it)
    };
    let worker = position("train-1-0", "-> RUNNING").unwrap();
    let head = position("train-0-0", "-> RUNNING").unwrap();
    assert!(worker < head, "{story:#?}");
}

#[test]
fn when_a_node_is_killed_all_start_anew_if_the_run_retries_and_fail_if_not() {
    let (server, lab) = need!(start());
    let hosts = need!(two(&lab));
    cluster(&server, &lab, &hosts, &json!({}));
    // The second time it comes to its end. All nodes of a host see the host's folder.
    let commands = ["if mkdir /seen/$DSTACK_RUN_NAME; then echo waits; sleep 600; fi"];
    let retry = json!({"on_events": ["error"], "duration": "1h"});
    for (name, retry, end, submissions) in [
        ("stubborn", retry, "done", 2),
        ("meek", json!(false), "failed", 1),
    ] {
        let more = json!({"nodes": 2, "volumes": ["/tmp/seen:/seen"], "retry": retry});
        let run = task(&server, name, &commands, &more);
        eventually("both nodes wait", TEST_TIMEOUT, || {
            let waits = |node| Ok::<_, anyhow::Error>(run.logs_of(node)?.contains("waits"));
            Ok((waits(0)? && waits(1)?).then_some(()))
        })
        .unwrap();
        hosts[1].run("pkill -9 -f '^sleep 600'").unwrap();
        let ended = run.wait_until_finished().unwrap();
        assert_eq!(ended, end, "{:#}\n{:#?}", run.get().unwrap(), events(&server));
        let jobs = run.get().unwrap()["jobs"].clone();
        for job in jobs.as_array().unwrap() {
            let all = job["job_submissions"].as_array().unwrap();
            assert_eq!(all.len(), submissions, "{name}: {jobs:#}");
        }
    }
}
