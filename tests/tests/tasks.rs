//! Tasks as processes of this machine, through the API.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dstack_tests::http::Client;
use dstack_tests::need;
use dstack_tests::runs::{TEST_TIMEOUT, submit};
use dstack_tests::server::{Setup, eventually};
use serde_json::json;

#[test]
fn a_flood_of_output_neither_fills_the_server_nor_holds_up_others() {
    let setup = need!(Setup::local()).variable("DSTACK_SERVER_LOG_QUOTA_PER_JOB_HOUR", "0");
    let server = setup.start().unwrap();
    // 200 MB as fast as it goes, in numbered lines.
    let flood =
        "python3 -c \"import sys\nfor i in range(2000000): sys.stdout.write('%09d %s\\n' % (i, 'x' * 90))\"";
    let flooding = submit(&server, "flood", &[flood], &json!({})).unwrap();
    flooding.wait_for(&["running", "done"]).unwrap();
    let other = submit(&server, "other", &["echo not held up"], &json!({})).unwrap();
    assert_eq!(other.wait_until_finished().unwrap(), "done");
    assert_eq!(other.logs().unwrap(), "not held up\n");
    assert_eq!(flooding.wait_until_finished().unwrap(), "done");

    let pid = server.pid().unwrap();
    let status = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak_mb = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1000;
    assert!(peak_mb < 300, "the server took {peak_mb} MB");

    // Every line is there in order, or its loss is marked.
    let logs = flooding.logs().unwrap();
    let mut expected = 0;
    let mut marked = false;
    for line in logs.lines() {
        match line
            .split(' ')
            .next()
            .and_then(|number| number.parse::<u64>().ok())
        {
            Some(number) if line.len() == 100 => {
                assert!(
                    number == expected || (marked && number > expected),
                    "{number} after {expected}"
                );
                expected = number + 1;
                marked = false;
            }
            _ => marked = true,
        }
    }
    assert!(
        expected == 2_000_000 || marked,
        "the end is missing: {expected} lines"
    );
}

/// Threads have 2 MiB unless told otherwise. A program that nothing in it is optimised of takes more of it than that of the tests.
#[test]
fn a_task_takes_no_more_than_half_of_a_stack() {
    let half = (1024 * 1024).to_string();
    let server = need!(Setup::local())
        .variable("RUST_MIN_STACK", half)
        .start()
        .unwrap();
    let run = submit(&server, "small", &["echo room enough"], &json!({})).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), "room enough\n");
}

#[test]
fn two_runs_share_the_machine_only_within_its_limits() {
    let server = need!(Setup::local()).start().unwrap();
    let whole = json!({"resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB.."}});
    let first = submit(&server, "first", &["echo up", "sleep 2"], &whole).unwrap();
    let second = submit(&server, "second", &["echo up"], &whole).unwrap();
    assert_eq!(first.wait_until_finished().unwrap(), "done");
    // The second either ran beside it, or was told that there was no room; it does not hang.
    let end = second.wait_until_finished().unwrap();
    assert!(["done", "failed"].contains(&end.as_str()), "{end}");
}

#[test]
fn max_duration_ends_a_task() {
    let server = need!(Setup::local()).start().unwrap();
    let run = submit(
        &server,
        "long",
        &["echo up", "sleep 1000"],
        &json!({"max_duration": "2s"}),
    )
    .unwrap();
    run.wait_until_finished().unwrap();
    let submission = run.submission().unwrap();
    assert_eq!(submission["status"], "terminated", "{submission:#}");
    assert_eq!(
        submission["termination_reason"], "max_duration_exceeded",
        "{submission:#}"
    );
}

#[test]
fn a_run_in_use_cannot_be_deleted() {
    let server = need!(Setup::local()).start().unwrap();
    let run = submit(&server, "busy", &["echo up", "sleep 1000"], &json!({})).unwrap();
    run.wait_for_log("up").unwrap();
    let answer = server
        .call("/api/project/main/runs/delete", &json!({"runs_names": ["busy"]}))
        .unwrap();
    assert_eq!(answer.status, 400, "{}", answer.text());
    run.stop(true).unwrap();
    run.wait_until_finished().unwrap();
    server
        .get("/api/project/main/runs/delete", &json!({"runs_names": ["busy"]}))
        .unwrap();
}

#[test]
fn a_stop_works_at_any_moment() {
    let server = need!(Setup::local()).start().unwrap();
    for (number, wait) in [None, Some("provisioning"), Some("running")]
        .into_iter()
        .enumerate()
    {
        let run = submit(&server, &format!("stop-{number}"), &["sleep 1000"], &json!({})).unwrap();
        if let Some(status) = wait {
            run.wait_for(&[status, "running"]).unwrap();
        }
        run.stop(false).unwrap();
        assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    }
}

#[test]
fn retry_runs_a_failed_task_again() {
    let server = need!(Setup::local()).start().unwrap();
    let marker = server.home().join("seen");
    let command = format!(
        "test -e {0} || {{ touch {0}; echo first; exit 1; }}; echo second",
        marker.display()
    );
    let run = submit(&server, "again", &[&command], &json!({"retry": true})).unwrap();
    assert_eq!(run.wait_for(&["done"]).unwrap(), "done");
    assert_eq!(
        run.logs().unwrap(),
        "second\n",
        "the log of the latest submission"
    );
    let all = run.get().unwrap();
    let count = all
        .pointer("/jobs/0/job_submissions")
        .unwrap()
        .as_array()
        .unwrap()
        .len();
    assert_eq!(count, 2, "{all:#}");
}

