//! The first plan of a server that has just been started, and those after it, with clouds that take their time to say what they offer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::CloudRift;
use dstack_emulator_lambda::{Lambda, Size};
use dstack_emulator_runpod::{Runpod, Size as PodSize};
use serde_json::{Value, json};

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::Latency;
use crate::server::Server;

/// How often the server is started.
const STARTS: usize = 20;
/// Plans that are asked for one after another, after the first.
const PLANS: usize = 20;

/// Of each answer of a cloud across the sea.
const USUAL: Duration = Duration::from_millis(300);
/// Of each answer of a slow one.
const SLOW: Duration = Duration::from_secs(30);

/// What the clouds have, by the names of their sizes.
const OFFERED: [(&str, &str); 3] = [
    ("cloudrift", "rtx49-10c.1"),
    ("lambda", "gpu_1x_a10"),
    ("runpod", "cpu3c-2-4"),
];

pub(super) fn first_plans(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let mut clouds = Clouds::start(subject)?;
    let usual = clouds.plans(USUAL, USUAL)?;
    let slow = clouds.plans(USUAL, SLOW)?;
    let (three, seconds) = ("three clouds that take 0.3 s an answer", SLOW.as_secs());
    let two = format!("two such clouds and one that takes {seconds} s an answer, which is named");
    let mut figures = Vec::new();
    for (clouds, plans, p50) in [(three, usual, "≤ 1 s"), (&two, slow, "≤ 3 s")] {
        let first =
            |percentile| format!("first plan of a server that was just started, {clouds}, {percentile}");
        figures.push(figure(first("p50"), Unit::Seconds, p50, plans.first.p50));
        figures.push(figure(first("p99"), Unit::Seconds, "≤ 3 s", plans.first.p99));
        figures.push(figure(
            format!("later plans, {clouds}, p50"),
            Unit::Seconds,
            "≤ 20 ms",
            plans.later.p50,
        ));
    }
    Ok(figures)
}

/// How long plans take, in seconds.
struct Plans {
    first: Latency,
    later: Latency,
}

/// A server with three clouds.
struct Clouds {
    server: Server,
    /// Of each answer of the first two, and of the third, in milliseconds.
    delays: [Arc<AtomicU64>; 2],
}

impl Clouds {
    fn start(subject: &Subject) -> Result<Clouds> {
        let delays: [Arc<AtomicU64>; 2] = Default::default();
        let key = "key";
        let [(_, rift), (_, gpu), (_, pod)] = OFFERED;
        let cloudrift = CloudRift::new(key, vec![(rift.to_owned(), "us-east-nc-nr-1".to_owned())]);
        let size = Size {
            name: gpu.to_owned(),
            region: "us-east-1".to_owned(),
        };
        let lambda = Lambda::new(key, vec![size]);
        let pod = PodSize {
            name: pod.to_owned(),
            place: "EUR-IS-1".to_owned(),
            gpus: 0,
            cpus: 2,
            memory: 4.0,
            disk: Some(20.0),
            is_for_clusters: false,
        };
        let runpod = Runpod::new(key, vec![pod]);
        let endpoints = format!(
            "cloudrift=http://{}/api/v1,runpod=http://{},lambda=http://{}/api/v1",
            serve(delayed(cloudrift.router(), &delays[0])),
            serve(delayed(runpod.router(), &delays[0])),
            serve(delayed(lambda.router(), &delays[1])),
        );
        let server = subject
            .server()
            .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoints)
            .start()?;
        for config in [
            json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}}),
            json!({"type": "lambda", "creds": {"type": "api_key", "api_key": key}}),
            json!({"type": "runpod", "regions": ["EUR-IS-1"], "creds": {"type": "api_key", "api_key": key}}),
        ] {
            server.get("/api/project/main/backends/create", &config)?;
        }
        Ok(Clouds { server, delays })
    }

    /// Of servers that are started anew, with clouds that take so long.
    fn plans(&mut self, two: Duration, third: Duration) -> Result<Plans> {
        for (delay, of) in self.delays.iter().zip([two, third]) {
            delay.store(u64::try_from(of.as_millis())?, Ordering::Relaxed);
        }
        let missing = (third == SLOW).then_some("lambda");
        let (mut first, mut later) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            self.server.terminate()?;
            self.server.start()?;
            first.push(self.plan(missing)?);
        }
        for _ in 0..PLANS {
            later.push(self.plan(missing)?);
        }
        Ok(Plans {
            first: Latency::of(first),
            later: Latency::of(later),
        })
    }

    /// How long one takes, in seconds, which has the offers of all clouds but one, and names that one.
    fn plan(&self, missing: Option<&str>) -> Result<f64> {
        let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": "0.."});
        let configuration = json!({"type": "task", "commands": ["true"], "resources": resources});
        let spec = json!({"run_name": "plan", "configuration": configuration});
        let request = json!({"run_spec": spec, "for_offers_only": true, "max_offers": 10_000});
        let begun = Instant::now();
        let plan = self.server.get("/api/project/main/runs/get_plan", &request)?;
        let took = begun.elapsed().as_secs_f64();
        let offers = plan["job_plans"][0]["offers"].as_array().context("no offers")?;
        for (cloud, size) in OFFERED {
            let is_there = offers.iter().any(|offer| offer["instance"]["name"] == size);
            ensure!(
                is_there == (missing != Some(cloud)),
                "of {cloud}: {is_there}, {:#}",
                plan["notices"]
            );
        }
        let notices = plan["notices"].as_array().cloned().unwrap_or_default();
        let named = notices.iter().filter_map(Value::as_str).collect::<String>();
        ensure!(
            missing.map_or(named.is_empty(), |missing| named.contains(missing)),
            "named as missing: {named}"
        );
        Ok(took)
    }
}

/// The answers of a cloud come so many milliseconds later.
fn delayed(cloud: Router, delay: &Arc<AtomicU64>) -> Router {
    let delay = Arc::clone(delay);
    cloud.layer(from_fn(move |request: Request, next: Next| {
        let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
        async move {
            tokio::time::sleep(delay).await;
            next.run(request).await
        }
    }))
}
