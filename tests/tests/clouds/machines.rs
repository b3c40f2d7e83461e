//! Clouds of machines: a machine is a host of a lab, as far as SSH and containers go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_aws::{Aws, Size, Times as AwsTimes};
use dstack_emulator_cloudrift::{CloudRift, Times};
use dstack_emulator_lambda::{Lambda, Size as LambdaSize, Times as LambdaTimes};
use dstack_emulator_oci::{FINGERPRINT, HOME, KEY as OCI_KEY, Oci, TENANCY, Times as OciTimes, USER};
use dstack_tests::hosts::{EndsHosts, Lab, USUAL};
use dstack_tests::manifests;
use dstack_tests::parts::Part;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Cloud;

const KEY: &str = "canary-cloudrift-key";

/// A size of the catalogue, and a data center that has it.
const SIZE: (&str, &str) = ("rtx49-10c.1", "us-east-nc-nr-1");

const LAMBDA_KEY: &str = "canary-lambda-key";

/// A size of the catalogue, and a region that has it.
const LAMBDA_SIZE: (&str, &str) = ("gpu_1x_a10", "us-east-1");

const AWS_KEY: (&str, &str) = ("AKIAIOSFODNN7EXAMPLE", "canary-aws-secret-key");

/// A size of the catalogue.
const OCI_SHAPE: &str = "VM.Standard2.1";

/// Gives the address of a machine that these keys open; `None`: there is none left.
type Machines = Box<dyn Fn(&[String]) -> Option<String> + Send + Sync>;

/// One machine of a lab for the first that asks, and none for others: its user is `user`.
fn one_machine(user: &'static str) -> Part<(Machines, EndsHosts)> {
    machines(user, &["machine"])
}

/// A machine of a lab for each that asks, as long as there are some: their user is `user`.
fn machines(user: &'static str, names: &[&str]) -> Part<(Machines, EndsHosts)> {
    let (lab, ends) = Lab::for_ever()?;
    let mut hosts = Vec::new();
    for (number, name) in (2..).zip(names) {
        let host = lab.host(name, number, USUAL)?;
        // The user that the vendor's images have.
        let make_user = format!(
            "set -e
            grep -q '^{user}:' /etc/passwd || useradd --create-home --shell /bin/sh --password '*' {user}
            echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}
            mkdir -p /home/{user}/.ssh"
        );
        host.run(&make_user).unwrap();
        hosts.push(host);
    }
    let taken = AtomicUsize::new(0);
    let give = move |keys: &[String]| {
        let host = hosts.get(taken.fetch_add(1, Ordering::Relaxed))?;
        let lines = keys.join("\n");
        let add = format!(
            "printf '%s\\n' '{lines}' >/home/{user}/.ssh/authorized_keys && chown -R {user}: /home/{user}"
        );
        host.run(&add).unwrap();
        Some(host.address.clone())
    };
    Ok((Box::new(give), ends))
}

pub(crate) fn cloudrift() -> Part<Cloud> {
    let (machines, lab) = one_machine("riftuser")?;
    Ok(cloudrift_with(machines, Some(lab)))
}

/// One to configure: there are no machines.
pub(crate) fn empty_cloudrift() -> Part<Cloud> {
    Ok(cloudrift_with(Box::new(|_: &[String]| None), None))
}