#[test]
fn a_server_on_postgresql_survives_a_kill() {
    let mut server = need!(need!(Setup::local()).on_postgres()).start().unwrap();
    let run = submit(&server, "hello", &["echo from PostgreSQL", "sleep 1"], &json!({})).unwrap();
    run.wait_for_log("from PostgreSQL").unwrap();
    server.kill().unwrap();
    server.start().unwrap();
    let run = dstack_tests::runs::attach(&server, "hello");
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), "from PostgreSQL\n");
    assert!(!server.home().join(".dstack/server/data/dstack.db").exists());
}

#[test]
fn what_writes_steps_back_behind_what_reads_and_jobs_do_not() {
    let server = need!(Setup::local()).start().unwrap();
    let run = submit(&server, "priority", &["nice"], &json!({})).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    let ours = niceness(&fs_err::read_to_string("/proc/self/stat").unwrap());
    assert_eq!(run.logs().unwrap(), format!("{ours}\n"), "of the job");

    let mut last = String::new();
    // Threads come and go.
    let threads = |name: &str| -> Vec<i32> {
        let tasks = fs_err::read_dir(format!("/proc/{}/task", server.pid().unwrap())).unwrap();
        let of_name = tasks.filter_map(|task| {
            let task = task.unwrap().path();
            let comm = fs_err::read_to_string(task.join("comm")).ok()?;
            let stat = fs_err::read_to_string(task.join("stat")).ok()?;
            (comm.trim() == name).then(|| niceness(&stat) - ours)
        });
        of_name.collect()
    };
    // A thread that begins has its parent's name and priority for a moment.
    eventually("threads have their priorities", TEST_TIMEOUT, || {
        let (first, second) = (threads("dstack"), threads("dstack-work"));
        let database = threads("sqlx-sqlite-wor");
        let back = database.iter().filter(|nice| **nice == 5).count();
        let as_it_should = !first.is_empty()
            && first.iter().all(|nice| *nice == 0)
            && !second.is_empty()
            && second.iter().all(|nice| *nice == 5)
            && match dstack_tests::parts::on_postgres() {
                true => database.is_empty(),
                // Some write, some read.
                false => (1..database.len()).contains(&back),
            };
        last = format!("of the first set {first:?}, of the second {second:?}, of the database {database:?}");
        Ok(as_it_should.then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {last}"));
}

/// The 19th field of a thread's `stat`; its second may have spaces in it, in parentheses.
fn niceness(stat: &str) -> i32 {
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(16).unwrap().parse().unwrap()
}

/// As another job of the host, or another user of it, would try: on the port that the run tells everybody of the project.
#[test]
fn only_the_server_may_call_the_runner_of_a_job() {
    let server = need!(Setup::local()).start().unwrap();
    let run = submit(&server, "own", &["echo ready", "sleep 1000"], &json!({})).unwrap();
    run.wait_for_log("ready").unwrap();
    let port = run.submission().unwrap()["job_runtime_data"]["ports"]["10999"]
        .as_u64()
        .unwrap();
    let call = |method: &str, path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        Client::default().send(method, &url, &[], None).unwrap().status
    };
    for (method, path) in [
        ("GET", "/api/job"),
        ("GET", "/api/pull?timestamp=9000000000000000000"),
        ("GET", "/api/stream"),
        ("POST", "/api/stop"),
    ] {
        assert_eq!(call(method, path), 401, "{method} {path}");
    }
    assert_eq!(run.status().unwrap(), "running");
    run.stop(true).unwrap();
    run.wait_until_finished().unwrap();
}

#[test]
fn the_directory_of_the_server_and_the_environment_of_its_agent_are_not_for_others() {
    use std::os::unix::fs::MetadataExt as _;
    let setup = need!(Setup::local()).variable("DSTACK_TEST_ONLY_FOR_THE_SERVER", "canary");
    let server = setup.start().unwrap();
    let run = submit(&server, "seen", &["echo printed"], &json!({})).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    let dir = server.home().join(".dstack/server");
    assert_eq!(fs_err::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    let mut files = vec![dir.join("data/dstack.db")];
    files.retain(|_| !dstack_tests::parts::on_postgres());
    let logs = dir.join("projects/main/logs/seen");
    for job in fs_err::read_dir(logs).unwrap() {
        files.push(job.unwrap().path().join("job.log"));
    }
    for file in &files {
        assert_eq!(
            fs_err::metadata(file).unwrap().mode() & 0o077,
            0,
            "{}",
            file.display()
        );
    }
    let environments: Vec<String> = server
        .descendants()
        .into_iter()
        .filter(|pid| Some(*pid) != server.pid())
        .filter_map(|pid| fs_err::read(format!("/proc/{pid}/environ")).ok())
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect();
    assert!(!environments.is_empty(), "the agent runs");
    assert!(
        !environments.iter().any(|text| text.contains("canary")),
        "{environments:?}"
    );
}
