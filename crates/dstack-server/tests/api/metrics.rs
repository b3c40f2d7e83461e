//! `/metrics`: what Prometheus scrapes.

use dstack_model::runs::{JobProvisioningData, JobRuntimeData, JobStatus};
use dstack_store::queries::metrics::MetricsPoint;
use dstack_store::rows::JobRow;
use dstack_store::{Commit, EngineStore, Json, Put, Sealed};
use dstack_units::Time;
use serde_json::json;

use super::proxy::{get, serving_on};
use super::{ADMIN, Server, TestServer, request};

fn place() -> JobProvisioningData {
    let resources =
        json!({"cpus": 4, "memory_mib": 1024, "gpus": [], "spot": false, "disk": {"size_mib": 1024}});
    serde_json::from_value(json!({
        "backend": "aws", "instance_type": {"name": "small", "resources": resources}, "instance_id": "i",
        "hostname": "h", "region": "eu", "price": 0.5, "username": "u", "ssh_port": 22, "dockerized": true,
    }))
    .unwrap()
}

/// The second node of each run has a share of its instance.
fn share(job_num: i64) -> Option<JobRuntimeData> {
    let resources =
        json!({"cpus": 2, "memory_mib": 512, "gpus": [], "spot": false, "disk": {"size_mib": 1024}});
    let offer = json!({
        "backend": "aws", "instance": {"name": "small", "resources": resources}, "region": "eu", "price": 0.25,
        "availability": "available",
    });
    let data = json!({"network_mode": "bridge", "offer": offer});
    (job_num == 1).then(|| serde_json::from_value(data).unwrap())
}

