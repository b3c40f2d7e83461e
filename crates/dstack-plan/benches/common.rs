//! What is measured.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss
)]

use std::collections::{BTreeMap, HashMap};

use dstack_model::fleets::FleetSpec;
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceStatus, Resources};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, JobSpec, RunSpec};
use dstack_plan::ServerDefaults;
use dstack_plan::fleets::Fleet;
use dstack_plan::jobs::{JobContext, Target, job_specs};
use dstack_plan::matching::{Defaults, Machine, check};
use dstack_plan::offers::{AvailableOffers, Query};
use dstack_plan::placement::{Candidate, FleetOwner, Request};
use dstack_plan::queue::{OfferSource, Placement, Placer};
use serde_json::{Value, json};
use uuid::Uuid;

/// A task as people write it.
pub(crate) const TASK: &str = "\
type: task
name: train
python: 3.12
nodes: 2
env:
  - HF_HUB_ENABLE_HF_TRANSFER=1
  - WANDB_PROJECT=llama
commands:
  - uv pip install -r requirements.txt
  - torchrun --nproc-per-node $DSTACK_GPUS_PER_NODE --nnodes $DSTACK_NODES_NUM train.py --epochs 3
ports: [6006, '8080:80']
volumes:
  - name: data-${{ dstack.node_rank }}
    path: /data
  - /var/cache:/cache
resources:
  cpu: 8..
  memory: 64GB..
  gpu: A100,H100:40GB..:1..8
  disk: 200GB
  shm_size: 16GB
spot_policy: auto
max_price: 20
max_duration: 12h
retry:
  on_events: [no-capacity, interruption]
  duration: 4h
utilization_policy:
  min_gpu_utilization: 10
  time_window: 1h
";

/// A run with a configuration.
pub(crate) fn run_spec(configuration: &Value) -> RunSpec {
    let value = json!({"run_name": "train", "configuration": configuration});
    dstack_model::decode::decode_strict(&value).unwrap()
}

/// A queue, and what it is placed on: 40 kinds of instances in 20 fleets, 250 kinds of jobs, of which some fit nowhere.
pub(crate) struct World {
    runs: Vec<(RunSpec, Vec<JobSpec>)>,
    jobs: usize,
    specs: Vec<FleetSpec>,
    kinds: Vec<(Offer, JobProvisioningData)>,
    instances: usize,
    pub(crate) market: Vec<Offer>,
}

const GPUS: [(&str, i64); 5] = [
    ("A100", 81920),
    ("H100", 81920),
    ("L4", 24576),
    ("T4", 16384),
    ("A10G", 24576),
];
const REGIONS: [&str; 4] = ["us-east-1", "us-west-2", "eu-west-1", "ap-south-1"];

fn machine(kind: usize) -> Value {
    let (name, memory) = GPUS[kind % GPUS.len()];
    let gpus = vec![json!({"name": name, "memory_mib": memory, "vendor": "nvidia"}); kind % 9];
    let cpus = 4 << (kind % 5);
    json!({"name": format!("type-{kind}"), "resources": {"cpus": cpus, "memory_mib": cpus * 8192, "gpus": gpus, "spot": kind.is_multiple_of(7)}})
}

fn offer(kind: usize, price: f64) -> Offer {
    let value = json!({"backend": "aws", "instance": machine(kind), "region": REGIONS[kind % 4], "price": price,
                       "availability": "available"});
    serde_json::from_value(value).unwrap()
}

impl World {
    pub(crate) fn new(jobs: usize, instances: usize, offers: usize) -> Self {
        let configuration = |kind: usize| {
            json!({"type": "task", "commands": ["train"], "spot_policy": "auto",
                   "max_price": 1 + kind % 10,
                   "resources": {"cpu": format!("{}..", 2 << (kind % 6)), "memory": "8GB..",
                                 "gpu": {"count": format!("{}..", kind % 10), "name": GPUS[kind % 5].0}}})
        };
        let server = ServerDefaults::default();
        let runs = (0..250)
            .map(|kind| {
                let spec = run_spec(&configuration(kind));
                let context = JobContext {
                    server: &server,
                    images: &BTreeMap::new(),
                    target: Target::Container,
                };
                let jobs = job_specs(&spec, 0, None, &context).unwrap();
                (spec, jobs)
            })
            .collect();
        let spec =
            json!({"configuration": {"type": "fleet", "nodes": "0..", "spot_policy": "auto"}, "profile": {}});
        let kinds = (0..40)
            .map(|kind| {
                let place = json!({"backend": "aws", "instance_type": machine(kind), "instance_id": "i", "region": REGIONS[kind % 4],
                                   "price": kind, "username": "u", "dockerized": true});
                (offer(kind, 0.5 + kind as f64 / 10.0), serde_json::from_value(place).unwrap())
            })
            .collect();
        let market = (0..offers)
            .map(|at| offer(at % 400, 0.1 + at as f64 / 5000.0))
            .collect();
        Self {
            runs,
            jobs,
            specs: vec![serde_json::from_value(spec).unwrap(); 20],
            kinds,
            instances,
            market,
        }
    }

