use std::net::Ipv4Addr;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Json};
use axum::routing::{get, post};
use dstack_agent_api::http::TcpConnector;
use dstack_agent_api::proof::Gate;
use dstack_engine::services::RequestObserver;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::gateways::GatewayReplicaConfiguration;
use dstack_plan::services::rollout::judge::{Judgement, judge};
use dstack_store::rows::{GatewayRow, NewGateway};
use dstack_system::Random;
use dstack_units::Time;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::super::Rules;
use super::*;
use crate::services::waiting::Waiting;

const TOKEN: &str = "token of the gateway";
const GATEWAY: GatewayId = GatewayId::new(Uuid::from_u128(1));
const RUN: RunId = RunId::new(Uuid::from_u128(2));

/// A gateway that has these calls, and the token.
async fn gateway(calls: Router) -> GatewayClient {
    let gate = Arc::new(Gate::new(TOKEN.into(), Random::system()));
    let admit = from_fn(move |request: Request, next: Next| {
        let gate = Arc::clone(&gate);
        async move {
            if let Some(challenge) = gate.challenge(request.method(), request.uri(), request.headers()) {
                return Json(challenge).into_response();
            }
            let (head, body) = request.into_parts();
            assert!(gate.admits(&head));
            next.run(Request::from_parts(head, body)).await
        }
    });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    task::spawn("gateway", async move {
        axum::serve(listener, calls.layer(admit)).await.unwrap();
    });
    GatewayClient::new(Arc::new(TcpConnector { address }), TOKEN.into())
}

/// As gateways of dstack 0.22.5, which have the same calls but for those of roll-outs.
async fn old_gateway() -> GatewayClient {
    let unknown = || async { (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))) };
    gateway(Router::new().fallback(unknown)).await
}

/// One that splits requests, and has counted so many of the new deployment 2.
async fn new_gateway(requests: u64, failed: u64) -> GatewayClient {
    let side = |requests, failed| json!({"requests": requests, "failed": failed, "head": times(requests)});
    let counted = json!([{
        "id": RUN.uuid().simple().to_string(), "by_class": [0, requests, 0, 0, 0], "under_way": 0, "head": times(requests),
        "total": times(requests), "prompt_tokens": 0, "completion_tokens": 0,
        "rollout": {"deployment": 2, "new": side(requests, failed), "old": side(0, 0)},
    }]);
    let calls = Router::new()
        .route("/api/v2/stats", get(move || async move { Json(counted) }))
        .route(
            "/api/v2/registry/{project}/services/{run}/split",
            post(|| async { Json(Value::Null) }),
        );
    gateway(calls).await
}

fn times(count: u64) -> Value {
    json!({"buckets": [], "count": count, "sum": 0.0})
}

/// Is told of runs.
#[derive(Debug)]
struct Observer(UnboundedSender<RunId>);

impl RequestObserver for Observer {
    fn idle(&self, _job: JobId) {}
    fn published(&self, run: RunId) {
        self.0.send(run).ok(); // the test is over
    }
    fn awaited(&self, _run: RunId) {}
    fn worker_changed(&self, _run: RunId, _job: JobId) {}
}

/// The gateways of a server whose database is in this folder.
struct Setup {
    _folder: TempDir,
    gateways: Arc<Gateways>,
    told: UnboundedReceiver<RunId>,
    _observer: Arc<dyn RequestObserver>,
}

impl Setup {
    #[allow(clippy::disallowed_methods)] // nothing sealed is stored
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open_file(&folder.path().join("data")).await.unwrap();
        let rules = Rules {
            read_timeout: Duration::from_secs(60),
            max_body_size: 0,
            acme: Default::default(),
        };
        let waiting = Arc::new(Waiting::new(Arc::default()));
        let (tell, told) = unbounded_channel();
        let observer: Arc<dyn RequestObserver> = Arc::new(Observer(tell));
        waiting.report_to(Arc::downgrade(&observer));
        Self {
            _folder: folder,
            gateways: Arc::new(Gateways::new(database, Random::system(), rules, waiting)),
            told,
            _observer: observer,
        }
    }

    /// A replica of the gateway.
    fn replica(&self, number: i64) -> Arc<Link> {
        let link = Arc::new(Link::new(&row(number), CancellationToken::new()));
        let mut links = self.gateways.links.lock();
        links
            .get_or_insert_default()
            .insert(link.replica, Arc::clone(&link));
        link
    }

    /// What the new deployment of this number has answered, as far as is known.
    fn answered(&self, deployment: i64) -> Option<dstack_plan::services::rollout::judge::Answers> {
        let both = self.gateways.answered(RUN, GATEWAY, deployment)?;
        Some(both.answered().new)
    }

    fn judged(&self) -> Judgement {
        let rules = json!({"strategy": "canary", "max_error_rate": "5%", "min_requests": 20});
        judge(&decode_strict(&rules).unwrap(), self.answered(2).as_ref())
    }

    fn split(&self, link: &Arc<Link>, client: &GatewayClient, service: &str) {
        let split = Split {
            deployment: 2,
            new: BTreeSet::new(),
            share: 0,
            header: None,
        };
        let name = ("main".to_owned(), service.to_owned());
        begin_split(&self.gateways, link, client, (RUN, name), Some(split));
    }
}