/// Submits runs of two nodes each, which run as an engine would make them, and gives their jobs.
pub(super) async fn running(server: &Server, runs: &[&str]) -> Vec<JobRow> {
    for name in runs {
        let configuration = json!({"type": "task", "commands": ["a"], "nodes": 2});
        let spec = json!({"run_name": name, "configuration": configuration});
        let plan = json!({"plan": {"run_spec": spec}, "force": false});
        server.main("runs/apply", plan).await.ok();
    }
    let mut jobs = Vec::new();
    for name in runs {
        let run = server
            .state
            .data
            .database
            .run_by_name(server.main_project().await, name)
            .await;
        let run = run.unwrap().unwrap().run.id;
        jobs.extend(server.state.data.database.views().jobs(&[run]).await.unwrap());
    }
    let now = server.state.data.clock.now();
    let puts = jobs.iter().cloned().map(|mut job| {
        job.advance(JobStatus::Provisioning, now).unwrap();
        job.advance(JobStatus::Running, now).unwrap();
        job.job_provisioning_data = Some(Sealed::new(place()));
        job.job_runtime_data = share(job.job_num).map(Json::new);
        Put::Job(job)
    });
    let commit = Commit::unchecked(puts.collect(), Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    jobs
}

pub(super) async fn measured(server: &Server, job: &JobRow, at: i64, cpu_usage_micro: i64) {
    let point = MetricsPoint {
        at: Time::from_micros(at),
        cpu_usage_micro,
        memory_usage_bytes: 1,
        memory_working_set_bytes: 1,
        gpus_memory_usage_bytes: vec![1],
        gpus_util_percent: vec![1],
        ..MetricsPoint::default()
    };
    server
        .state
        .data
        .store()
        .add_metrics(job.id, point)
        .await
        .unwrap();
}

#[tokio::test]
async fn each_job_has_its_latest_numbers() {
    let server = TestServer::new().settings(|settings| settings.prometheus = true);
    let server = server.start().await;
    let jobs = running(&server, &["first", "second"]).await;
    let [one, other, third, _unmeasured] = jobs.as_slice() else {
        panic!("{} jobs", jobs.len());
    };
    for (job, newest) in [(one, 3_000_000), (other, 5_000_000), (third, 7_000_000)] {
        measured(&server, job, 1_000, 1).await;
        measured(&server, job, 3_000, newest).await;
        measured(&server, job, 2_000, 2).await;
    }
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let latest = server.state.data.database.metrics().latest(&ids).await.unwrap();
    assert_eq!(latest.len(), 3);
    assert!(latest.values().all(|point| point.at == Time::from_micros(3_000)));

    let text = server.send(request("GET", "/metrics", None, None)).await.ok();
    let text = text.as_str().unwrap();
    let line = |family: &str, job: &JobRow| {
        let of_job =
            |line: &&str| line.starts_with(&format!("{family}{{")) && line.contains(&job.id.to_string());
        text.lines().find(of_job)
    };
    let value = |family: &str, job: &JobRow| line(family, job)?.rsplit_once(' ')?.1.parse::<f64>().ok();
    for (job, seconds) in jobs.iter().zip([Some(3.0), Some(5.0), Some(7.0), None]) {
        assert_eq!(value("dstack_job_cpu_time_seconds_total", job), seconds);
        let (cpus, price) = if job.job_num == 1 { (2.0, 0.25) } else { (4.0, 0.5) };
        assert_eq!(value("dstack_job_cpu_count", job), Some(cpus));
        assert_eq!(value("dstack_job_price_dollars_per_hour", job), Some(price));
        // What has no GPUs has no numbers of them, whatever was measured.
        assert_eq!(value("dstack_job_gpu_usage_ratio", job), None);
    }
    for (job, run) in jobs.iter().zip(["first", "first", "second", "second"]) {
        let line = line("dstack_job_cpu_count", job).unwrap();
        assert!(line.contains(&format!("dstack_run_name=\"{run}\"")), "{line}");
    }
}

/// What is measured of the network of one job only is told of that one.
#[tokio::test]
async fn what_goes_through_the_network_of_a_job_is_told_as_a_rate() {
    let server = TestServer::new().start().await;
    let jobs = running(&server, &["first"]).await;
    let store = server.state.data.store();
    for (job, second, received) in [
        (&jobs[0], 1, Some(1_000)),
        (&jobs[0], 2, Some(5_000_000_000)),
        (&jobs[0], 3, Some(10)),
        (&jobs[1], 1, None),
        (&jobs[1], 2, None),
    ] {
        let point = MetricsPoint {
            at: Time::from_millis(second * 1000),
            network_receive_bytes: received,
            network_transmit_bytes: received.map(|bytes| bytes / 2),
            ..MetricsPoint::default()
        };
        store.add_metrics(job.id, point).await.unwrap();
    }
    let network = async |job_num: i64| {
        let path = format!("/api/project/main/metrics/job/first?limit=10&job_num={job_num}");
        let answer = server.send(request("GET", &path, Some(ADMIN), None)).await.ok();
        let mut all = answer["metrics"].as_array().unwrap().clone();
        all.retain(|metric| metric["name"].as_str().unwrap().starts_with("network"));
        all
    };
    let at = json!(["1970-01-01T00:00:02Z"]);
    assert_eq!(
        network(0).await,
        [
            json!({"name": "network_receive_bytes_per_second", "timestamps": at, "values": [4_999_999_000_i64]}),
            json!({"name": "network_transmit_bytes_per_second", "timestamps": at, "values": [2_499_999_500_i64]}),
        ]
    );
    assert_eq!(network(1).await, Vec::<serde_json::Value>::new());
}

#[tokio::test]
async fn requests_to_services_are_told() {
    let server = TestServer::new()
        .settings(|settings| settings.prometheus = true)
        .start()
        .await;
    let server = serving_on(server, json!({"auth": false, "model": "org/m"})).await;
    for path in ["a", "b?secret=1"] {
        get(&server, &format!("/proxy/services/main/web/{path}"), None)
            .await
            .ok();
    }
    let usage =
        json!({"model": "org/m", "messages": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    server
        .post(ADMIN, "/proxy/models/main/chat/completions", usage)
        .await
        .ok();
    let text = server.send(request("GET", "/metrics", None, None)).await.ok();
    let text = text.as_str().unwrap();
    let value = |name: &str, labels: &[&str]| -> f64 {
        let is_it = |line: &&str| {
            line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
        };
        let line = text.lines().find(is_it);
        let value = line
            .and_then(|line| line.rsplit_once(' '))
            .map(|(_, value)| value.parse());
        value
            .unwrap_or_else(|| panic!("no {name} {labels:?} in {text}"))
            .unwrap()
    };
    let web = "dstack_project_name=\"main\",dstack_run_name=\"web\"";
    let is = |name: &str, labels: &[&str], expected: f64| {
        let found = value(name, &[&[web], labels].concat());
        assert!(
            (found - expected).abs() < f64::EPSILON,
            "{name} {labels:?}: {found}"
        );
    };
    is("dstack_service_requests_total", &["code=\"2xx\""], 3.0);
    is("dstack_service_requests_total", &["code=\"5xx\""], 0.0);
    is("dstack_service_requests_in_flight", &[], 0.0);
    is(
        "dstack_service_request_duration_seconds_bucket",
        &["le=\"+Inf\""],
        3.0,
    );
    is("dstack_service_response_head_seconds_count", &[], 3.0);
    is("dstack_service_tokens_total", &["type=\"prompt\""], 3.0);
    is("dstack_service_tokens_total", &["type=\"completion\""], 4.0);
    assert!(
        text.contains("# TYPE dstack_service_request_duration_seconds histogram\n"),
        "{text}"
    );
}