    pub(crate) fn queue(&self) -> Vec<Request<'_>> {
        (0..self.jobs)
            .map(|at| {
                let (run, jobs) = &self.runs[at % self.runs.len()];
                Request::new(run, &jobs[0])
            })
            .collect()
    }

    /// Places the jobs one after the other; how many got a place.
    pub(crate) fn place(&self, queue: &[Request<'_>], fleets: &[Fleet<'_>]) -> usize {
        let (mut placer, mut source) = (Placer::new(fleets), Source::new(&self.market));
        let places = queue.iter().map(|request| placer.place(request, &mut source));
        places
            .filter(|place| matches!(place, Placement::Instance(_) | Placement::New(_)))
            .count()
    }

    pub(crate) fn fleets(&self) -> Vec<Fleet<'_>> {
        let fleets = self.specs.iter().enumerate();
        fleets
            .map(|(number, spec)| {
                let id = Uuid::from_u128(1_000_000 + number as u128).into();
                let own = (0..self.instances).filter(|at| at % self.specs.len() == number);
                let instances = own
                    .map(|at| {
                        let (offer, place) = &self.kinds[at % self.kinds.len()];
                        Candidate {
                            fleet_id: id,
                            fleet_name: "fleet",
                            fleet_owner: FleetOwner::OWN,
                            fleet_spec: spec,
                            local: false,
                            rules: None,
                            instance_id: Uuid::from_u128(at as u128).into(),
                            instance_name: "instance",
                            instance_num: 0,
                            status: InstanceStatus::Idle,
                            unreachable: false,
                            unreachable_since: None,
                            leaving: false,
                            health: HealthStatus::Healthy,
                            total_blocks: Some(1),
                            busy_blocks: 0,
                            offer: Some(offer),
                            provisioning: Some(place),
                        }
                    })
                    .collect();
                Fleet {
                    id,
                    name: "fleet",
                    project: Some("main"),
                    own: true,
                    spec,
                    master: None,
                    anchor_pending: false,
                    instances,
                }
            })
            .collect()
    }
}

/// Offers that are known at once. Those with the same resources are matched once for each question, so that what is
/// measured is the placing.
struct Source<'a> {
    offers: &'a [Offer],
    kinds: Vec<usize>,
    resources: Vec<&'a Resources>,
}

impl<'a> Source<'a> {
    fn new(offers: &'a [Offer]) -> Self {
        let mut known: HashMap<&Resources, usize> = HashMap::new();
        let mut resources = Vec::new();
        let kinds = offers
            .iter()
            .map(|offer| {
                *known.entry(&offer.instance.resources).or_insert_with(|| {
                    resources.push(&offer.instance.resources);
                    resources.len() - 1
                })
            })
            .collect();
        Self {
            offers,
            kinds,
            resources,
        }
    }
}

impl OfferSource for Source<'_> {
    fn offers(&mut self, query: &Query, _: Option<&JobProvisioningData>) -> Option<AvailableOffers> {
        let suits = |resources: &&Resources| {
            let machine = Machine::whole(resources, 0.0);
            check(&query.requirements, machine, Defaults::Enforced).is_ok()
        };
        let suits: Vec<bool> = self.resources.iter().map(suits).collect();
        let max_price = query.requirements.max_price.unwrap_or(f64::INFINITY);
        let mut offers = self.offers.iter().zip(&self.kinds);
        let first = offers.find(|(offer, kind)| {
            offer.price <= max_price
                && suits[**kind]
                && offer.availability.is_available()
                && query.admits(offer).is_ok()
        });
        let best: Vec<Offer> = first.map(|(offer, _)| offer.clone()).into_iter().collect();
        Some(AvailableOffers {
            total: best.len(),
            best,
            late: Vec::new(),
        })
    }
}
