//! Kubeconfig files: which cluster a context means, and as whom it is entered. See
//! <https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/>.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_compute::config::{KubernetesConfig, KubernetesContext, KubernetesProxyJump};
use dstack_http::ServerTls;
use dstack_system::Secret;
use serde::Deserialize;
use serde_json::Value;

/// Where everything is made unless something else is said.
const DEFAULT_NAMESPACE: &str = "default";

/// How a cluster is entered.
#[derive(Debug)]
pub(crate) struct Access {
    /// Name of the context; empty for the current one of a configuration without `contexts`, as dstack 0.22.5 has it.
    pub(crate) region: String,
    pub(crate) namespace: String,
    pub(crate) server: String,
    pub(crate) tls: ServerTls,
    /// Value of the header `Authorization`.
    pub(crate) authorization: Option<Secret>,
    pub(crate) proxy_jump: Option<KubernetesProxyJump>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<Secret>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<Secret>,
    client_key: Option<String>,
    client_key_data: Option<Secret>,
    username: Option<String>,
    password: Option<Secret>,
    exec: Option<Value>,
    auth_provider: Option<Value>,
}

/// The clusters of a configuration, in its order.
///
/// # Errors
/// The text of the problem, for users; nothing of a credential is in it.
pub(crate) fn clusters(config: &KubernetesConfig) -> Result<Vec<Access>, String> {
    let document = dstack_decode::yaml::load(config.kubeconfig.data.expose()).map_err(|error| {
        let (line, column) = (error.position.line, error.position.column);
        format!("kubeconfig: it is not YAML at line {line}, column {column}")
    })?;
    // Its errors quote values, which may be secret.
    let file: File = serde_json::from_value(document.value)
        .map_err(|_| "kubeconfig: it lacks contexts, clusters or users, or one of them a name".to_owned())?;
    let Some(contexts) = &config.contexts else {
        let mut access = file.access(&file.current_context, config.proxy_jump.clone())?;
        if let Some(namespace) = &config.namespace {
            access.namespace.clone_from(namespace);
        }
        access.region = String::new();
        return Ok(vec![access]);
    };
    if config.proxy_jump.is_some() || config.namespace.is_some() {
        return Err(
            "with `contexts`, `proxy_jump` is set for each of them, and the namespace in the kubeconfig"
                .to_owned(),
        );
    }
    let mut all: Vec<Access> = Vec::new();
    for context in contexts {
        let (name, proxy_jump) = match context {
            KubernetesContext::Name(name) => (name, None),
            KubernetesContext::Options(options) => (&options.name, options.proxy_jump.clone()),
        };
        if all.iter().any(|known| known.region == *name) {
            return Err(format!("contexts: {name} is named twice"));
        }
        all.push(file.access(name, proxy_jump)?);
    }
    match all.is_empty() {
        true => Err("contexts: name at least one".to_owned()),
        false => Ok(all),
    }
}

impl File {
    fn access(&self, name: &str, proxy_jump: Option<KubernetesProxyJump>) -> Result<Access, String> {
        let missing = |what: &str, name: &str| format!("kubeconfig: it has no {what} {name:?}");
        let context = self.contexts.iter().find(|one| one.name == name);
        let context = &context.ok_or_else(|| missing("context", name))?.context;
        let cluster = self.clusters.iter().find(|one| one.name == context.cluster);
        let cluster = &cluster
            .ok_or_else(|| missing("cluster", &context.cluster))?
            .cluster;
        let nobody = User::default();
        let user = match context.user.as_str() {
            "" => &nobody,
            wanted => {
                let user = self.users.iter().find(|one| one.name == wanted);
                &user.ok_or_else(|| missing("user", wanted))?.user
            }
        };
        Ok(Access {
            region: name.to_owned(),
            namespace: context
                .namespace
                .clone()
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            server: cluster.server.clone(),
            tls: tls(name, cluster, user)?,
            authorization: authorization(name, user)?,
            proxy_jump,
        })
    }
}

