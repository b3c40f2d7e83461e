//! In virtual time.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{BackendKind, Capabilities, ComputeError, ConfigureError, Owned, Removal};
use dstack_model::profiles::Profile;
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use super::*;

/// A cloud with one offer, or none.
#[derive(Debug)]
struct Cloud {
    kind: BackendType,
    /// Until it answers; unset: it never does.
    delay: Option<Duration>,
    answer: std::result::Result<Vec<Offer>, ComputeError>,
    /// How often it was asked, and how often it has answered.
    asked: AtomicUsize,
    answered: AtomicUsize,
}

impl Cloud {
    fn new(
        kind: BackendType,
        delay: Option<Duration>,
        answer: std::result::Result<Vec<Offer>, ComputeError>,
    ) -> Arc<Self> {
        Arc::new(Self {
            kind,
            delay,
            answer,
            asked: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
        })
    }

    /// With an offer that it tells after so many seconds.
    fn after(kind: BackendType, seconds: f64) -> Arc<Self> {
        Self::new(
            kind,
            Some(Duration::from_secs_f64(seconds)),
            Ok(vec![offer(kind)]),
        )
    }

    fn silent(kind: BackendType) -> Arc<Self> {
        Self::new(kind, None, Ok(Vec::new()))
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.asked.load(Ordering::SeqCst),
            self.answered.load(Ordering::SeqCst),
        )
    }
}

fn offer(kind: BackendType) -> Offer {
    serde_json::from_value(json!({
        "backend": kind, "region": "here", "price": 1.0, "availability": "available",
        "instance": {"name": format!("{kind}-size"), "resources": {"cpus": 8, "memory_mib": 32768, "gpus": [], "spot": false}},
    }))
    .unwrap()
}

#[async_trait]
impl BackendKind for Cloud {
    fn kind(&self) -> BackendType {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create_instance: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, _: &SplitConfig) -> std::result::Result<Arc<dyn Backend>, ComputeError> {
        Err(ComputeError::Unsupported("opening"))
    }
}

#[async_trait]
impl Backend for Cloud {
    fn backend_kind(&self) -> &dyn BackendKind {
        self
    }

    async fn offers(&self, _: &Requirements) -> std::result::Result<Vec<Offer>, ComputeError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.delay {
            Some(delay) => sleep(delay).await,
            None => pending().await,
        }
        self.answered.fetch_add(1, Ordering::SeqCst);
        self.answer.clone()
    }

    async fn inventory(&self) -> std::result::Result<Vec<Owned>, ComputeError> {
        panic!("only offers are asked for")
    }

    async fn remove_owned(&self, _: &Owned) -> std::result::Result<Removal, ComputeError> {
        panic!("a plan changes nothing")
    }
}

fn source(clouds: &[&Arc<Cloud>], late: &LateOffers) -> OfferSource {
    let backends = clouds.iter().map(|cloud| Arc::clone(cloud) as Arc<dyn Backend>);
    OfferSource {
        project: ProjectId::new(Uuid::nil()),
        backends: backends.collect(),
        answers: Vec::new(),
        late: late.clone(),
        begun: Instant::now(),
    }
}

/// Asks for any machine that costs no more an hour than this.
fn query(max_price: f64) -> Query {
    let requirements = json!({"resources": {}, "max_price": max_price});
    Query::new(&Profile::default(), serde_json::from_value(requirements).unwrap())
}

/// Types of the backends whose offers are told, and after how many seconds.
async fn told(source: &mut OfferSource, query: &Query) -> (Vec<&'static str>, f64) {
    let begun = Instant::now();
    let offers = source.offers(query, None).await;
    let kinds = offers.iter().map(|offer| offer.backend.as_str()).collect();
    (kinds, begun.elapsed().as_secs_f64())
}

#[test]
fn other_servers_know_a_late_backend_by_what_is_said_of_it() {
    assert!(LATE.starts_with(dstack_model::runs::NOT_ANSWERED_YET));
}

