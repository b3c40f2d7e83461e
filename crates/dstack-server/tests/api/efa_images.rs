//! The images that jobs get on machines with an Elastic Fabric Adapter.

use dstack_engine::Inputs as _;
use dstack_server::wiring::SqlInputs;
use serde_json::{Value, json};

use super::Server;
use super::blobs::snapshot;

/// The image that the job of a run is started with, on a machine without the adapter and on one with it.
async fn images(server: &Server, name: &str, configuration: Value) -> [String; 2] {
    let spec = json!({"run_name": name, "configuration": configuration, "ssh_key_pub": "ssh-rsa AAAA"});
    let plan = json!({"plan": {"run_spec": spec}, "force": true});
    server.main("runs/apply", plan).await.ok();
    let inputs = SqlInputs::new(
        server.state.control.jobs.clone(),
        server.state.data.blobs.clone(),
        &server.state.edge.settings,
    );
    let job = snapshot(server).await;
    let image = async |has_efa| inputs.image(&job, has_efa).await.unwrap().name;
    [image(false).await, image(true).await]
}

#[tokio::test]
async fn only_jobs_that_name_no_image_get_the_one_with_its_libraries() {
    let server = Server::new().await;
    let task = |more: Value| {
        let mut task = json!({"type": "task", "commands": ["true"]});
        let fields = task.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        task
    };
    let with_efa = "dstackai/base:0.16-devel-efa-ubuntu24.04";
    for (name, more, plain, fast) in [
        ("base", json!({}), "dstackai/base:0.16-base-ubuntu24.04", with_efa),
        (
            "devel",
            json!({"nvcc": true}),
            "dstackai/base:0.16-devel-ubuntu24.04",
            with_efa,
        ),
        (
            "docker",
            json!({"docker": true}),
            "dstackai/dind",
            "dstackai/dind",
        ),
    ] {
        assert_eq!(images(&server, name, task(more)).await, [plain, fast], "{name}");
    }
    // Who names an image gets it, also the one that is the default.
    let own = "dstackai/base:0.16-base-ubuntu24.04";
    let named = json!({"image": own, "user": "root", "resources": {"cpu": "x86:2.."}});
    assert_eq!(images(&server, "named", task(named)).await, [own, own]);
    let group = json!({"replicas": 1, "commands": ["serve"], "image": own, "resources": {"cpu": "x86:2.."}});
    let service = json!({"type": "service", "port": 80, "auth": false, "user": "root", "replicas": [group]});
    assert_eq!(images(&server, "group", service).await, [own, own]);
}
