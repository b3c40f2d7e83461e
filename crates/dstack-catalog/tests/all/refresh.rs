//! Keeping the catalogue fresh, with servers that behave and servers that do not.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::info;
use crate::support::server::{Asked, Reply, Server};
use async_trait::async_trait;
use dstack_catalog::http::{Http, Patience};
use dstack_catalog::{
    Catalog, CollectError, Filter, Item, LiveOptions, LogProgress, OnlineProvider, Origin, Provider,
    RefreshError, Settings, Snapshot, Table, builtin, download, write_archive,
};
use dstack_system::{SystemClock, task};

/// For servers that answer, however busy this machine is.
fn patient() -> Http {
    waiting(Duration::from_secs(30))
}

/// For servers one of which never answers: long enough for the others.
fn impatient() -> Http {
    waiting(Duration::from_secs(3))
}

fn waiting(read: Duration) -> Http {
    let patience = Patience {
        connect: read,
        read,
        total: read * 4,
        retries: 1,
        backoff: Duration::from_millis(1),
    };
    Http::new(patience, 8)
}

fn item(provider: Provider, name: &str, price: f64) -> Item {
    Item {
        price,
        cpu: 2,
        memory: 4.0,
        ..Item::new(provider, name, "r")
    }
}

fn archive(provider: Provider, names: &[&str]) -> Vec<u8> {
    let items: Vec<Item> = names
        .iter()
        .zip(1..)
        .map(|(name, price)| item(provider, name, f64::from(price)))
        .collect();
    write_archive(&Table::from_items(info(provider), &items)).unwrap()
}

/// The catalogue in use, refreshed from there.
fn catalog(url: &str, cache: Option<&std::path::Path>) -> Catalog {
    catalog_with(patient(), url, cache)
}

fn catalog_with(http: Http, url: &str, cache: Option<&std::path::Path>) -> Catalog {
    let settings = Settings {
        url: url.to_owned(),
        dir: None,
        cache: cache.map(Into::into),
    };
    Catalog::with(settings, builtin(), http, Arc::new(SystemClock))
}

fn path_of(asked: &Asked) -> (Provider, String) {
    let mut parts = asked.target.trim_start_matches('/').splitn(2, '/');
    (
        Provider::from_name(parts.next().unwrap()).unwrap(),
        parts.next().unwrap().to_owned(),
    )
}

/// Publishes a small catalogue of every provider under one version; `twist` changes single answers.
async fn publish(twist: impl Fn(Provider, &str) -> Option<Reply> + Send + Sync + 'static) -> Server {
    Server::start(move |asked| {
        let (provider, rest) = path_of(asked);
        if let Some(reply) = twist(provider, &rest) {
            return reply;
        }
        match rest.as_str() {
            "version" => "20260901-1\n".into(),
            "20260901-1/catalog.zip" => Reply::Body(archive(provider, &["small", "large"])),
            _ => Reply::Status(404),
        }
    })
    .await
}

#[tokio::test]
async fn newer_versions_are_downloaded_once_and_kept_on_disk() {
    let server = publish(|_, _| None).await;
    let cache = tempfile::tempdir().unwrap();
    let catalog = catalog(&server.url, Some(cache.path()));
    let report = catalog.refresh().await;
    assert_eq!((report.updated.len(), report.failed.len()), (9, 0), "{report:?}");
    assert_eq!(catalog.snapshot().len(), 18);
    let aws = catalog.snapshot().table(Provider::Aws).unwrap().info().clone();
    assert_eq!(
        (aws.version.as_str(), aws.origin),
        ("20260901-1", Origin::Download)
    );
    let asked = server.asked().len();
    let report = catalog.refresh().await;
    assert_eq!(
        (report.unchanged.len(), server.asked().len()),
        (9, asked + 9),
        "only versions are asked for again"
    );

    let settings = Settings {
        url: "http://127.0.0.1:1".into(),
        dir: None,
        cache: Some(cache.path().into()),
    };
    let reopened = Catalog::open(settings).unwrap();
    assert_eq!(reopened.snapshot().len(), 18);
    assert_eq!(
        reopened.snapshot().table(Provider::Oci).unwrap().info().origin,
        Origin::Cache
    );
    // A damaged cache is left out.
    fs_err::write(cache.path().join("oci/20260901-1/catalog.zip"), b"PK").unwrap();
    fs_err::write(cache.path().join("gcp/version"), b"../../etc").unwrap();
    let reopened = Catalog::open(reopened.settings().clone()).unwrap();
    for provider in [Provider::Oci, Provider::Gcp] {
        assert_eq!(
            reopened.snapshot().table(provider).unwrap().info().origin,
            Origin::Builtin
        );
    }
}

