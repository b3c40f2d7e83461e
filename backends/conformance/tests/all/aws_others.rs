//! The emulated AWS as the vendor's own SDK for Python meets it, and our client at moto, an emulator of others: what only our own
//! code has met proves little.

#![allow(clippy::print_stderr)] // tests

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use dstack_backend_kit::{
    CANARY, Cloud, Driver, EmulatedTransport, Emulator, Ledger, attachment, machine, network_env, run,
    served, volume,
};
use dstack_compute::{AttachmentSite, ConfigureError, Sign};
use dstack_emulator_aws::{Aws, Times};
use dstack_model::backends::BackendType;
use serde_json::{Value, json};

use crate::aws::{KEY_ID, REGIONS, sizes};
use crate::aws_roles::trust_policy;

/// The Python that has boto3 and moto, which `cargo xtask test` installs; `None`: there is none, and why was printed.
fn python() -> Option<PathBuf> {
    match dstack_system::env::var("DSTACK_TEST_AWS_ENV") {
        Some(folder) => Some(Path::new(&folder).join("bin/python")),
        None => {
            eprintln!("skipped: DSTACK_TEST_AWS_ENV is not set");
            None
        }
    }
}

#[tokio::test]
async fn the_sdk_of_the_vendor_finds_its_way_in_the_emulated_cloud() {
    let Some(python) = python() else { return };
    let times = Times {
        starts: Duration::from_millis(500),
        ends: Duration::from_millis(500),
        volumes: Duration::from_millis(200),
    };
    let emulator = Aws::with_times(KEY_ID, CANARY, REGIONS, sizes(), times);
    let role = "arn:aws:iam::123456789012:role/by-boto3";
    emulator.add_role(role, trust_policy(Some("by-boto3:1")));
    let url = served(&emulator).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../aws/emulator/sdk.py");
    let (status, text) = run(&python, &[script, &url, KEY_ID, CANARY, role, "by-boto3:1"]).await;
    assert!(status && text.contains("all parts passed"), "{text}");
    assert_eq!(emulator.ledger().alive(), []);
    assert_eq!(emulator.ledger().count(), 14);
}

/// moto, which ends with this.
#[derive(Debug)]
struct Moto {
    process: Child,
    /// Its `port`, and the name (`image`) and `owner` of an image that it has.
    ready: Value,
    ledger: Ledger,
}

impl Moto {
    fn start(python: &Path) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/serve_moto.py");
        let mut process = Command::new(python)
            .arg(script)
            .env_clear()
            .env("HOME", std::env::temp_dir())
            .env("PATH", "/usr/bin:/bin")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        Self {
            process,
            ready: serde_json::from_str(&line).unwrap(),
            ledger: Ledger::default(),
        }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.process.stdin.take());
        self.process.wait().ok();
    }
}

impl Emulator for Moto {
    /// There is none in this process.
    fn router(&self) -> Router {
        Router::new()
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn sell_out(&self, _: bool) {}

    fn lag(&self, _: Duration) {}

    fn lose_all(&self) {}
}

fn cloud(moto: Moto) -> Cloud {
    let ready = moto.ready.clone();
    let url = format!("http://127.0.0.1:{}", ready["port"]);
    let emulator: Arc<dyn Emulator> = Arc::new(moto);
    let transport = EmulatedTransport::new(emulator.router());
    let env = network_env(BackendType::Aws, &url);
    Cloud {
        kind: dstack_backend_aws::kind(env.clone()),
        emulator,
        transport,
        env,
        config: json!({"type": "aws", "regions": ["us-east-1"], "tags": {"team": "a +b:c/=@"},
            "os_images": {"cpu": {"name": ready["image"], "owner": ready["owner"], "user": "ubuntu"}},
            "creds": {"type": "access_key", "access_key": KEY_ID, "secret_key": CANARY}}),
        refused: Vec::new(),
        region: None,
    }
}

/// What moto can: it makes nothing once by a token, and knows neither quotas nor placement groups.
#[tokio::test]
async fn our_client_finds_its_way_in_an_emulator_of_others() {
    let Some(python) = python() else { return };
    let cloud = cloud(Moto::start(&python));
    cloud.configure(&cloud.config).await.unwrap();
    let mut other = cloud.config.clone();
    other["iam_instance_profile"] = json!("none");
    let error = cloud.configure(&other).await.unwrap_err();
    let missing = "IAM instance profile none not found".to_owned();
    assert_eq!(error, ConfigureError::Invalid(missing));
    // There, a role of an account is there when it is asked for.
    let mut in_role = cloud.config.clone();
    in_role["creds"]["role_arn"] = json!("arn:aws:iam::123456789012:role/dstack");
    in_role["creds"]["external_id"] = json!("external");
    cloud.configure(&in_role).await.unwrap();

    let of_machine = Driver::new(&cloud);
    let subject = machine(&cloud).await;
    let machine = of_machine.make(&subject).await.unwrap();
    let backend = cloud.open();
    let known = subject.known(Some(machine.clone()));
    let look = async || subject.sign(&*backend, &known).await.unwrap();
    assert_eq!(look().await, Sign::Well);

    let zone = machine.availability_zone.clone();
    let disk = json!({"type": "volume", "backend": "aws", "name": "data", "region": "us-east-1", "size": "10GB",
        "availability_zone": zone});
    let of_volume = Driver::new(&cloud);
    let disk = volume(&cloud, &disk);
    let volume = of_volume.make(&disk).await.unwrap();
    let site = AttachmentSite {
        volume: volume.clone(),
        machine,
        force: false,
    };
    let of_attachment = Driver::new(&cloud);
    let attached = attachment(&cloud, site);
    let place = of_attachment.make(&attached).await.unwrap();
    assert_eq!(place.device_name.as_deref(), Some("/dev/sdf"));
    of_attachment
        .remove(&attached.known(Some(place)), &attached)
        .await;
    // moto ends no machine that had a volume which is deleted.
    of_machine.remove(&known, &subject).await;
    assert!(matches!(look().await, Sign::Lost(_)));
    of_volume.remove(&disk.known(Some(volume)), &disk).await;
}
