use std::sync::atomic::AtomicUsize;

use super::*;

const SCRIPT: &str = "#!/bin/sh\necho dstack-runner version 1.2.3\n";

fn executable(path: &Path, text: &str) {
    fs_err::write(path, text).unwrap();
    fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// A web server that has one binary and knows ETags; returns its URL and how many bodies it sent.
async fn server() -> (String, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let answer = move |headers: axum::http::HeaderMap, uri: axum::http::Uri| async move {
        if uri.path() != "/runner" {
            return (axum::http::StatusCode::NOT_FOUND, [("etag", "none")], "no");
        }
        if headers.get("if-none-match").is_some_and(|value| value == "\"1\"") {
            return (axum::http::StatusCode::NOT_MODIFIED, [("etag", "\"1\"")], "");
        }
        count.fetch_add(1, Ordering::SeqCst);
        (axum::http::StatusCode::OK, [("etag", "\"1\"")], SCRIPT)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    task::spawn("test server", async move {
        axum::serve(listener, axum::Router::new().fallback(answer))
            .await
            .unwrap();
    });
    (url, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_is_installed_once() {
    let dir = tempfile::tempdir().unwrap();
    let shim = dir.path().join("shim");
    executable(&shim, "#!/bin/sh\necho something else\n");
    let components = Components::new(dir.path().join("runner"), shim);
    let statuses = |listed: Listed| {
        listed
            .components
            .into_iter()
            .map(|c| (c.status, c.version))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        statuses(components.list().await),
        [
            (ComponentStatus::NotInstalled, String::new()),
            (ComponentStatus::Error, String::new())
        ]
    );
    let (url, sent) = server().await;
    let order = |path: &str| ComponentInstall {
        name: RUNNER.into(),
        url: format!("{url}{path}"),
    };
    for expected in [1, 1] {
        components.install(&order("/runner")).unwrap();
        components.idle().await;
        assert_eq!(sent.load(Ordering::SeqCst), expected);
        assert_eq!(
            statuses(components.list().await)[0],
            (ComponentStatus::Installed, "1.2.3".to_owned())
        );
    }
    components.install(&order("/missing")).unwrap();
    components.idle().await;
    assert_eq!(
        statuses(components.list().await)[0].1,
        "1.2.3",
        "a failed download changes nothing"
    );
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn bad_orders() {
    let components = Components::new("/nowhere/runner".into(), "/nowhere/shim".into());
    let order = |name: &str, url: &str| {
        components.install(&ComponentInstall {
            name: name.into(),
            url: url.into(),
        })
    };
    assert_eq!(order("", "x"), Err(RefusedInstall::EmptyName));
    assert_eq!(order("dstack-gateway", "x"), Err(RefusedInstall::Unknown));
    assert_eq!(order(SHIM, ""), Err(RefusedInstall::EmptyUrl));
    components.slots[1].lock().installing = true;
    assert_eq!(order(SHIM, "x"), Err(RefusedInstall::Busy));
}
