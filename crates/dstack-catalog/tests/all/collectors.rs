//! Collectors against recorded answers: what comes out is what dstack 0.22.5's collectors make of the same answers.
//!
//! `tests/data/recorded/NAME.json` holds the answers, made by this project from the vendors' API descriptions, and
//! `NAME.csv` the offers gpuhunt 0.1.34 collects from them.

use std::sync::Arc;
use std::time::Duration;

use crate::support::server::{Asked, Reply, Server};
use crate::support::{data, info};
use dstack_catalog::collectors::{
    aws, azure, cloudrift, daytona, gcp, lambdalabs, lium, oci, runpod, vastai, verda, vultr,
};
use dstack_catalog::http::{Http, Patience};
use dstack_catalog::{
    CollectContext, Filter, Item, LogProgress, OfflineProvider, OnlineProvider, Provider, Snapshot, Table,
    Vendor, read_csv,
};
use serde_json::Value;

fn http() -> Arc<Http> {
    let patience = Patience {
        retries: 1,
        backoff: Duration::from_millis(1),
        ..Patience::default()
    };
    Arc::new(Http::new(patience, 8))
}

fn decoded(text: &str) -> String {
    let pairs = reqwest::Url::parse(&format!("http://x/?{text}")).unwrap();
    let pairs: Vec<String> = pairs
        .query_pairs()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join("&")
}

/// Compact, with sorted keys.
fn canonical(body: &str) -> String {
    serde_json::from_str::<Value>(body).map_or_else(|_| body.to_owned(), |value| value.to_string())
}