#[tokio::test(start_paused = true)]
async fn backends_that_are_late_or_fail_are_left_out_and_named() {
    let (aws, lambda) = (
        Cloud::after(BackendType::Aws, 1.0),
        Cloud::silent(BackendType::Lambda),
    );
    let refused = Err(ComputeError::Unclear("the key is refused".to_owned()));
    let vultr = Cloud::new(BackendType::Vultr, Some(Duration::ZERO), refused);
    let mut source = source(&[&aws, &lambda, &vultr], &LateOffers::default());
    assert_eq!(told(&mut source, &query(9.0)).await, (vec!["aws"], 2.5));
    assert_eq!(
        source.missing(),
        [
            format!("Offers of lambda are missing: {LATE}"),
            format!("Offers of vultr are missing: {FAILED}")
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_late_costs_a_plan_its_time_once_however_much_is_asked_for_it() {
    let clouds = [
        Cloud::after(BackendType::Aws, 0.25),
        Cloud::silent(BackendType::Lambda),
    ];
    let mut source = source(&[&clouds[0], &clouds[1]], &LateOffers::default());
    let mut times = Vec::new();
    for max_price in [1.0, 2.0, 3.0, 1.0] {
        let (kinds, took) = told(&mut source, &query(max_price)).await;
        assert_eq!(kinds, ["aws"], "others have time in any case");
        times.push(took);
    }
    assert_eq!(times, [2.5, 0.25, 0.25, 0.0]);
    assert_eq!(source.missing().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn offers_that_do_not_count_are_none() {
    let clouds = [
        Cloud::after(BackendType::Aws, 0.0),
        Cloud::after(BackendType::Lambda, 7.0),
    ];
    let mut source = source(&[&clouds[0], &clouds[1]], &LateOffers::default());
    let elsewhere: Profile = serde_json::from_value(json!({"instance_types": ["lambda-size"]})).unwrap();
    let query = Query::new(&elsewhere, query(9.0).requirements);
    assert_eq!(told(&mut source, &query).await, (vec!["lambda"], 7.0));
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_offered_backends_have_all_their_time() {
    let none = Cloud::new(BackendType::Aws, Some(Duration::ZERO), Ok(Vec::new()));
    let slow = Cloud::after(BackendType::Lambda, 7.0);
    let late = LateOffers::default();
    let mut both = source(&[&none, &slow], &late);
    assert_eq!(told(&mut both, &query(9.0)).await, (vec!["lambda"], 7.0));
    assert!(both.missing().is_empty());
    let silent = Cloud::silent(BackendType::Vultr);
    let mut alone = source(&[&none, &silent], &late);
    assert_eq!(told(&mut alone, &query(9.0)).await, (vec![], 20.0));
    assert_eq!(alone.missing().len(), 1);
    // All of that time is over.
    assert_eq!(told(&mut alone, &query(8.0)).await, (vec![], 0.0));
}

/// As fleets of different backends, which are asked one after the other.
#[tokio::test(start_paused = true)]
async fn who_was_silent_all_the_time_leaves_others_enough_of_it() {
    let (silent, well) = (
        Cloud::silent(BackendType::Gcp),
        Cloud::after(BackendType::Aws, 2.0),
    );
    let mut source = source(&[&silent, &well], &LateOffers::default());
    let of = |backend: &str| {
        let profile: Profile = serde_json::from_value(json!({"backends": [backend]})).unwrap();
        Query::new(&profile, query(9.0).requirements)
    };
    assert_eq!(told(&mut source, &of("gcp")).await, (vec![], 20.0));
    assert_eq!(told(&mut source, &of("aws")).await, (vec!["aws"], 2.0));
    assert_eq!(source.missing().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_is_late_is_waited_for_beside_the_plan_and_once() {
    let (aws, lambda) = (
        Cloud::after(BackendType::Aws, 0.0),
        Cloud::after(BackendType::Lambda, 6.0),
    );
    let late = LateOffers::default();
    let mut first = source(&[&aws, &lambda], &late);
    assert_eq!(told(&mut first, &query(9.0)).await, (vec!["aws"], 2.5));
    // Until it has answered, others do not wait for it, and are told the same.
    let mut second = source(&[&aws, &lambda], &late);
    assert_eq!(told(&mut second, &query(9.0)).await, (vec!["aws"], 0.0));
    assert_eq!((first.missing(), lambda.counts()), (second.missing(), (2, 0)));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        lambda.counts(),
        (2, 1),
        "the first question was waited for, and the second was not"
    );
    let mut third = source(&[&aws, &lambda], &late);
    assert_eq!(told(&mut third, &query(9.0)).await, (vec!["aws"], 2.5));
}
