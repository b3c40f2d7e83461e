//! The commands of `dstack catalog`, as a user meets them.

use crate::support::{data, gunzip};
use clap::Parser;
use dstack_catalog::cli::{CatalogCommand, Output, run_with};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[derive(Parser)]
struct App {
    #[command(flatten)]
    command: CatalogCommand,
}

struct Ran {
    code: u8,
    out: String,
    err: String,
}

async fn run(args: &[&str]) -> Ran {
    let app = App::try_parse_from(std::iter::once("catalog").chain(args.iter().copied())).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run_with(
        app.command,
        Output {
            out: &mut out,
            err: &mut err,
        },
    )
    .await;
    Ran {
        code,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
    }
}

fn dir() -> String {
    data("").to_str().unwrap().to_owned()
}

#[tokio::test]
async fn query_cases_hold_on_the_command_line() {
    let cases: Vec<Value> = serde_json::from_slice(&gunzip("queries.json.gz")).unwrap();
    for case in cases.iter().filter(|case| {
        case["online_providers"]
            .as_array()
            .is_some_and(|names| names.len() == 4 && case["expect"]["count"].as_u64() < Some(5000))
    }) {
        let filter = case["query"].to_string();
        let ran = run(&["query", "--dir", &dir(), "--filter", &filter, "--format", "json"]).await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let lines: Vec<Value> = ran
            .out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let refs: Vec<&str> = lines.iter().map(|line| line["ref"].as_str().unwrap()).collect();
        assert_eq!(
            hex::encode(Sha256::digest(refs.join("\n"))),
            case["expect"]["ordered_sha256"].as_str().unwrap()
        );
        for (line, expected) in lines.iter().zip(case["expect"]["first"].as_array().unwrap()) {
            for (name, value) in expected.as_object().unwrap() {
                assert_eq!(&line[name], value, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn filters_can_be_given_as_options() {
    let by_json =
        r#"{"gpu_name": ["H100", "a100"], "min_gpu_count": 8, "spot": true, "allowed_flags": ["oci-spot"]}"#;
    let by_json = run(&["query", "--dir", &dir(), "--filter", by_json, "--format", "csv"]).await;
    let by_option = run(&[
        "query",
        "--dir",
        &dir(),
        "--gpu-name",
        "H100",
        "--gpu-name",
        "a100",
        "--min-gpu-count",
        "8",
        "--spot",
        "--allowed-flags",
        "oci-spot",
        "--format",
        "csv",
    ])
    .await;
    assert_eq!(by_json.out, by_option.out);
    assert!(
        by_json
            .out
            .starts_with("ref,provider,instance_name,location,price,")
    );
    assert!(by_json.out.lines().count() > 10);
    let table = run(&[
        "query",
        "--dir",
        &dir(),
        "--provider",
        "nebius",
        "--spot",
        "false",
        "--limit",
        "2",
    ])
    .await;
    assert_eq!(table.out.lines().count(), 3, "{}", table.out);
    assert!(
        table.out.contains("PROVIDER") && table.out.contains("cpu-e2 2vcpu-8gb"),
        "{}",
        table.out
    );
}

#[tokio::test]
async fn wrong_filters_fail_with_the_reference_s_words() {
    for (args, message) in [
        (vec!["--provider", "cudo"], "error: Unknown provider: cudo\n"),
        (
            vec!["--filter", r#"{"provider": "vultr"}"#],
            "error: Provider is not loaded: vultr\n",
        ),
        (
            vec!["--gpu-vendor", "tpu"],
            "error: 'tpu' is not a valid AcceleratorVendor\n",
        ),
        (
            vec!["--min-compute-capability", "8"],
            "error: not enough values to unpack (expected 2, got 1)\n",
        ),
    ] {
        let directory = dir();
        let mut all = vec!["query", "--dir", &directory];
        all.extend(args);
        let ran = run(&all).await;
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (1, "", message));
    }
    let ran = run(&["query", "--dir", "/nowhere"]).await;
    assert!(
        ran.code == 1 && ran.err.starts_with("error: cannot read `/nowhere`"),
        "{}",
        ran.err
    );
}

#[tokio::test]
async fn check_says_which_row_breaks_which_rule() {
    let ran = run(&[
        "check",
        "--dir",
        &dir(),
        "--provider",
        "oci",
        "--provider",
        "cloudrift",
    ])
    .await;
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "2 catalog(s) checked: no rule is broken\n"),
        "{}",
        ran.err
    );
    let bad = tempfile::tempdir().unwrap();
    let path = bad.path().join("cloudrift.csv");
    let good = String::from_utf8(gunzip("cloudrift.csv.gz")).unwrap();
    fs_err::write(&path, good.replacen("0.39,10", "-1,10", 1)).unwrap();
    let ran = run(&["check", path.to_str().unwrap()]).await;
    assert_eq!(ran.code, 1);
    assert_eq!(ran.out, "cloudrift:0 (line 2): price must be above 0, is -1\n");
}

#[tokio::test]
async fn diff_and_info_describe_catalogs() {
    let ran = run(&["diff", "builtin", &dir(), "--summary"]).await;
    let gained = [
        "digitalocean: 39 new",
        "jarvislabs: 39 new",
        "seeweb: 12 new",
        "vastai: 90 new",
    ];
    assert_eq!(
        ran.out
            .lines()
            .map(|line| line.split(',').next().unwrap())
            .collect::<Vec<_>>(),
        gained,
        "{}",
        ran.err
    );
    let ran = run(&["diff", "builtin", "builtin"]).await;
    assert_eq!(ran.out, "no difference\n");
    let ran = run(&["info", "--dir", &dir(), "--format", "json"]).await;
    let first: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["provider"], &first["rows"]),
        (&"digitalocean".into(), &39.into())
    );
    let ran = run(&["info", "--dir", &dir()]).await;
    assert!(ran.out.contains("58884 offers"), "{}", ran.out);
}

#[tokio::test]
async fn collect_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("x.csv");
    let output = output.to_str().unwrap();
    let ran = run(&["collect", "nebius", "--output", output]).await;
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (
            1,
            "error: nebius cannot be collected here: its collector comes with the nebius backend\n"
        )
    );
    let ran = run(&["collect", "gcp", "--output", output]).await;
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (1, "error: Set the GCP_PROJECT_ID environment variable\n")
    );
}
