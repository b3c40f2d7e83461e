//! The file of a gateway of dstack 0.22.5: what is registered there is taken over once. What is not understood of it is left out,
//! and told: the server registers what is missing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dstack_system::{Random, Secret, chain};
use serde::Deserialize;
use serde_json::Value;

use super::record::default_read_timeout;
use super::{
    AcmeSettings, BalancingRecord, Entrypoint, ModelFormat, ModelRecord, Project, RateLimitRecord,
    ReplicaRecord,
};
use super::{ServiceRecord, SshHop, State};
use crate::replicas::Chain;

/// Why nothing is taken over.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There is no such file.
    #[error("there is no file {0}")]
    Missing(String),
    /// It cannot be read.
    #[error("cannot read the state of the gateway before")]
    Read(#[source] io::Error),
    /// It is no `state-v2.json`.
    #[error("{path} is no state of a gateway of dstack 0.22.5")]
    Unreadable {
        /// The file.
        path: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// What was taken over, and what was not.
#[derive(Debug, Default, PartialEq)]
pub struct Imported {
    /// What is registered.
    pub state: State,
    /// What was left out, and why, for people.
    pub left_out: Vec<String>,
}

type Named<T> = BTreeMap<String, T>;

#[derive(Deserialize)]
struct Old {
    #[serde(default)]
    services: Named<Named<Value>>,
    #[serde(default)]
    models: Named<Named<Value>>,
    #[serde(default)]
    entrypoints: Named<Value>,
    #[serde(default)]
    projects: Named<Value>,
    #[serde(default)]
    config: OldConfig,
}

#[derive(Default, Deserialize)]
struct OldConfig {
    #[serde(default)]
    acme_settings: Option<AcmeSettings>,
}

#[derive(Deserialize)]
struct OldService {
    #[serde(default)]
    id: Option<String>,
    domain: String,
    #[serde(default)]
    https: Option<bool>,
    #[serde(default)]
    rate_limits: Vec<RateLimitRecord>,
    auth: bool,
    client_max_body_size: u64,
    #[serde(default)]
    strip_prefix: Option<bool>,
    #[serde(default)]
    replicas: Vec<Value>,
    #[serde(default)]
    has_router_replica: Option<bool>,
    #[serde(default)]
    read_timeout: Option<u64>,
}

#[derive(Deserialize)]
struct OldReplica {
    id: String,
    app_port: u16,
    ssh_destination: String,
    ssh_port: u16,
    #[serde(default)]
    ssh_proxy: Option<SshHop>,
    #[serde(default)]
    ssh_proxy_private_key: Option<Secret>,
    #[serde(default)]
    ssh_head_proxy: Option<SshHop>,
    #[serde(default)]
    ssh_head_proxy_private_key: Option<Secret>,
    #[serde(default)]
    internal_ip: Option<String>,
}

#[derive(Deserialize)]
struct OldModel {
    name: String,
    run_name: String,
    #[serde(default)]
    created_at: Option<String>,
    format_spec: ModelFormat,
}

#[derive(Deserialize)]
struct OldProject {
    #[serde(default)]
    ssh_private_key: Secret,
}

/// Reads such a file.
///
/// # Errors
/// It is not there, or is no such file.
pub fn import(path: &Path, now: i64, random: &Random) -> Result<Imported, ImportError> {
    let text = match fs_err::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ImportError::Missing(path.display().to_string()));
        }
        Err(error) => return Err(ImportError::Read(error)),
    };
    let old: Old = serde_json::from_slice(&text).map_err(|source| ImportError::Unreadable {
        path: path.display().to_string(),
        source,
    })?;
    Ok(Importer { now, random }.take_over(old))
}

struct Importer<'r> {
    now: i64,
    random: &'r Random,
}

