//! Certificates that are there already.

use http::Request;
use serde_json::json;

use crate::support::Setup;
use crate::support::app::App;
use crate::support::authority::{certificate, new_root};
use crate::support::client::{Answer, ask_http2, send, tls};
use crate::support::ssh::Ssh;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_certbot_is_taken_over_and_http2_is_spoken() {
    let (root, issuer) = new_root();
    let (chain, key) = certificate(&issuer, "web.example.com", 60);
    let setup = Setup::start().await;
    let certbot = setup.settings.certbot.join("web.example.com");
    std::fs::create_dir_all(&certbot).unwrap();
    std::fs::write(certbot.join("fullchain.pem"), chain).unwrap();
    std::fs::write(certbot.join("privkey.pem"), key).unwrap();
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.register("web", json!({"https": true}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;

    let stream = tls(setup.https(), "web.example.com", &root, &[b"h2", b"http/1.1"])
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let request = Request::get("https://web.example.com/x")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    let answer = ask_http2(stream, request.body(String::new()).unwrap()).await;
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
    let stream = tls(setup.https(), "web.example.com", &root, &[b"http/1.1"])
        .await
        .unwrap();
    let request = Request::get("/x")
        .header("host", "web.example.com")
        .body(String::new())
        .unwrap();
    assert!([200, 502].contains(&Answer::of(send(stream, request).await).await.status));
    let stranger = tls(setup.https(), "other.example.com", &root, &[]).await;
    assert!(stranger.is_err(), "of other names nothing is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_all_names_of_a_level_is_enough() {
    let (root, issuer) = new_root();
    let (chain, key) = certificate(&issuer, "*.example.com", 60);
    let setup = Setup::start_with(|settings| {
        let dir = settings.dir.join("certificates/*.example.com");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("tls.pem"), format!("{chain}{key}")).unwrap();
    })
    .await;
    let ssh = Ssh::start().await;
    for run in ["one", "two"] {
        setup.register(run, json!({"https": true}), &ssh).await;
        let host = format!("{run}.example.com");
        let stream = tls(setup.https(), &host, &root, &[]).await.unwrap();
        let request = Request::get("/")
            .header("host", &host)
            .body(String::new())
            .unwrap();
        assert_eq!(Answer::of(send(stream, request).await).await.status, 503);
    }
}
