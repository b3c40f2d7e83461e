//! Gateways on machines and in pods of a cloud: made, told of a service, asked by clients, deleted.

use dstack_tests::cli::Cli;
use dstack_tests::hosts::IMAGE;
use dstack_tests::http::{Answer, Client};
use dstack_tests::need;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT, attach};
use dstack_tests::server::{Server, eventually};
use serde_json::{Value, json};

use crate::{CREATE, Cloud, does_not_show_the_secret, machines, nothing_is_left, pods, start, succeeds};

mod python {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_reached_at_a_gateway_of_a_cloud() {
        super::on_machines(&need!(Cli::python()));
    }
    #[test]
    fn a_service_is_reached_at_a_gateway_in_a_pod() {
        super::in_pods(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_reached_at_a_gateway_of_a_cloud() {
        super::on_machines(&need!(Cli::ours()));
    }
    #[test]
    fn a_service_is_reached_at_a_gateway_in_a_pod() {
        super::in_pods(&need!(Cli::ours()));
    }
}

fn on_machines(cli: &Cli) {
    let cloud = need!(machines::aws_with_a_gateway());
    // One for the gateway, and one for the service.
    a_service_is_reached_at_a_gateway(cli, &cloud, "us-east-1", 2);
}

fn in_pods(cli: &Cli) {
    let cloud = need!(pods::kubernetes());
    // A pod and a service for each.
    a_service_is_reached_at_a_gateway(cli, &cloud, "lab", 4);
}

fn ask(address: &str, name: &str, token: Option<&str>) -> Answer {
    let mut headers = vec![("host".to_owned(), name.to_owned())];
    headers.extend(token.map(|token| ("authorization".to_owned(), format!("Bearer {token}"))));
    Client::default()
        .send("GET", &format!("http://{address}/"), &headers, None)
        .unwrap()
}

fn gateway(server: &Server) -> Option<Value> {
    let all = server.get("/api/project/main/gateways/list", &json!({})).unwrap();
    all.as_array().unwrap().first().cloned()
}

fn until_running(server: &Server) -> String {
    let running = eventually("the gateway runs", TEST_TIMEOUT, || {
        let found = gateway(server).unwrap();
        assert_ne!(found["status"], "failed", "{found:#}\n{}", server.output());
        Ok((found["status"] == "running").then_some(found))
    });
    let found =
        running.unwrap_or_else(|error| panic!("{error:#}\n{:#?}\n{}", gateway(server), server.output()));
    found["replicas"][0]["hostname"].as_str().unwrap().to_owned()
}

fn apply(cli: &Cli, server: &Server, configuration: &str) {
    cli.write("some.dstack.yml", configuration).unwrap();
    succeeds(cli, server, &["apply", "-f", "some.dstack.yml", "-y", "-d"]);
}

fn delete_backend(server: &Server, cloud: &Cloud) -> Answer {
    let names = json!({"backends_names": [cloud.name]});
    server.call("/api/project/main/backends/delete", &names).unwrap()
}

/// `made`: how many things of the cloud that takes.
fn a_service_is_reached_at_a_gateway(cli: &Cli, cloud: &Cloud, region: &str, made: usize) {
    let server = need!(start(cloud));
    server.get(CREATE, &cloud.config).unwrap();
    cli.knows(&server);
    let backend = cloud.name;
    let configuration = format!(
        "type: gateway\nname: gate\nbackend: {backend}\nregion: {region}\ndomain: '*.example.test'\ncertificate: null\n"
    );
    apply(cli, &server, &configuration);
    let address = until_running(&server);
    let listed = succeeds(cli, &server, &["gateway", "list"]);
    assert!(listed.contains("gate") && listed.contains(&address), "{listed}");
    let refused = delete_backend(&server, cloud);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("active gateways"), "{}", refused.text());

    apply(
        cli,
        &server,
        &format!("type: fleet\nname: cloud\nnodes: 0..1\nidle_duration: 1h\nbackends: [{backend}]\n"),
    );
    let service = format!(
        "type: service\nname: web\nport: 8000\nimage: {IMAGE}\nhttps: false\nfleets: [cloud]\ncommands:\n  \
         - mkdir -p /www && echo hello > /www/index.html\n  - exec busybox httpd -f -p 127.0.0.1:8000 -h /www\n{SMALL_YAML}"
    );
    apply(cli, &server, &service);
    let token = server.token();
    let answered = eventually("the service answers at the gateway", TEST_TIMEOUT, || {
        let answer = ask(&address, "web.example.test", Some(token));
        Ok((answer.status == 200 && answer.text().trim() == "hello").then_some(()))
    });
    answered.unwrap_or_else(|error| panic!("{error:#}\n{}", server.output()));
    assert_eq!(ask(&address, "web.example.test", None).status, 403);
    assert_eq!(ask(&address, "other.example.test", Some(token)).status, 404);

    succeeds(cli, &server, &["stop", "web", "-y"]);
    assert_eq!(
        attach(&server, "web").wait_until_finished().unwrap(),
        "terminated"
    );
    succeeds(cli, &server, &["gateway", "delete", "gate", "-y"]);
    eventually("the gateway is gone", TEST_TIMEOUT, || {
        Ok(gateway(&server).is_none().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{:#?}\n{}", gateway(&server), server.output()));
    succeeds(cli, &server, &["fleet", "delete", "-y", "cloud"]);
    nothing_is_left(cloud);
    assert_eq!(cloud.books.made(), made);
    does_not_show_the_secret(&server, cloud);
}