impl Importer<'_> {
    fn take_over(&self, old: Old) -> Imported {
        let mut imported = Imported::default();
        let left_out = &mut imported.left_out;
        for (name, project) in old.projects {
            let read = read::<OldProject>(project, || format!("the key of project {name}"), left_out);
            let ssh_private_key = read.map(|project| project.ssh_private_key).unwrap_or_default();
            let project = Project {
                ssh_private_key,
                ..Project::default()
            };
            imported.state.projects.insert(name.to_lowercase(), project);
        }
        for (project, services) in old.services {
            let models = models(old.models.get(&project), &project, left_out);
            let project = project.to_lowercase();
            let of_project = imported.state.projects.entry(project.clone()).or_default();
            for (run, service) in services {
                let run = run.to_lowercase();
                let what = || format!("service {project}/{run}");
                if let Some(service) = read::<OldService>(service, what, left_out) {
                    let model = models.iter().find(|model| model.run_name == run);
                    let key = &of_project.ssh_private_key;
                    let replicas = replicas(&service.replicas, key, &what(), left_out);
                    let service = self.service(service, model, replicas);
                    of_project.services.insert(run, Arc::new(service));
                }
            }
        }
        for (project, entrypoint) in old.entrypoints {
            let what = || format!("the entrypoint of project {project}");
            if let Some(mut entrypoint) = read::<Entrypoint>(entrypoint, what, left_out) {
                entrypoint.domain = entrypoint.domain.to_lowercase();
                let of_project = imported.state.projects.entry(project.to_lowercase()).or_default();
                of_project.entrypoint = Some(entrypoint);
            }
        }
        imported.state.acme = old.config.acme_settings.unwrap_or_default();
        imported
    }

    fn service(
        &self,
        old: OldService,
        model: Option<&OldModel>,
        replicas: Vec<ReplicaRecord>,
    ) -> ServiceRecord {
        let created = model.and_then(|model| model.created_at.as_ref()?.parse::<jiff::Timestamp>().ok());
        let created = created.map(jiff::Timestamp::as_second);
        ServiceRecord {
            key: self.random.uuid(),
            id: old.id,
            created: created.unwrap_or(self.now),
            domain: old.domain.to_lowercase(),
            https: old.https.unwrap_or(true),
            auth: old.auth,
            client_max_body_size: old.client_max_body_size,
            strip_prefix: old.strip_prefix.unwrap_or(true),
            read_timeout: old.read_timeout.unwrap_or(default_read_timeout()),
            rate_limits: old.rate_limits,
            has_router_replica: old.has_router_replica.unwrap_or(false),
            split: None,
            balancing: BalancingRecord::default(),
            model: model.map(|model| ModelRecord {
                name: model.name.clone(),
                format: model.format_spec.clone(),
            }),
            replicas,
        }
    }
}

/// Those that a key opens: a server registers the others anew.
fn replicas(old: &[Value], key: &Secret, what: &str, left_out: &mut Vec<String>) -> Vec<ReplicaRecord> {
    let mut replicas = Vec::new();
    for old in old {
        let what = || format!("a replica of {what}");
        let Some(replica) = read::<OldReplica>(old.clone(), what, left_out).map(replica) else {
            continue;
        };
        match Chain::read(&replica, key) {
            Ok(_) => replicas.push(replica),
            Err(error) => left_out.push(format!("{}: {}", what(), chain(&error))),
        }
    }
    replicas
}

fn replica(old: OldReplica) -> ReplicaRecord {
    ReplicaRecord {
        job_id: old.id,
        app_port: old.app_port,
        ssh_host: old.ssh_destination,
        ssh_port: old.ssh_port,
        ssh_proxy: old.ssh_proxy,
        ssh_proxy_private_key: old.ssh_proxy_private_key,
        ssh_head_proxy: old.ssh_head_proxy,
        ssh_head_proxy_private_key: old.ssh_head_proxy_private_key,
        internal_ip: old.internal_ip,
    }
}

fn models(of_project: Option<&Named<Value>>, project: &str, left_out: &mut Vec<String>) -> Vec<OldModel> {
    let all = of_project.into_iter().flatten();
    all.filter_map(|(name, model)| {
        let mut model = read::<OldModel>(
            model.clone(),
            || format!("model {name} of project {project}"),
            left_out,
        )?;
        model.run_name = model.run_name.to_lowercase();
        Some(model)
    })
    .collect()
}

