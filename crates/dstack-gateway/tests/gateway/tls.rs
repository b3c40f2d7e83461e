//! Certificates that are there already.

use http::Request;
use serde_json::json;

use crate::support::app::App;
use crate::support::authority::{certificate, new_root};
use crate::support::client::{Answer, Http2, send, tls};
use crate::support::ssh::{Ssh, new_key};
use crate::support::{Setup, certbots_certificate, old_state, own_certificate};

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_certbot_is_taken_over_and_http2_is_spoken() {
    let (root, issuer) = new_root();
    let (chain, key) = certificate(&issuer, "web.example.com", -1..60);
    let setup = Setup::start().await;
    certbots_certificate(&setup.settings, "web.example.com", &chain, &key);
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({"https": true}), &ssh, &app).await;

    let stream = tls(setup.https(), "web.example.com", &root, &[b"h2", b"http/1.1"])
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let request = Request::get("https://web.example.com/x")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    let connection = Http2::new(stream).await;
    let answer = Answer::of(connection.send(request.body(String::new()).unwrap()).await).await;
    assert_eq!(answer.status, 200);
    let headers = &answer.json()["headers"];
    assert_eq!(
        (&headers["host"], &headers["cookie"]),
        (&json!("web.example.com"), &json!("a=1; b=2"))
    );
    assert_eq!(headers["x-forwarded-proto"], "https");

    // It outlives the process, and certbot.
    std::fs::remove_dir_all(&setup.settings.certbot).unwrap();
    let setup = setup.killed_and_started().await;
    assert!([200, 502].contains(&status(&setup, "web.example.com", &root).await));
    let stranger = tls(setup.https(), "other.example.com", &root, &[]).await;
    assert!(stranger.is_err(), "of other names nothing is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_all_names_of_a_level_is_enough() {
    let (root, issuer) = new_root();
    let (chain, key) = certificate(&issuer, "*.example.com", -1..60);
    let setup = Setup::start_with(|settings| own_certificate(settings, "*.example.com", &chain, &key)).await;
    let ssh = Ssh::start().await;
    for run in ["one", "two"] {
        setup.register(run, json!({"https": true}), &ssh).await;
        assert_eq!(status(&setup, &format!("{run}.example.com"), &root).await, 503);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_certbot_are_there_from_the_start_for_services_that_were_imported() {
    let (root, issuer) = new_root();
    // Also one that is due for renewal: the authority cannot be reached here.
    let (chain, key) = certificate(&issuer, "web.example.com", -80..10);
    let setup = Setup::start_with(|settings| {
        certbots_certificate(settings, "web.example.com", &chain, &key);
        let dir = settings.dir.parent().unwrap();
        settings.import = Some(old_state(dir, true, &json!([]), new_key().private.expose()));
    })
    .await;
    assert_eq!(status(&setup, "web.example.com", &root).await, 503);
    // It is its own from now on.
    std::fs::remove_dir_all(&setup.settings.certbot).unwrap();
    let setup = setup.killed_and_started().await;
    assert_eq!(status(&setup, "web.example.com", &root).await, 503);
}

/// What is answered over TLS.
async fn status(setup: &Setup, host: &str, root: &str) -> u16 {
    let stream = tls(setup.https(), host, root, &[b"http/1.1"]).await.unwrap();
    let request = Request::get("/x").header("host", host);
    let answer = send(stream, request.body(String::new()).unwrap()).await;
    answer.status().as_u16()
}