/// Serves the recorded answers; the first that fits a request counts. Fails once first where told to.
async fn recorded(name: &str) -> Server {
    let text = fs_err::read_to_string(data(&format!("recorded/{name}.json"))).unwrap();
    let answers: Vec<Value> = serde_json::from_str(&text).unwrap();
    Server::start(move |asked| {
        let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
        let hay = format!("{} {}", decoded(query), canonical(&asked.body));
        let fits = |answer: &&Value| {
            answer["method"] == asked.method
                && path.ends_with(answer["path"].as_str().unwrap())
                && answer["contains"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .all(|part| hay.contains(part.as_str().unwrap()))
        };
        match answers.iter().find(fits) {
            Some(answer) => match answer["text"].as_str() {
                Some(text) => text.into(),
                None => {
                    let host = format!("http://{}", asked.header("host").unwrap());
                    answer["reply"]
                        .to_string()
                        .replace("{url}", &host)
                        .as_str()
                        .into()
                }
            },
            None => panic!("no recorded answer to {} {} {hay}", asked.method, asked.target),
        }
    })
    .await
}

fn context() -> CollectContext {
    CollectContext {
        progress: Arc::new(LogProgress),
        published_only: true,
    }
}

/// Offers that match, as text, in an order of their own; and their prices in theirs.
fn compared(items: &[Item], filter: &Filter) -> (Vec<String>, Vec<f64>) {
    let provider = items.first().map_or(Provider::Aws, |item| item.provider);
    let snapshot = Snapshot::new([Arc::new(Table::from_items(info(provider), items))]);
    let offers: Vec<Item> = snapshot
        .query(filter)
        .unwrap()
        .map(|offer| offer.to_item())
        .collect();
    let mut shown: Vec<String> = offers.iter().map(|item| format!("{item:?}")).collect();
    shown.sort();
    (shown, offers.iter().map(|item| item.price).collect())
}

fn same(provider: Provider, name: &str, items: &[Item], filter: &Filter) {
    let text = fs_err::read(data(&format!("recorded/{name}.csv"))).unwrap();
    let (table, warnings) = read_csv(info(provider), text.as_slice()).unwrap();
    assert_eq!(warnings.total, 0);
    let expected: Vec<Item> = table.offers().map(|offer| offer.to_item()).collect();
    let (found, expected) = (compared(items, filter), compared(&expected, filter));
    assert!(!expected.0.is_empty());
    for missing in expected.0.iter().filter(|one| !found.0.contains(one)) {
        println!("missing: {missing}");
    }
    for surplus in found.0.iter().filter(|one| !expected.0.contains(one)) {
        println!("surplus: {surplus}");
    }
    assert_eq!(found, expected, "{name}");
}

async fn offline(collector: &dyn OfflineProvider, name: &str) {
    let mut items = collector.collect(&context()).await.unwrap();
    items.retain(|item| collector.publishes(item));
    same(collector.provider(), name, &items, &Filter::default());
}

async fn online(collector: &dyn OnlineProvider, name: &str, filter: &Filter, balance: bool) {
    let items = collector.offers(filter, balance).await.unwrap();
    same(collector.provider(), name, &items, filter);
}

fn known(items: &[Item]) -> Arc<Snapshot> {
    Arc::new(Snapshot::new([Arc::new(Table::from_items(
        info(items[0].provider),
        items,
    ))]))
}

#[tokio::test]
async fn cloudrift_is_collected() {
    let server = recorded("cloudrift").await;
    offline(
        &cloudrift::CloudriftCollector {
            url: server.url.clone(),
            http: http(),
        },
        "cloudrift",
    )
    .await;
    let body: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(
        body["data"]["selector"]["ByServiceAndLocation"]["services"][0],
        "vm"
    );
}

#[tokio::test]
async fn verda_is_collected() {
    let server = recorded("verda").await;
    let collector = verda::VerdaCollector {
        url: server.url.clone(),
        client_id: "id".to_owned(),
        client_secret: "secret".into(),
        http: http(),
    };
    offline(&collector, "verda").await;
    let asked = server.asked();
    let token = asked.iter().filter_map(|asked| asked.header("authorization"));
    assert!(token.eq(["Bearer eyJhbGciOi.example.access"; 2]));
    assert!(!format!("{collector:?}").contains("secret\""), "{collector:?}");
}

#[tokio::test]
async fn lambdalabs_is_collected() {
    let server = recorded("lambdalabs").await;
    offline(
        &lambdalabs::LambdalabsCollector {
            url: format!("{}/api/v1", server.url),
            key: "a-key".into(),
            http: http(),
        },
        "lambdalabs",
    )
    .await;
    for asked in server.asked() {
        assert_eq!(
            asked.header("authorization"),
            Some("Bearer a-key"),
            "{}",
            asked.target
        );
    }
}

#[tokio::test]
async fn runpod_is_collected() {
    let server = recorded("runpod").await;
    let url = format!("{}/graphql", server.url);
    offline(&runpod::RunpodCollector { url, http: http() }, "runpod").await;
}

#[tokio::test]
async fn oci_is_collected() {
    let server = recorded("oci").await;
    let regions = ["us-ashburn-1", "eu-frankfurt-1"].map(|region| Item::new(Provider::Oci, "any", region));
    offline(
        &oci::OciCollector {
            url: server.url.clone(),
            known: known(&regions),
            http: http(),
        },
        "oci",
    )
    .await;
}

#[tokio::test]
async fn azure_is_collected_with_an_account() {
    let server = recorded("azure").await;
    let collector = azure::AzureCollector {
        prices_url: format!("{}/api/retail/prices", server.url),
        account: Some(azure::Account {
            url: server.url.clone(),
            subscription: "s".into(),
            token: "t".into(),
        }),
        known: Arc::default(),
        http: http(),
    };
    offline(&collector, "azure").await;
    let asked = server.asked();
    let is_secret = |asked: &&Asked| asked.header("authorization").is_some();
    assert!(
        asked
            .iter()
            .filter(is_secret)
            .all(|asked| asked.target.contains("/skus")),
        "prices need no token"
    );
    assert_eq!(asked.iter().filter(is_secret).count(), 2);
}

#[tokio::test]
async fn azure_is_collected_without_an_account() {
    let server = recorded("azure").await;
    let sizes = ["westeurope", "eastus"].map(|region| Item {
        cpu: 2,
        memory: 8.0,
        ..Item::new(Provider::Azure, "Standard_D2s_v3", region)
    });
    let collector = azure::AzureCollector {
        prices_url: format!("{}/api/retail/prices", server.url),
        account: None,
        known: known(&sizes),
        http: http(),
    };
    let items = collector.collect(&context()).await.unwrap();
    let found: Vec<_> = items
        .iter()
        .map(|item| (item.location.as_str(), item.price, item.spot))
        .collect();
    assert_eq!(
        found,
        [
            ("westeurope", 0.024, true),
            ("eastus", 0.096, false),
            ("westeurope", 0.12, false)
        ]
    );
}

#[tokio::test]
async fn aws_is_collected() {
    let server = recorded("aws").await;
    let gpu = |name: &str, model: &str, memory: f64| Item {
        gpu_count: 1,
        gpu_name: Some(model.into()),
        gpu_memory: Some(memory),
        gpu_vendor: Some(Vendor::Nvidia),
        ..Item::new(Provider::Aws, name, "r")
    };
    let dir = tempfile::tempdir().unwrap();
    let collector = aws::AwsCollector {
        url: format!("{}/index.csv", server.url),
        cache: None,
        downloads: Some(dir.path().into()),
        known: known(&[
            gpu("g5.xlarge", "A10G", 22.3515625),
            gpu("g6e.xlarge", "L40S", 44.703125),
        ]),
        http: http(),
    };
    offline(&collector, "aws").await;
    offline(&collector, "aws").await;
    assert_eq!(server.asked().len(), 1, "the price list is used again");
}

#[tokio::test]
async fn gcp_is_collected() {
    let server = recorded("gcp").await;
    let collector = gcp::GcpCollector {
        urls: gcp::Urls {
            compute: server.url.clone(),
            billing: server.url.clone(),
            tpu: server.url.clone(),
        },
        project: "p".into(),
        token: "t".into(),
        http: http(),
    };
    offline(&collector, "gcp").await;
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| asked.header("authorization") == Some("Bearer t"))
    );
}