fn read<T: serde::de::DeserializeOwned>(
    value: Value,
    what: impl Fn() -> String,
    left_out: &mut Vec<String>,
) -> Option<T> {
    match serde_json::from_value(value) {
        Ok(read) => Some(read),
        Err(error) => {
            left_out.push(format!("{}: {error}", what()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use dstack_ssh::keys::generate_ed25519;
    use serde_json::json;

    use super::super::RateKey;
    use super::*;

    fn taken_over(old: &Value) -> Imported {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state-v2.json");
        fs_err::write(&path, old.to_string()).unwrap();
        import(&path, 99, &Random::seeded(1)).unwrap()
    }

    fn key() -> String {
        let key = generate_ed25519(&Random::seeded(1), "test").unwrap();
        key.private.expose().to_owned()
    }

    fn old() -> Value {
        let replica = json!({
            "id": "b7d7e15c4c6a4d0a9d6f3ddc2f2e1c01", "app_port": 8000, "ssh_destination": "root@localhost", "ssh_port": 10022,
            "ssh_proxy": {"hostname": "10.0.0.1", "username": "ubuntu", "port": 22, "identity_file": null},
            "ssh_proxy_private_key": null, "ssh_head_proxy": null, "ssh_head_proxy_private_key": null, "internal_ip": null
        });
        let service = json!({
            "id": "5a3c", "project_name": "Main", "run_name": "Llm", "domain": "Llm.Example.com", "https": true,
            "rate_limits": [{"prefix": "/v1", "key": {"type": "header", "header": "X-Key"}, "rps": 0.5, "burst": 2}],
            "auth": true, "client_max_body_size": 1024, "strip_prefix": true, "replicas": [replica, {"id": 1}],
            "has_router_replica": false, "cors_enabled": true, "proxy_buffering": false, "read_timeout": 60
        });
        json!({
            "services": {"Main": {"Llm": service, "broken": {"auth": 1}}},
            "models": {"Main": {"m": {
                "project_name": "Main", "name": "m", "created_at": "2024-01-02T03:04:05+00:00", "run_name": "Llm",
                "format_spec": {"format": "openai", "prefix": "/v1"}
            }}},
            "entrypoints": {"Main": {"project_name": "Main", "domain": "gateway.example.com", "https": false}},
            "projects": {"Main": {"name": "Main", "ssh_private_key": key()}},
            "config": {"acme_settings": {"server": "https://ca/dir", "eab_kid": null, "eab_hmac_key": null}}
        })
    }

    #[test]
    fn what_is_registered_there_is_registered_here() {
        let imported = taken_over(&old());
        let project = &imported.state.projects["main"];
        assert_eq!(project.ssh_private_key.expose(), key());
        let entrypoint = project.entrypoint.as_ref().unwrap();
        assert_eq!(
            (
                entrypoint.domain.as_str(),
                entrypoint.https,
                entrypoint.read_timeout
            ),
            ("gateway.example.com", false, 300)
        );
        assert_eq!(imported.state.acme.server.as_deref(), Some("https://ca/dir"));
        let service = imported.state.service("main", "llm").unwrap();
        assert_eq!(service.id.as_deref(), Some("5a3c"));
        assert_eq!(service.domain, "llm.example.com");
        assert_eq!((service.read_timeout, service.client_max_body_size), (60, 1024));
        assert_eq!(service.created, 1_704_164_645);
        assert!(service.allows_any_origin());
        let header = RateKey::Header {
            header: "X-Key".to_owned(),
        };
        assert_eq!(service.rate_limits[0].key, header);
        let [replica] = &service.replicas[..] else {
            panic!("{:?}", service.replicas)
        };
        assert_eq!(
            (replica.ssh_host.as_str(), replica.app_port),
            ("root@localhost", 8000)
        );
        assert_eq!(replica.ssh_proxy.as_ref().unwrap().hostname, "10.0.0.1");
    }

    #[test]
    fn what_is_not_understood_is_left_out_and_told() {
        let imported = taken_over(&old());
        assert_eq!(imported.left_out.len(), 2, "{:?}", imported.left_out);
        assert!(imported.left_out[0].contains("main/llm") || imported.left_out[0].contains("main/broken"));
        assert!(imported.state.service("main", "broken").is_none());
    }

    #[test]
    fn replicas_that_no_key_opens_are_left_out_and_told() {
        for key in ["", "nonsense"] {
            let mut old = old();
            old["projects"]["Main"]["ssh_private_key"] = json!(key);
            let imported = taken_over(&old);
            let service = imported.state.service("main", "llm").unwrap();
            assert_eq!(service.replicas, []);
            let told = imported.left_out.iter();
            let told = told.filter(|text| text.starts_with("a replica of service main/llm: "));
            assert_eq!(told.count(), 2, "{:?}", imported.left_out);
        }
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state-v2.json");
        let random = Random::seeded(1);
        assert!(matches!(import(&path, 0, &random), Err(ImportError::Missing(_))));
        fs_err::write(&path, "[1").unwrap();
        assert!(matches!(
            import(&path, 0, &random),
            Err(ImportError::Unreadable { .. })
        ));
    }
}