#[tokio::test]
async fn nothing_bad_replaces_a_good_catalog() {
    let whole = archive(Provider::Aws, &["a"]);
    let half = whole[..whole.len() / 2].to_vec();
    let server = publish(move |provider, rest| {
        let zip = rest != "version";
        match provider {
            Provider::Aws if zip => Some(Reply::Body(half.clone())),
            Provider::Azure => Some("<html>proxy login</html>".into()),
            Provider::Verda if zip => Some(Reply::Partial(vec![b'P'; 1000], 300)),
            Provider::Gcp if zip => Some(Reply::Silence),
            Provider::Lambdalabs => Some("../../../etc/passwd".into()),
            Provider::Nebius if zip => Some(Reply::Body(archive(Provider::Nebius, &[]))),
            Provider::Oci => Some(Reply::Status(503)),
            Provider::Runpod if zip => Some(Reply::Body(archive(Provider::Aws, &["other"]))),
            _ => None,
        }
    })
    .await;
    let catalog = catalog_with(impatient(), &server.url, None);
    let before = catalog.snapshot();
    let report = catalog.refresh().await;
    assert_eq!(report.updated, [Provider::Cloudrift]);
    let after = catalog.snapshot();
    for provider in Provider::offline().filter(|provider| *provider != Provider::Cloudrift) {
        assert!(
            Arc::ptr_eq(before.table(provider).unwrap(), after.table(provider).unwrap()),
            "{provider}"
        );
    }
    let reason = |wanted: Provider| {
        let (_, error) = report
            .failed
            .iter()
            .find(|(provider, _)| *provider == wanted)
            .unwrap();
        dstack_system::chain(error).to_string()
    };
    assert!(
        reason(Provider::Aws).contains("20260901-1 is not usable: the zip archive is damaged"),
        "{}",
        reason(Provider::Aws)
    );
    assert!(
        reason(Provider::Azure).contains("no version text: '<html>proxy login</html>'"),
        "{}",
        reason(Provider::Azure)
    );
    assert!(
        reason(Provider::Verda).contains("no usable answer"),
        "{}",
        reason(Provider::Verda)
    );
    assert!(
        reason(Provider::Gcp).contains("no usable answer"),
        "{}",
        reason(Provider::Gcp)
    );
    assert!(
        reason(Provider::Lambdalabs).contains("no version text"),
        "{}",
        reason(Provider::Lambdalabs)
    );
    assert!(
        reason(Provider::Nebius).contains("no offers"),
        "{}",
        reason(Provider::Nebius)
    );
    assert!(reason(Provider::Oci).contains("503"), "{}", reason(Provider::Oci));
    assert!(
        reason(Provider::Runpod).contains("no file `runpod.csv`"),
        "{}",
        reason(Provider::Runpod)
    );
}

#[tokio::test]
async fn a_pinned_version_is_loaded_whole_or_not_at_all() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let server = Server::start(move |asked| {
        let (provider, _) = path_of(asked);
        if provider == Provider::Gcp && is_broken.load(Ordering::SeqCst) {
            return Reply::Status(404);
        }
        Reply::Body(archive(provider, &["pinned"]))
    })
    .await;
    let catalog = catalog(&server.url, None);
    let before = catalog.snapshot().len();
    let (provider, error) = catalog.load_version("20250101-1").await.unwrap_err();
    assert!(
        provider == Provider::Gcp && matches!(error, RefreshError::Http(_)),
        "{error}"
    );
    assert_eq!(catalog.snapshot().len(), before);
    broken.store(false, Ordering::SeqCst);
    catalog.load_version("20250101-1").await.unwrap();
    assert_eq!(catalog.snapshot().len(), 9);
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| !asked.target.ends_with("/version"))
    );
}