#[tokio::test]
async fn lium_is_asked() {
    let server = recorded("lium").await;
    let url = format!("{}/api/public/v1/nodes", server.url);
    online(
        &lium::LiumCollector { url, http: http() },
        "lium",
        &Filter::default(),
        true,
    )
    .await;
}

#[tokio::test]
async fn vastai_is_asked() {
    let server = recorded("vastai").await;
    let mut collector = vastai::VastaiCollector::new(http());
    collector.url = format!("{}/api/v0/bundles/", server.url);
    let filter = Filter {
        min_disk_size: Some(100.0),
        min_gpu_count: Some(1),
        ..Filter::default()
    };
    online(&collector, "vastai", &filter, true).await;
    let body: Value = serde_json::from_str(&server.asked()[0].body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "disk_space": {"gte": 100.0}, "num_gpus": {"gte": 1}, "rentable": {"eq": true}, "rented": {"eq": false},
            "order": [["score", "desc"]],
        })
    );
    collector.search.extra =
        serde_json::from_str(r#"{"num_gpus": {"gte": 2}, "reliability2": {"gte": 0.9}}"#).unwrap();
    collector
        .offers(
            &Filter {
                gpu_name: Some(vec!["h100".into()]),
                ..filter
            },
            true,
        )
        .await
        .unwrap();
    let body: Value = serde_json::from_str(&server.asked()[1].body).unwrap();
    assert_eq!(body["num_gpus"]["gte"], 2, "the stricter counts");
    assert_eq!(
        body["gpu_name"]["in"],
        serde_json::json!(["H100 PCIE", "H100 SXM"])
    );
}

#[tokio::test]
async fn vultr_is_asked() {
    let server = recorded("vultr").await;
    let mut collector = vultr::VultrCollector {
        url: server.url.clone(),
        key: None,
        regions: vec![],
        http: http(),
    };
    online(&collector, "vultr", &Filter::default(), true).await;
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| asked.header("authorization").is_none())
    );
    collector.key = Some("k".into());
    online(&collector, "vultr-key", &Filter::default(), true).await;
}

#[tokio::test]
async fn daytona_is_asked() {
    let server = recorded("daytona").await;
    let collector = |key: Option<&str>| {
        let mut collector =
            daytona::DaytonaCollector::new(key.map(Into::into), &format!("{}/api/", server.url), http());
        collector.pricing_url = format!("{}/gpu-pricing", server.url);
        collector
    };
    online(&collector(None), "daytona", &Filter::default(), true).await;
    let filter = Filter {
        min_cpu: Some(20),
        max_memory: Some(150.5),
        min_gpu_count: Some(0),
        ..Filter::default()
    };
    online(&collector(Some("k")), "daytona-key", &filter, false).await;
}

#[tokio::test]
async fn daytona_has_gpus_also_when_it_does_not_tell_its_regions() {
    let text = fs_err::read_to_string(data("recorded/daytona.json")).unwrap();
    let answers: Vec<Value> = serde_json::from_str(&text).unwrap();
    let server = Server::start(move |asked| {
        let fits = |answer: &&Value| asked.target.ends_with(answer["path"].as_str().unwrap());
        match answers.iter().find(fits) {
            Some(answer) if !asked.target.ends_with("/shared-regions") => {
                answer["reply"].to_string().as_str().into()
            }
            _ => Reply::Status(500),
        }
    })
    .await;
    let mut collector = daytona::DaytonaCollector::new(None, &format!("{}/api/", server.url), http());
    collector.pricing_url = format!("{}/gpu-pricing", server.url);
    let items = collector.offers(&Filter::default(), true).await.unwrap();
    assert!(!items.is_empty() && items.iter().all(|item| item.gpu_count > 0));
    let cpus = Filter {
        max_gpu_count: Some(0),
        ..Filter::default()
    };
    collector.offers(&cpus, true).await.unwrap_err();
}

#[tokio::test]
async fn answers_that_make_no_sense_are_errors() {
    for reply in [
        Reply::Status(500),
        "<html>".into(),
        "[]".into(),
        "{}".into(),
        Reply::Body(vec![0xff, 0xfe]),
    ] {
        let shown = format!("{reply:?}");
        let server = Server::start(move |_| reply.clone()).await;
        let url = server.url.clone();
        let online: Vec<Box<dyn OnlineProvider>> = vec![
            Box::new(lium::LiumCollector {
                url: url.clone(),
                http: http(),
            }),
            Box::new({
                let mut vast = vastai::VastaiCollector::new(http());
                vast.url = url.clone();
                vast
            }),
            Box::new({
                let mut daytona = daytona::DaytonaCollector::new(None, &url, http());
                daytona.pricing_url = url.clone();
                daytona
            }),
        ];
        for collector in online {
            assert!(
                collector.offers(&Filter::default(), true).await.is_err(),
                "{} {shown}",
                collector.provider()
            );
        }
        let rift = cloudrift::CloudriftCollector { url, http: http() };
        assert!(rift.collect(&context()).await.is_err(), "{shown}");
    }
}
