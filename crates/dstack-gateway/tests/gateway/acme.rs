//! Certificates that are ordered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dstack_gateway::Settings;
use dstack_system::clock::SharedClock;
use dstack_system::{Clock, SystemClock};
use dstack_units::Time;
use http::Request;
use serde_json::json;
use tokio::sync::watch;

use crate::support::app::App;
use crate::support::authority::{Authority, silent};
use crate::support::client::{Answer, send, tls};
use crate::support::ssh::{Ssh, new_key};
use crate::support::{Setup, ok, service, soon};

/// A gateway that orders at an authority, to which all host names lead.
pub(crate) async fn with_authority() -> (Setup, Authority) {
    with_authority_at(Arc::new(SystemClock), |_| {}).await
}

/// Same with another clock, and settings that differ in these.
async fn with_authority_at(clock: SharedClock, change: impl FnOnce(&mut Settings)) -> (Setup, Authority) {
    let authority = Authority::start().await;
    let setup = Setup::start_at(clock, |settings| {
        settings.acme_server = authority.directory.clone();
        settings.acme_root = Some(authority.root_file.clone());
        change(settings);
    })
    .await;
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
    let (setup, authority) = with_authority().await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({"https": true}), &ssh, &app).await;
    assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 200);
    assert_eq!(authority.signed(), 1);

    // Registered again, it has the same one; and so after a restart.
    setup.unregister("web").await;
    let setup = setup.killed_and_started().await;
    authority.leads_to(setup.http());
    setup.register("web", json!({"https": true}), &ssh).await;
    assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 503);
    setup.register("second", json!({"https": true}), &ssh).await;
    assert_eq!(authority.signed(), 2);
    assert_eq!(authority.shared.accounts.lock().len(), 1, "one account for all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_name_that_does_not_lead_here_gets_none_and_is_tried_again_after_a_minute() {
    let clock = Arc::new(Shifted::default());
    let (setup, authority) = with_authority_at(Arc::clone(&clock) as _, |_| {}).await;
    *authority.shared.gateway.lock() = None;
    let ssh = Ssh::start().await;
    let mut body = service("web", ssh.key());
    body["https"] = json!(true);
    let path = "/api/registry/main/services/register";
    let (status, said) = setup.post(path, &body).await;
    let text = said["detail"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(
        text.starts_with("Error obtaining web.example.com TLS certificate:"),
        "{text}"
    );
    assert!(text.contains("web.example.com answers nowhere"), "{text}");
    assert_eq!(setup.get("/api/services/list").await.1, json!({ "services": [] }));
    authority.leads_to(setup.http());
    clock.set(59);
    assert_eq!(
        setup.post(path, &body).await,
        (400, said),
        "the same, and nobody is asked"
    );
    assert_eq!(authority.ordered(), 1);
    clock.set(61);
    assert_eq!(setup.post(path, &body).await, ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_authority_changes_what_failed_is_tried_again_at_once() {
    let (setup, authority) = with_authority().await;
    *authority.shared.gateway.lock() = None;
    let mut body = service("web", new_key().private.expose());
    body["https"] = json!(true);
    let path = "/api/registry/main/services/register";
    assert_eq!(setup.post(path, &body).await.0, 400);
    authority.leads_to(setup.http());
    let acme = json!({"acme_server": authority.directory});
    assert_eq!(setup.post("/api/config", &acme).await, ok());
    assert_eq!(setup.post(path, &body).await, ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_names_the_authority_and_to_whom_the_account_belongs() {
    let (setup, authority) = with_authority().await;
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
struct Shifted(AtomicU64);

impl Shifted {
    /// So many seconds from now.
    fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for Shifted {
    fn now(&self) -> Time {
        SystemClock.now() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

const DAY: u64 = 24 * 3600;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_load_without_a_failed_request() {
    let clock = Arc::new(Shifted::default());
    let (setup, authority) = with_authority_at(Arc::clone(&clock) as _, |_| {}).await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({"https": true}), &ssh, &app).await;

    let (count, counted) = watch::channel(0);
    let is_over = AtomicBool::new(false);
    let load = async {
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(ask(&setup, &authority, "web.example.com").await.unwrap(), 200);
            count.send_modify(|count| *count += 1);
        }
    };
    let more_requests = async || {
        let mut counted = counted.clone();
        let next = *counted.borrow() + 10;
        soon(counted.wait_for(|count| *count >= next)).await.unwrap();
    };
    let renewal = async {
        more_requests().await;
        clock.set(58 * DAY);
        // Whatever happens, certificates are looked at.
        assert_eq!(setup.post("/api/config", &json!({})).await, ok());
        more_requests().await;
        assert_eq!(authority.signed(), 1, "more than a third of its time is left");
        authority.shared.days.store(61 + 90, Ordering::Relaxed);
        clock.set(61 * DAY);
        assert_eq!(setup.post("/api/config", &json!({})).await, ok());
        authority.has_signed(2).await;
        more_requests().await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, renewal);
    assert_eq!(authority.signed(), 2, "once");
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_does_not_answer_is_waited_for_no_longer_than_servers_wait() {
    let (_silent, url) = silent();
    let setup = Setup::start_with(|settings| settings.acme_server = url).await;
    let mut body = service("web", new_key().private.expose());
    body["https"] = json!(true);
    let expected = "Could not obtain web.example.com TLS certificate in 40s. Make sure DNS records are configured for this gateway.";
    let started = tokio::time::Instant::now();
    let answered = setup.post("/api/registry/main/services/register", &body).await;
    assert_eq!(answered, crate::support::detail(expected));
    assert_eq!(started.elapsed().as_secs(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_certificate_is_ordered_other_services_are_registered() {
    let (_silent, url) = silent();
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
    let (setup, authority) = with_authority().await;
    let ssh = Ssh::start().await;
    setup.register("one", json!({"https": true}), &ssh).await;
    authority.shared.accounts.lock().clear();
    setup.register("two", json!({"https": true}), &ssh).await;
    assert_eq!(authority.shared.accounts.lock().len(), 1);
    assert_eq!(authority.signed(), 2);
}
