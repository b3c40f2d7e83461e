//! Certificates that are ordered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use dstack_system::{Clock, SystemClock};
use dstack_units::Time;
use http::Request;
use serde_json::json;

use crate::support::app::App;
use crate::support::authority::Authority;
use crate::support::client::{Answer, send, tls};
use crate::support::ssh::Ssh;
use crate::support::{Setup, ok, service, until};

/// A gateway like this one that orders at an authority.
pub(crate) async fn with_authority(setup: Setup) -> (Setup, Authority) {
    let authority = Authority::start(setup.dir.path()).await;
    let Setup {
        gateway,
        mut settings,
        dir,
    } = setup;
    drop(gateway);
    settings.acme_server = authority.directory.clone();
    settings.acme_root = Some(authority.root_file.clone());
    let gateway = dstack_gateway::Gateway::start(settings.clone()).await.unwrap();
    let setup = Setup {
        gateway,
        settings,
        dir,
    };
    authority.leads_to(setup.http());
    (setup, authority)
}

async fn ask(setup: &Setup, authority: &Authority, host: &str) -> std::io::Result<u16> {
    let stream = tls(setup.https(), host, &authority.root, &[]).await?;
    let request = Request::get("/")
        .header("host", host)
        .body(String::new())
        .unwrap();
    Ok(Answer::of(send(stream, request).await).await.status)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_gets_a_certificate_when_it_is_registered() {
    let (setup, authority) = with_authority(Setup::start().await).await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.register("web", json!({"https": true}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;
    assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 200);
    assert_eq!(authority.signed(), 1);

    // Registered again, it has the same one; and so after a restart.
    assert_eq!(
        setup
            .post("/api/registry/main/services/web/unregister", &json!(null))
            .await,
        ok()
    );
    let setup = setup.killed_and_started().await;
    authority.leads_to(setup.http());
    setup.register("web", json!({"https": true}), &ssh).await;
    assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 503);
    setup.register("second", json!({"https": true}), &ssh).await;
    assert_eq!(authority.signed(), 2);
    assert_eq!(authority.shared.accounts.lock().len(), 1, "one account for all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_name_that_does_not_lead_here_gets_none_and_others_do_not_wait() {
    let (setup, authority) = with_authority(Setup::start().await).await;
    *authority.shared.gateway.lock() = None;
    let ssh = Ssh::start().await;
    let mut body = service("web", ssh.key());
    body["https"] = json!(true);
    let path = "/api/registry/main/services/register";
    let (status, said) = setup.post(path, &body).await;
    let said = said["detail"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        said.starts_with("Error obtaining web.example.com TLS certificate:"),
        "{said}"
    );
    assert!(said.contains("web.example.com answers nowhere"), "{said}");
    assert_eq!(setup.get("/api/services/list").await.1, json!({ "services": [] }));
    authority.leads_to(setup.http());
    assert_eq!(setup.post(path, &body).await, ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_names_the_authority_and_to_whom_the_account_belongs() {
    let (setup, authority) = with_authority(Setup::start_with(|_| {}).await).await;
    let acme = json!({"acme_server": authority.directory, "acme_eab_kid": "kid-1", "acme_eab_hmac_key": "c2VjcmV0LWtleQ"});
    assert_eq!(setup.post("/api/config", &acme).await, ok());
    let ssh = Ssh::start().await;
    setup.register("web", json!({"https": true}), &ssh).await;
    let accounts = authority.shared.accounts.lock().clone();
    assert!(
        accounts[0]["externalAccountBinding"]["signature"].is_string(),
        "{accounts:?}"
    );
}

/// A clock that is set.
#[derive(Debug, Default)]
struct Shifted(AtomicI64);

impl Clock for Shifted {
    fn now(&self) -> Time {
        let days = u64::try_from(self.0.load(Ordering::Relaxed)).unwrap();
        SystemClock.now() + Duration::from_secs(days * 24 * 3600)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_load_without_a_failed_request() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path()).await;
    let clock = Arc::new(Shifted::default());
    let setup = Setup::start_at(Arc::clone(&clock) as _, |settings| {
        settings.acme_server = authority.directory.clone();
        settings.acme_root = Some(authority.root_file.clone());
    })
    .await;
    authority.leads_to(setup.http());
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.register("web", json!({"https": true}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;

    let is_over = AtomicBool::new(false);
    let load = async {
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 200);
            count += 1;
        }
        count
    };
    let renewal = async {
        until("some requests", async || true).await;
        clock.0.store(58, Ordering::Relaxed);
        assert_eq!(setup.post("/api/config", &json!({})).await, ok());
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(authority.signed(), 1, "more than a third of its time is left");
        clock.0.store(61, Ordering::Relaxed);
        authority.shared.days.store(61 + 90, Ordering::Relaxed);
        // Whatever happens, certificates are looked at.
        assert_eq!(setup.post("/api/config", &json!({})).await, ok());
        until("it is renewed", async || authority.signed() == 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (count, ()) = tokio::join!(load, renewal);
    assert!(count > 5, "{count}");
    assert_eq!(authority.signed(), 2, "once");
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_does_not_answer_is_waited_for_no_longer_than_servers_wait() {
    // Connections are accepted by the system, and nothing is ever said.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "https://localhost:{}/directory",
        silent.local_addr().unwrap().port()
    );
    let setup = Setup::start_with(|settings| settings.acme_server = url).await;
    let mut body = service("web", crate::support::ssh::new_key().private.expose());
    body["https"] = json!(true);
    let expected = "Could not obtain web.example.com TLS certificate in 40s. Make sure DNS records are configured for this gateway.";
    let started = tokio::time::Instant::now();
    let answered = setup.post("/api/registry/main/services/register", &body).await;
    assert_eq!(answered, crate::support::detail(expected));
    assert_eq!(started.elapsed().as_secs(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_certificate_is_ordered_other_services_are_registered() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "https://localhost:{}/directory",
        silent.local_addr().unwrap().port()
    );
    let setup = Setup::start_with(|settings| settings.acme_server = url).await;
    let ssh = Ssh::start().await;
    let mut slow = service("slow", ssh.key());
    slow["https"] = json!(true);
    let path = "/api/registry/main/services/register";
    let ordering = setup.post(path, &slow);
    let others = async {
        for run in ["one", "two", "three"] {
            setup.register(run, json!({}), &ssh).await;
        }
    };
    tokio::select! {
        () = others => {}
        answered = ordering => panic!("{answered:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_authority_has_forgotten_the_account_another_is_made() {
    let (setup, authority) = with_authority(Setup::start().await).await;
    let ssh = Ssh::start().await;
    setup.register("one", json!({"https": true}), &ssh).await;
    authority.shared.accounts.lock().clear();
    setup.register("two", json!({"https": true}), &ssh).await;
    assert_eq!(authority.shared.accounts.lock().len(), 1);
    assert_eq!(authority.signed(), 2);
}