fn tls(context: &str, cluster: &Cluster, user: &User) -> Result<ServerTls, String> {
    let problem = |text: &str| format!("kubeconfig, context {context}: {text}");
    let unsupported = [
        (
            cluster.certificate_authority.is_some(),
            "certificate-authority is a file of another machine: use certificate-authority-data (`kubectl config view --raw --flatten`)",
        ),
        (
            user.client_certificate.is_some() || user.client_key.is_some(),
            "client-certificate and client-key are files of another machine: use client-certificate-data and client-key-data (`kubectl config view --raw --flatten`)",
        ),
        (
            cluster.tls_server_name.is_some(),
            "tls-server-name is not supported: use the name that stands in the server's certificate",
        ),
        (
            cluster.proxy_url.is_some(),
            "proxy-url is not supported: set HTTPS_PROXY for the server",
        ),
    ];
    if let Some((_, text)) = unsupported.iter().find(|(is_set, _)| *is_set) {
        return Err(problem(text));
    }
    let decoded = |data: &Secret, field: &str| {
        let text: String = data.expose().split_whitespace().collect();
        STANDARD
            .decode(text)
            .map_err(|_| problem(&format!("{field} is not base64")))
    };
    let mut tls = ServerTls::default();
    if let Some(data) = &cluster.certificate_authority_data {
        let pem = decoded(data, "certificate-authority-data")?;
        tls = tls
            .with_roots(&pem)
            .map_err(|error| problem(&error.to_string()))?;
    }
    match (&user.client_certificate_data, &user.client_key_data) {
        (Some(certificate), Some(key)) => {
            let (certificate, key) = (
                decoded(certificate, "client-certificate-data")?,
                decoded(key, "client-key-data")?,
            );
            tls = tls
                .with_identity(&certificate, &key)
                .map_err(|error| problem(&error.to_string()))?;
        }
        (None, None) => {}
        _ => {
            return Err(problem(
                "client-certificate-data and client-key-data belong together",
            ));
        }
    }
    Ok(match cluster.insecure_skip_tls_verify {
        true => tls.accepting_any(),
        false => tls,
    })
}

fn authorization(context: &str, user: &User) -> Result<Option<Secret>, String> {
    let problem = |text: &str| {
        Err(format!(
            "kubeconfig, context {context}: {text}. Use the token of a service account (`kubectl create token`)"
        ))
    };
    if user.exec.is_some() {
        return problem("the user runs a program to log in (exec), which the server does not do");
    }
    if user.auth_provider.is_some() {
        return problem("auth-provider is not supported");
    }
    if user.token_file.is_some() && user.token.is_none() {
        return problem("tokenFile is a file of another machine");
    }
    Ok(match (&user.token, &user.username) {
        (Some(token), _) => Some(Secret::new(format!("Bearer {}", token.expose().trim()))),
        (None, Some(name)) => {
            let password = user.password.as_ref().map_or("", Secret::expose);
            let pair = STANDARD.encode(format!("{name}:{password}"));
            Some(Secret::new(format!("Basic {pair}")))
        }
        (None, None) => None,
    })
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // literals
mod tests {
    use dstack_compute::config::BackendConfig;
    use serde_json::json;

    use super::*;

    fn read(user: &str, more: Value) -> Result<Vec<Access>, String> {
        let data = format!(
            "current-context: a\ncontexts:\n- name: a\n  context: {{cluster: c, user: u, namespace: team}}\n- name: b\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster: {{server: 'https://192.0.2.1:6443'}}\nusers:\n- name: u\n  user: {user}\n"
        );
        let mut value = json!({"type": "kubernetes", "kubeconfig": {"data": data}});
        for (key, field) in more.as_object().unwrap() {
            value[key] = field.clone();
        }
        let BackendConfig::Kubernetes(config) = BackendConfig::read(&value).unwrap() else {
            panic!("it is of Kubernetes");
        };
        clusters(&config)
    }

    #[test]
    fn contexts_are_regions() {
        let all = read(
            "{token: t}",
            json!({"contexts": ["b", {"name": "a", "proxy_jump": {"port": 32000}}]}),
        )
        .unwrap();
        let names: Vec<_> = all
            .iter()
            .map(|one| (one.region.as_str(), one.namespace.as_str()))
            .collect();
        assert_eq!(names, [("b", "default"), ("a", "team")]);
        assert_eq!(all[1].proxy_jump.as_ref().unwrap().port, Some(32_000));
        let current = read("{token: t}", json!({"namespace": "other"})).unwrap();
        assert_eq!(
            (current[0].region.as_str(), current[0].namespace.as_str()),
            ("", "other")
        );
        for more in [
            json!({"contexts": ["c"]}),
            json!({"contexts": ["a", "a"]}),
            json!({"contexts": []}),
            json!({"contexts": ["a"], "namespace": "x"}),
        ] {
            assert!(read("{token: t}", more.clone()).is_err(), "{more}");
        }
    }

    #[test]
    fn who_logs_in_is_known_or_refused_with_a_remedy() {
        let header = |user: &str| {
            read(user, json!({}))
                .unwrap()
                .remove(0)
                .authorization
                .map(|text| text.expose().to_owned())
        };
        assert_eq!(header("{token: canary}").unwrap(), "Bearer canary");
        assert_eq!(header("{username: u, password: p}").unwrap(), "Basic dTpw");
        assert_eq!(header("{}"), None);
        for (user, expected) in [
            ("{exec: {command: aws}}", "exec"),
            ("{auth-provider: {name: gcp}}", "auth-provider"),
            ("{tokenFile: /run/canary}", "tokenFile"),
            ("{client-certificate: /canary}", "client-certificate-data"),
            ("{client-certificate-data: Y2FuYXJ5}", "belong together"),
            (
                "{client-certificate-data: Y2FuYXJ5, client-key-data: Y2FuYXJ5}",
                "PEM",
            ),
        ] {
            let error = read(user, json!({})).unwrap_err();
            assert!(error.contains(expected) && !error.contains("canary"), "{error}");
        }
    }
}
