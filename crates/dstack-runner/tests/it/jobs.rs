//! What jobs see, and how they end by themselves.

use serde_json::json;
use sha2::{Digest, Sha256};

use dstack_agent_api::runner::JobState;
use dstack_agent_api::stream::StreamLine;

use crate::harness::{TestRunner, body, ended, is_root, last_state, log_of, state, states};

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes() {
    for (script, expected) in [
        ("true", state(JobState::Done, Some(0))),
        ("exit 3", state(JobState::Failed, Some(3))),
        ("exit 255", state(JobState::Failed, Some(255))),
    ] {
        let (_, last) = TestRunner::start().await.outcome(script).await;
        assert_eq!(last, expected, "{script}");
    }
    let (_, killed) = TestRunner::start().await.outcome("kill -9 $$").await;
    assert_eq!((killed.state, killed.exit_status), (JobState::Failed, Some(-1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_a_terminals_without_its_carriage_returns() {
    let runner = TestRunner::start().await;
    let script = r"test -t 0 && test -t 1 && test -t 2 && echo terminal; printf 'a\n\n\033[31mred\033[0m\n10%%\r99%%\nend'";
    let (log, last) = runner.outcome(script).await;
    assert_eq!(log, "terminal\na\n\nred\n99%\nend\n");
    assert_eq!(last.state, JobState::Done);
    let raw = fs_err::read_to_string(runner.path("temp/job.log")).unwrap();
    assert_eq!(raw, "terminal\r\na\r\n\r\n\x1b[31mred\x1b[0m\r\n10%\r99%\r\nend");
}

#[tokio::test(flavor = "multi_thread")]
async fn states_stand_around_the_logs() {
    let runner = TestRunner::start().await;
    runner.run_script("echo hello").await;
    let events = runner.events().await;
    let job: Vec<&StreamLine> = events
        .iter()
        .filter(|event| !matches!(event, StreamLine::RunnerLog(_)))
        .collect();
    assert!(
        matches!(
            job.as_slice(),
            [StreamLine::State(_), StreamLine::Log(_), StreamLine::State(_)]
        ),
        "{job:?}"
    );
    let states: Vec<JobState> = states(&events).iter().map(|state| state.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Done]);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, StreamLine::RunnerLog(_)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_cannot_start_say_why() {
    for (commands, message) in [
        (
            json!(["no-such-program"]),
            "Failed to start no-such-program: not found in the image",
        ),
        (json!(["/"]), "Failed to start /: permission denied"),
        (json!([]), "Failed to start the command: no command"),
        (json!(null), "Failed to start the command: no command"),
    ] {
        let runner = TestRunner::start().await;
        let mut spec = runner.spec("");
        spec["commands"] = commands;
        runner.run(spec).await;
        assert_eq!(
            last_state(&runner.events().await),
            ended("", message, JobState::Failed)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_and_directory() {
    let runner = TestRunner::start().await;
    let mut spec = runner.spec("echo $PWD; echo $A-$DSTACK_RUN_NAME-$DSTACK_JOB_ID-$DSTACK_NODES_NUM; cat $DSTACK_MPI_HOSTFILE; ls -d $HOME");
    spec["env"] = json!({"A": "1"});
    let mut body = body(&spec);
    body.cluster_info.job_ips = vec!["10.0.0.1".to_owned()];
    body.cluster_info.gpus_per_job = 2;
    runner.client.submit(&body).await.unwrap();
    let info = runner.client.run().await.unwrap().unwrap();
    let work = runner.path("work");
    assert_eq!(info.working_dir, work.to_str().unwrap());
    let log = log_of(&runner.events().await);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(
        lines[..3],
        [work.to_str().unwrap(), "1-test-run-job-id-1", "10.0.0.1 slots=2"]
    );
    let profile = fs_err::read_to_string(runner.path("state/profile")).unwrap();
    assert!(
        profile.contains("export A='1'\n") && !profile.contains("export HOME="),
        "{profile}"
    );
    assert!(!profile.contains(dstack_runner::TOKEN_VARIABLE));
    use std::os::unix::fs::MetadataExt;
    let profile = fs_err::metadata(runner.path("state/profile")).unwrap();
    assert_eq!(profile.mode() & 0o777, 0o600, "secrets are in it");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_places_fail_with_their_reason() {
    let unknown = json!({"username": "no-such-user-here"});
    let cases = [
        (
            "user",
            unknown,
            "Failed to set job user (unknown user no-such-user-here: the image has no such account)",
        ),
        (
            "user",
            json!({"uid": null}),
            "Failed to set job user (neither uid nor username is set)",
        ),
        (
            "working_dir",
            json!("relative"),
            "Failed to set job working dir (relative: the path must be absolute)",
        ),
        (
            "working_dir",
            json!("~other/x"),
            "Failed to set job working dir (~other/x: ~user is not supported, use ~ or an absolute path)",
        ),
        (
            "file_archives",
            json!([{"id": "a-1", "path": "x"}]),
            "Failed to set up files (archive a-1 was not uploaded)",
        ),
    ];
    for (key, value, message) in cases {
        let runner = TestRunner::start().await;
        let mut spec = runner.spec("echo never");
        spec[key] = value;
        runner.client.submit(&body(&spec)).await.unwrap();
        let info = runner.client.run().await.unwrap();
        assert_eq!(info.is_none(), key != "file_archives", "{key}");
        let events = runner.events().await;
        assert_eq!(
            last_state(&events),
            ended("executor_error", message, JobState::Failed)
        );
        assert_eq!(log_of(&events), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_as_another_user() {
    if !is_root() {
        println!("skipped: only root can switch users");
        return;
    }
    let runner = TestRunner::start().await;
    // The user must reach its directory.
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    fs_err::set_permissions(runner.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut spec = runner
        .spec("id -u; id -g; id -G; echo $HOME; touch file && stat -c %u file .; test -w $(tty) && echo tty");
    spec["user"] = json!({"uid": 54321, "gid": 54322});
    runner.run(spec).await;
    let log = log_of(&runner.events().await);
    assert_eq!(log, "54321\n54322\n54322\n/\n54321\n54321\ntty\n");
    let profile = fs_err::metadata(runner.path("state/profile")).unwrap();
    assert_eq!((profile.uid(), profile.mode() & 0o777), (54321, 0o600));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_lines_arrive_in_order() {
    let runner = TestRunner::start().await;
    runner.run_script("seq 1 1000000").await;
    let mut stream = runner.client.stream(0).await.unwrap();
    let mut hash = Sha256::new();
    let mut cursor = 0;
    while let Some(line) = stream.next().await.unwrap() {
        if let Some(timestamp) = line.event_timestamp() {
            assert!(timestamp > cursor);
            cursor = timestamp;
        }
        if let StreamLine::Log(log) = line {
            hash.update(&log.message);
            runner.client.ack(log.timestamp).await.unwrap();
        }
    }
    let mut expected = Sha256::new();
    for n in 1..=1_000_000 {
        expected.update(format!("{n}\n"));
    }
    assert_eq!(hash.finalize(), expected.finalize());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_log_ends_the_job() {
    let runner = TestRunner::start().await;
    let mut body = body(&runner.spec("echo first; while :; do echo 0123456789; done"));
    body.log_quota_hour = Some(100_000);
    runner.run_body(body).await;
    let events = runner.events().await;
    let message = "Job log output exceeded the hourly quota of 100000 bytes";
    assert_eq!(
        last_state(&events),
        ended("log_quota_exceeded", message, JobState::Failed)
    );
    let log = log_of(&events);
    assert!(
        log.starts_with("first\n0123456789\n") && log.len() <= 100_000,
        "{}",
        log.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_come_first() {
    let runner = TestRunner::with(
        &[
            "--notice",
            "no container engine: image ignored",
            "--notice",
            "two",
        ],
        None,
    )
    .await;
    runner.run_script("echo hello").await;
    let events = runner.events().await;
    assert_eq!(
        log_of(&events),
        "no container engine: image ignored\ntwo\nhello\n"
    );
    let runner_log = events
        .iter()
        .find_map(|e| {
            if let StreamLine::RunnerLog(log) = e {
                Some(log)
            } else {
                None
            }
        })
        .unwrap();
    assert!(String::from_utf8_lossy(&runner_log.message).contains("no container engine: image ignored"));
}

/// Servers name a folder at the root for the repo when nobody else does: on a host it is the job's own.
#[tokio::test(flavor = "multi_thread")]
async fn the_fixed_repo_folder_of_a_job_on_a_host_is_among_its_own_files() {
    for (repo_dir, working_dir) in [
        (json!("/workflow"), json!("/workflow/src")),
        (json!(null), json!(null)),
    ] {
        let runner = TestRunner::start().await;
        runner
            .run(
                json!({"commands": ["/bin/sh", "-c", "echo $DSTACK_REPO_DIR; pwd"], "repo_dir": repo_dir,
                "working_dir": working_dir, "jobs_per_replica": 1}),
            )
            .await;
        let events = runner.events().await;
        assert_eq!(last_state(&events).state, JobState::Done, "{}", log_of(&events));
        let log = log_of(&events);
        let (repo, work) = log.trim_end().split_once('\n').unwrap();
        let own = runner.path("").display().to_string();
        assert!(repo.starts_with(&own) && repo.ends_with("/workflow"), "{log}");
        if working_dir.is_string() {
            assert_eq!(work, format!("{repo}/src"));
        }
    }
}