fn row(number: i64) -> GatewayReplicaRow {
    let now = Time::from_millis(0);
    let configuration = json!({"type": "gateway", "name": "gate", "backend": "aws", "region": "r"});
    let gateway = NewGateway {
        id: GATEWAY,
        project: Uuid::from_u128(3).into(),
        name: "gate".to_owned(),
        configuration: decode_strict(&configuration).unwrap(),
        backend: None,
    };
    let replica = GatewayReplicaConfiguration {
        project_name: "main".to_owned(),
        instance_name: "gate-0".to_owned(),
        backend: BackendType::Aws,
        region: "r".to_owned(),
        instance_type: None,
        public_ip: true,
        ssh_key_pub: String::new(),
        certificate: None,
        tags: None,
    };
    let id = Uuid::from_u128(10 + u128::try_from(number).unwrap()).into();
    GatewayReplicaRow::submitted(
        id,
        &GatewayRow::submitted(gateway, now),
        number,
        replica,
        None,
        now,
    )
}

#[tokio::test]
async fn what_only_some_replicas_of_a_gateway_have_told_is_partial() {
    let setup = Setup::new().await;
    assert_eq!(setup.answered(2), None, "there is none yet");
    let (first, second) = (setup.replica(0), setup.replica(1));
    count_rollouts(&second, &old_gateway().await).await;
    assert_eq!(setup.answered(2), None, "none has told");
    assert_eq!(setup.judged(), Judgement::Open);

    count_rollouts(&first, &new_gateway(100, 2).await).await;
    let known = setup.answered(2).unwrap();
    assert_eq!((known.requests, known.failed, known.is_partial), (100, 2, true));
    assert_eq!(setup.judged(), Judgement::Open, "good as far as is known");
    assert_eq!(setup.answered(3), None, "of that deployment nobody has told");
    count_rollouts(&first, &new_gateway(100, 6).await).await;
    assert!(
        matches!(setup.judged(), Judgement::Exceeded(_)),
        "known to be bad"
    );

    count_rollouts(&second, &new_gateway(50, 0).await).await;
    let known = setup.answered(2).unwrap();
    assert_eq!((known.requests, known.failed, known.is_partial), (150, 6, false));
    assert_eq!(setup.judged(), Judgement::Well);

    tokio::time::pause();
    tokio::time::advance(COUNTED_FOR / 2).await;
    second.state.lock().rollouts = Some((Instant::now(), HashMap::new()));
    assert_eq!(
        setup.judged(),
        Judgement::Exceeded("6 of 100 answers failed (6.0%), and `max_error_rate` is 5%".to_owned())
    );
    tokio::time::advance(COUNTED_FOR / 2).await;
    assert_eq!(setup.answered(2), None, "what was told is too old");
}

#[tokio::test]
async fn a_gateway_that_knows_no_splits_is_known_for_that_until_it_is_reached_anew() {
    let mut setup = Setup::new().await;
    let (first, second) = (setup.replica(0), setup.replica(1));
    assert!(setup.gateways.can_split(GATEWAY));
    let old = old_gateway().await;
    setup.split(&first, &old, "web");
    assert_eq!(setup.told.recv().await, Some(RUN), "the roll-out hears of it");
    assert!(first.cannot_split() && !setup.gateways.can_split(GATEWAY));
    assert!(
        !first.may_be_split(&("main".to_owned(), "web".to_owned())),
        "it is asked later"
    );

    // It was updated.
    setup.split(&first, &new_gateway(0, 0).await, "other");
    assert_eq!(setup.told.recv().await, Some(RUN));
    assert!(setup.gateways.can_split(GATEWAY));

    setup.split(&second, &old, "web");
    assert_eq!(setup.told.recv().await, Some(RUN));
    assert!(!setup.gateways.can_split(GATEWAY), "one that cannot is enough");
    second.begin_anew();
    assert!(
        setup.gateways.can_split(GATEWAY),
        "nothing is known of who answers now"
    );
    setup.split(&second, &old, "other");
    assert_eq!(setup.told.recv().await, Some(RUN));
    tokio::time::pause();
    tokio::time::advance(SILENT_AFTER).await;
    assert!(
        setup.gateways.can_split(GATEWAY),
        "one that is silent is waited for by nobody"
    );
}

#[tokio::test]
async fn a_gateway_that_does_not_have_the_service_yet_may_split_requests_all_the_same() {
    let mut setup = Setup::new().await;
    let link = setup.replica(0);
    let absent = || async {
        (
            StatusCode::BAD_REQUEST,
            Json(json!({"detail": "Service main/web does not exist"})),
        )
    };
    let client = gateway(Router::new().fallback(absent)).await;
    setup.split(&link, &client, "web");
    setup.split(&link, &old_gateway().await, "other");
    assert_eq!(setup.told.recv().await, Some(RUN), "of the old one only");
    let name = |service: &str| ("main".to_owned(), service.to_owned());
    let error = client.split("main", "web", None).await.unwrap_err();
    link.begin_anew();
    assert!(!link.note_unsplit(name("web"), &error) && !link.cannot_split());
}
