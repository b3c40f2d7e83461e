//! Plans among all offers of the catalogue, asked for in each way there is.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Latency, Load};
use crate::server::{Server, Setup, TOKEN};

const PLAN: &str = "runs/get_plan";

/// All clouds of the catalogue. Nobody looks at what they are given.
const CLOUDS: &str = "projects:\n- name: main\n  backends:\n\
    \x20 - {type: aws, creds: {type: access_key, access_key: a, secret_key: s}}\n\
    \x20 - {type: azure, tenant_id: t, subscription_id: s, creds: {type: client, client_id: c, client_secret: s}}\n\
    \x20 - {type: cloudrift, creds: {type: api_key, api_key: k}}\n\
    \x20 - {type: gcp, project_id: p, creds: {type: service_account, filename: f, data: '{}'}}\n\
    \x20 - {type: lambda, creds: {type: api_key, api_key: k}}\n\
    \x20 - {type: nebius, creds: {type: service_account, service_account_id: s, public_key_id: p, private_key_content: k}}\n\
    \x20 - {type: oci, creds: {type: client, user: u, tenancy: t, key_content: k, fingerprint: f, region: r}}\n\
    \x20 - {type: runpod, creds: {type: api_key, api_key: k}}\n\
    \x20 - {type: verda, creds: {type: api_key, client_id: c, client_secret: s}}\n";

/// Of a task that any machine can run.
pub(super) fn plans(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let program = crate::parts::catalog_server().map_err(anyhow::Error::msg)?;
    let server = Setup::new(program)
        .argument("--no-local")
        .config(CLOUDS)
        .start()?;
    for name in ["one", "two"] {
        add_fleet(&server, name)?;
    }
    let (any, named) = (task(&Value::Null), task(&json!(["one", "two"])));
    let asked = [
        ("", json!({"run_spec": any, "for_offers_only": true})),
        (", in the best of two fleets", json!({"run_spec": any})),
        (
            ", in any of two fleets",
            json!({"run_spec": named, "for_offers_only": true}),
        ),
        (
            ", with reasons for what is left out",
            json!({"run_spec": any, "for_offers_only": true, "explain": true}),
        ),
    ];
    let count = total_offers(&server, &asked[0].1)?;
    let mut figures = Vec::new();
    for (how, request) in &asked {
        let found = total_offers(&server, request)?;
        ensure!(found == count && count > 0, "{found} of {count} offers{how}");
        let target = if how.is_empty() { "≤ 20 ms" } else { "–" };
        let name = format!("`{PLAN}` among {count} offers{how}");
        figures.extend(latency(&server, PLAN, request, &name, target)?);
    }
    let grouped = json!({"run_spec": any, "group_by": ["backend", "region", "count"]});
    let name = format!("`gpus/list` among {count} offers, by backend, region and count");
    figures.extend(latency(&server, "gpus/list", &grouped, &name, "–")?);
    Ok(figures)
}

fn add_fleet(server: &Server, name: &str) -> Result<()> {
    let configuration = json!({"type": "fleet", "name": name, "nodes": "0..2"});
    let plan = json!({"spec": {"configuration": configuration, "profile": {}}});
    server.get(
        "/api/project/main/fleets/apply",
        &json!({"plan": plan, "force": false}),
    )?;
    Ok(())
}

fn task(fleets: &Value) -> Value {
    let resources = json!({"cpu": "1..", "memory": "0.1GB..", "disk": "1GB.."});
    let configuration =
        json!({"type": "task", "commands": ["echo hello"], "resources": resources, "fleets": fleets});
    json!({"run_name": "plan", "configuration": configuration})
}

fn total_offers(server: &Server, request: &Value) -> Result<u64> {
    let plan = server.get(&path(PLAN), request)?;
    Ok(plan["job_plans"][0]["total_offers"].as_u64().unwrap_or(0))
}

/// Of one client that asks the same thing a hundred times.
fn latency(
    server: &Server,
    route: &str,
    request: &Value,
    name: &str,
    target: &'static str,
) -> Result<[Figure; 2]> {
    let load = Load {
        clients: 1,
        duration: Duration::from_secs(60),
        requests: 100,
    };
    let body = request.to_string();
    let measured = load.run(server.port(), &path(route), Some(TOKEN), |_| body.clone())?;
    let Latency { p50, p95, .. } = measured.latency;
    Ok([
        figure(format!("{name}, p50"), Unit::Seconds, target, p50),
        figure(format!("{name}, p95"), Unit::Seconds, "–", p95),
    ])
}

fn path(route: &str) -> String {
    format!("/api/project/main/{route}")
}