fn cloudrift_with(machines: Machines, lab: Option<EndsHosts>) -> Cloud {
    let times = Times {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
    };
    let sizes = vec![(SIZE.0.to_owned(), SIZE.1.to_owned())];
    let give = move |keys: &[String]| machines(keys).map(|address| (address, 22));
    let emulator = CloudRift::with_machines(KEY, sizes, times, Box::new(give));
    let config = |key: &str| json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}});
    Cloud {
        name: "cloudrift",
        config: config(KEY),
        wrong_config: config("wrong"),
        wrong_fields: &["creds", "api_key"],
        secret: KEY.to_owned(),
        files: None,
        endpoint: Some(format!("cloudrift=http://{}/api/v1", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--gpu", "RTX4090"], SIZE.0),
        made_for_two_runs: 1,
        lab,
    }
}

/// Those that may log in, of user data for cloud-init.
fn keys_of(user_data: &str) -> Option<Vec<String>> {
    // The first line says what it is.
    let config: Value = serde_json::from_str(user_data.split_once('\n')?.1).ok()?;
    let keys = config["ssh_authorized_keys"].as_array()?.iter();
    Some(keys.filter_map(|key| Some(key.as_str()?.to_owned())).collect())
}

pub(crate) fn lambda() -> Part<Cloud> {
    let (machines, lab) = one_machine("ubuntu")?;
    Ok(lambda_with(machines, Some(lab)))
}

/// One to configure: there are no machines.
pub(crate) fn empty_lambda() -> Part<Cloud> {
    Ok(lambda_with(Box::new(|_: &[String]| None), None))
}

fn lambda_with(machines: Machines, lab: Option<EndsHosts>) -> Cloud {
    let times = LambdaTimes {
        boots: Duration::from_secs(1),
        ends: Duration::from_secs(1),
        shown: Duration::from_secs(1),
        ..dstack_emulator_lambda::USUAL
    };
    let size = LambdaSize {
        name: LAMBDA_SIZE.0.to_owned(),
        region: LAMBDA_SIZE.1.to_owned(),
    };
    let give = move |user_data: &str| machines(&keys_of(user_data)?);
    let emulator = Lambda::with_machines(LAMBDA_KEY, vec![size], times, Box::new(give));
    let config = |key: &str| json!({"type": "lambda", "creds": {"type": "api_key", "api_key": key}});
    Cloud {
        name: "lambda",
        config: config(LAMBDA_KEY),
        wrong_config: config("wrong"),
        wrong_fields: &["creds", "api_key"],
        secret: LAMBDA_KEY.to_owned(),
        files: None,
        endpoint: Some(format!("lambda=http://{}/api/v1", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--gpu", "A10"], LAMBDA_SIZE.0),
        made_for_two_runs: 1,
        lab,
    }
}

pub(crate) fn lambda_manifest() -> Part<Cloud> {
    Ok(described_by_a_file(lambda()?))
}

pub(crate) fn empty_lambda_manifest() -> Part<Cloud> {
    Ok(described_by_a_file(empty_lambda()?))
}

/// The same cloud of Lambda, by the backend of a manifest.
fn described_by_a_file(cloud: Cloud) -> Cloud {
    let files = TempDir::new().unwrap();
    fs_err::write(files.path().join("lambda.yml"), manifests::lambda()).unwrap();
    let of_type = |mut config: Value| {
        config["type"] = json!(manifests::LAMBDA);
        config
    };
    let at = |endpoint: String| endpoint.replacen("lambda=", &format!("{}=", manifests::LAMBDA), 1);
    Cloud {
        name: manifests::LAMBDA,
        config: of_type(cloud.config),
        wrong_config: of_type(cloud.wrong_config),
        endpoint: cloud.endpoint.map(at),
        files: Some(files),
        ..cloud
    }
}

pub(crate) fn aws() -> Part<Cloud> {
    let (machines, lab) = one_machine("ubuntu")?;
    Ok(aws_with(machines, Some(lab)))
}

/// With a machine for a gateway, and one for a fleet.
pub(crate) fn aws_with_a_gateway() -> Part<Cloud> {
    let (machines, lab) = machines("ubuntu", &["gate", "machine"])?;
    Ok(aws_with(machines, Some(lab)))
}

/// One to configure: there are no machines.
pub(crate) fn empty_aws() -> Part<Cloud> {
    Ok(aws_with(Box::new(|_: &[String]| None), None))
}

fn aws_with(machines: Machines, lab: Option<EndsHosts>) -> Cloud {
    let times = AwsTimes {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
        volumes: Duration::from_secs(1),
    };
    let sizes = ["t3.medium", "t3.micro"].map(|name| Size {
        name: name.to_owned(),
        vcpus: 2,
        max_efa: 0,
    });
    let give = move |user_data: &str| machines(&keys_of(user_data)?);
    let (id, secret) = AWS_KEY;
    let emulator = Aws::with_machines(id, secret, &["us-east-1"], sizes.into(), times, Box::new(give));
    let config = |secret: &str| {
        json!({"type": "aws", "regions": ["us-east-1"],
            "creds": {"type": "access_key", "access_key": id, "secret_key": secret}})
    };
    Cloud {
        name: "aws",
        config: config(secret),
        wrong_config: config("wrong"),
        wrong_fields: &["creds", "secret_key"],
        secret: secret.to_owned(),
        files: None,
        endpoint: Some(format!("aws=http://{}", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--cpu", "2", "--memory", "4GB"], "t3.medium"),
        made_for_two_runs: 1,
        lab,
    }
}

pub(crate) fn oci() -> Part<Cloud> {
    let (machines, lab) = one_machine("ubuntu")?;
    Ok(oci_with(machines, Some(lab)))
}

/// One to configure: there are no machines.
pub(crate) fn empty_oci() -> Part<Cloud> {
    Ok(oci_with(Box::new(|_: &[String]| None), None))
}

fn oci_with(machines: Machines, lab: Option<EndsHosts>) -> Cloud {
    let times = OciTimes {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
    };
    let give = move |user_data: &str| machines(&keys_of(user_data)?);
    let emulator = Oci::with_machines(times, Box::new(give));
    let config = |user: &str| {
        json!({"type": "oci", "regions": [HOME],
            "creds": {"type": "client", "user": user, "tenancy": TENANCY, "fingerprint": FINGERPRINT, "region": HOME,
                "key_content": OCI_KEY}})
    };
    Cloud {
        name: "oci",
        config: config(USER),
        wrong_config: config("ocid1.user.oc1..other"),
        wrong_fields: &["creds", "user"],
        // A line of it: as a whole it is never on one.
        secret: OCI_KEY.lines().nth(1).unwrap_or_default().to_owned(),
        files: None,
        endpoint: Some(format!("oci=http://{}", serve(emulator.router()))),
        books: Box::new(emulator),
        offer: (&["--cpu", "2", "--memory", "15GB"], OCI_SHAPE),
        made_for_two_runs: 1,
        lab,
    }
}