/// Every version holds a thousand offers named after it: a result of two versions would be torn.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_go_on_while_the_catalog_is_refreshed() {
    let version = Arc::new(AtomicUsize::new(1));
    let published = version.clone();
    let server = Server::start(move |asked| {
        let (provider, rest) = path_of(asked);
        let version = format!("v{}", published.load(Ordering::SeqCst));
        match rest.strip_suffix("/catalog.zip") {
            None => version.as_str().into(),
            Some(asked_for) => Reply::Body(archive(provider, &vec![asked_for; 300])),
        }
    })
    .await;
    let catalog = Arc::new(catalog(&server.url, None));
    catalog.refresh().await;
    let stop = Arc::new(AtomicBool::new(false));
    let queries: Vec<_> = (0..3)
        .map(|_| {
            let (catalog, stop) = (catalog.clone(), stop.clone());
            task::spawn("test.query", async move {
                let filter = Filter {
                    provider: Some(vec!["gcp".into()]),
                    ..Filter::default()
                };
                let mut runs = 0;
                while !stop.load(Ordering::SeqCst) {
                    let names = catalog
                        .query(&filter, |offers| {
                            offers
                                .map(|offer| offer.instance_name().to_owned())
                                .collect::<Vec<_>>()
                        })
                        .unwrap();
                    assert_eq!(names.len(), 300);
                    assert!(
                        names.iter().all(|name| *name == names[0]),
                        "torn: {} and {:?}",
                        names[0],
                        names.last()
                    );
                    runs += 1;
                    tokio::task::yield_now().await;
                }
                runs
            })
        })
        .collect();
    let mut old = Vec::new();
    for next in 2..12 {
        old.push(Arc::downgrade(&catalog.snapshot()));
        version.store(next, Ordering::SeqCst);
        let report = catalog.refresh().await;
        assert_eq!(report.updated.len(), 9, "{report:?}");
    }
    stop.store(true, Ordering::SeqCst);
    for query in queries {
        assert!(query.await.unwrap().unwrap() > 0);
    }
    assert_eq!(
        catalog.snapshot().table(Provider::Aws).unwrap().info().version,
        "v11"
    );
    assert!(
        old.iter().all(|snapshot| snapshot.upgrade().is_none()),
        "old catalogs are gone"
    );
}

struct Live {
    provider: Provider,
    then: Then,
}

enum Then {
    Offer(Vec<Item>),
    Fail,
    Hang,
    Panic,
}

#[async_trait]
impl OnlineProvider for Live {
    fn provider(&self) -> Provider {
        self.provider
    }

    async fn offers(&self, _: &Filter, _: bool) -> Result<Vec<Item>, CollectError> {
        match &self.then {
            Then::Offer(items) => Ok(items.clone()),
            Then::Fail => Err(CollectError::unexpected(self.provider, "nonsense")),
            Then::Hang => std::future::pending().await,
            Then::Panic => panic!("on purpose"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_and_failing_providers_delay_no_other() {
    let settings = Settings {
        url: "http://127.0.0.1:1".into(),
        dir: None,
        cache: None,
    };
    let offline = Table::from_items(info(Provider::Aws), &[item(Provider::Aws, "aws", 2.0)]);
    let snapshot = Arc::new(Snapshot::new([Arc::new(offline)]));
    let catalog = Catalog::with(settings, snapshot, patient(), Arc::new(SystemClock));
    let missing = Filter {
        provider: Some(vec!["Vultr".into(), "aws".into()]),
        ..Filter::default()
    };
    let refused = catalog
        .query_live(&missing, LiveOptions::default())
        .await
        .unwrap_err();
    assert_eq!(refused.to_string(), "Provider is not loaded: vultr");

    let live = |provider, then| catalog.register(Arc::new(Live { provider, then }));
    live(
        Provider::Vultr,
        Then::Offer(vec![
            item(Provider::Vultr, "v1", 3.0),
            item(Provider::Vultr, "v2", 1.0),
        ]),
    );
    live(Provider::Lium, Then::Hang);
    live(Provider::Vastai, Then::Fail);
    live(Provider::Daytona, Then::Panic);
    live(
        Provider::Vultr,
        Then::Offer(vec![item(Provider::Vultr, "v3", 2.0)]),
    );
    let started = tokio::time::Instant::now();
    let options = LiveOptions {
        deadline: Duration::from_secs(20),
        balance_resources: false,
    };
    let answer = catalog.query_live(&Filter::default(), options).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 20);
    // Live offers keep their own order; of equal prices the live one is first.
    let names: Vec<&str> = answer.offers().map(|offer| offer.instance_name()).collect();
    assert_eq!(names, ["aws", "v1", "v2", "v3"]);
    assert!(!answer.is_complete());
    let problems: Vec<String> = answer
        .problems
        .iter()
        .map(|problem| problem.error.to_string())
        .collect();
    assert_eq!(
        problems,
        [
            "daytona: internal error (see the log)",
            "lium: no answer in time",
            "vastai: unexpected answer: nonsense",
        ]
    );
    let only = Filter {
        provider: Some(vec!["lium".into()]),
        ..Filter::default()
    };
    let answer = catalog.query_live(&only, options).await.unwrap();
    assert_eq!((answer.offers().count(), answer.problems.len()), (0, 1));
}

#[tokio::test]
async fn servers_are_asked_again_when_that_may_help() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let server = Server::start(move |asked| {
        match (
            asked.target.split('?').next().unwrap(),
            count.fetch_add(1, Ordering::SeqCst),
        ) {
            ("/busy", 0) => Reply::Full(429, vec![("retry-after", "0".into())], Vec::new()),
            ("/big", _) => Reply::Body(vec![0; 2000]),
            ("/missing", _) => Reply::Status(404),
            _ => "fine".into(),
        }
    })
    .await;
    let http = patient();
    assert_eq!(
        http.get(&format!("{}/busy", server.url), 100).await.unwrap(),
        "fine"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let too_large = http
        .get(&format!("{}/big?key=secret", server.url), 1000)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        too_large.contains("more than 1000 bytes") && !too_large.contains("secret"),
        "{too_large}"
    );
    http.get(&format!("{}/missing", server.url), 100)
        .await
        .unwrap_err();
    assert_eq!(calls.load(Ordering::SeqCst), 4, "neither is tried again");
}

#[tokio::test]
async fn a_download_goes_on_where_it_broke_off() {
    let whole: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (content, tag) = (whole.clone(), Arc::new(Mutex::new("\"one\"".to_owned())));
    let current = tag.clone();
    let server = Server::start(move |asked| {
        let tag = current.lock().unwrap().clone();
        let from = asked.header("range").and_then(|range| {
            range
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse::<usize>()
                .ok()
        });
        match (from, asked.header("if-range")) {
            (Some(from), Some(known)) if known == tag => {
                Reply::Full(206, vec![("etag", tag)], content[from..].to_vec())
            }
            _ => Reply::Full(200, vec![("etag", tag)], content.clone()),
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prices.csv");
    let part = dir.path().join("prices.csv.part");
    // As an earlier run left it.
    fs_err::write(&part, &whole[..1234]).unwrap();
    fs_err::write(dir.path().join("prices.csv.part.etag"), "\"one\"").unwrap();
    download(&patient(), &format!("{}/f", server.url), &path, &LogProgress)
        .await
        .unwrap();
    assert_eq!(fs_err::read(&path).unwrap(), whole);
    assert_eq!(server.asked()[0].header("range"), Some("bytes=1234-"));
    assert_eq!(
        fs_err::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing is left beside the file"
    );
    // Another file by now: from the start.
    "\"two\"".clone_into(&mut tag.lock().unwrap());
    fs_err::write(&part, b"old").unwrap();
    fs_err::write(dir.path().join("prices.csv.part.etag"), "\"one\"").unwrap();
    download(&patient(), &format!("{}/f", server.url), &path, &LogProgress)
        .await
        .unwrap();
    assert_eq!(fs_err::read(&path).unwrap(), whole);
}

#[tokio::test]
async fn a_broken_download_is_taken_up_again() {
    let whole: Vec<u8> = vec![b'x'; 50_000];
    let calls = Arc::new(AtomicUsize::new(0));
    let (content, count) = (whole.clone(), calls.clone());
    let server = Server::start(move |asked| {
        let from = asked.header("range").map_or(0, |_| 20_000);
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Partial(content.clone(), 20_000),
            _ if from > 0 => Reply::Full(206, vec![], content[from..].to_vec()),
            _ => Reply::Body(content.clone()),
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    download(&patient(), &server.url, &path, &LogProgress)
        .await
        .unwrap();
    assert_eq!(fs_err::read(&path).unwrap(), whole);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_directory_takes_the_place_of_downloads() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("oci.zip"), archive(Provider::Oci, &["one"])).unwrap();
    let settings = Settings {
        url: "http://127.0.0.1:1".into(),
        dir: Some(dir.path().into()),
        cache: None,
    };
    let catalog = Catalog::open(settings).unwrap();
    assert_eq!(catalog.snapshot().len(), 1);
    fs_err::write(
        dir.path().join("oci.zip"),
        archive(Provider::Oci, &["one", "two"]),
    )
    .unwrap();
    fs_err::write(dir.path().join("aws.csv"), "<html>").unwrap();
    let report = catalog.refresh().await;
    assert_eq!((report.updated, report.failed.len()), (vec![Provider::Oci], 1));
    assert_eq!(catalog.items(&Filter::default(), 9).unwrap().len(), 2);
}
