//! The registry of environment variables that the server reads: name, default, meaning.

mod outbound;
mod trusted_proxies;
mod unused;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dstack_agent_api::gateway::AcmeSettings;
use dstack_images::{DefaultRegistry, RegistryCredentials};
use dstack_plan::orphans::{Policy as OrphanPolicy, Removes};
use dstack_plan::placement::HostNetwork;
use dstack_store::DatabaseOptions;
use dstack_system::{Secret, env};
use dstack_telemetry::{MetricsExporters, Options as TelemetryOptions, Rates, SentryOptions, TelemetryError};
use ipnet::IpNet;
use url::Url;

use crate::access::FailedLogins;
use crate::overload::Limits;

pub use unused::report as report_unused;

/// One variable, for the reference page.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// Default, in words.
    pub default: &'static str,
    /// What the variable sets, taken from the setting's doc comment.
    pub meaning: &'static str,
}

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $field:ident: $type:ty = $name:literal, $default:literal, $read:expr; )*) => {
        /// All settings, read once at start.
        #[derive(Clone)]
        pub struct Settings { $( $(#[doc = $doc])+ pub $field: $type, )* }

        /// The reference page of all variables, in Markdown.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Variables of the server\n\nMade from the table in `crates/dstack-server/src/settings.rs`; a test keeps this page \
         up to date.\n\n| variable | default | meaning |\n|---|---|---|\n",
    );
    for Variable { name, default, meaning } in VARIABLES {
        page.push_str(&format!("| `{name}` | {default} | {} |\n", meaning.trim()));
    }
    page.push_str("\n## Without effect\n\nVariables of dstack 0.22.5 that change nothing here. The server warns of those that are set.\n\n| variables | why |\n|---|---|\n");
    for (names, reason) in unused::UNUSED {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        page.push_str(&format!("| {} | {reason} |\n", names.join(", ")));
    }
    page
}

impl Settings {
            /// From the environment.
            pub fn from_env() -> Self {
                Self { $( $field: ($read)($name), )* }
            }
        }

        /// All environment variables that set something, in the order of the settings.
        pub static VARIABLES: &[Variable] = &[
            $( Variable { name: $name, default: $default, meaning: concat!($($doc),+) }, )*
        ];
    };
}

/// Values of `DSTACK_SERVER_ORPHANS`.
const ORPHANS_REPORT: &str = "report";
const ORPHANS_REMOVE: &str = "remove";
const ORPHANS_REMOVE_UNKNOWN: &str = "remove-unknown";

fn text(name: &str) -> Option<String> {
    env::var(name)
}

/// A number; nonsense is reported and the default taken.
fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = env::var(name)?;
    let parsed = text.trim().parse().ok();
    if parsed.is_none() {
        tracing::warn!("{name}={text} is not a number: the default is used");
    }
    parsed
}

/// A switch; nonsense is reported and counts as unset.
fn switch(name: &str) -> Option<bool> {
    let text = env::var(name)?;
    let parsed = parse_switch(&text);
    if parsed.is_none() {
        tracing::warn!(
            "{name}={text} is neither on (1, true, yes, on) nor off (0, false, no, off): it counts as unset"
        );
    }
    parsed
}

fn parse_switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn or<T: std::str::FromStr>(default: T) -> impl FnOnce(&str) -> T {
    move |name| number(name).unwrap_or(default)
}

fn text_or(default: &'static str) -> impl FnOnce(&str) -> String {
    move |name| text(name).unwrap_or_else(|| default.to_owned())
}

settings! {
    /// State directory.
    dir: PathBuf = "DSTACK_SERVER_DIR", "~/.dstack/server", |name: &str| {
        text(name).map_or_else(|| env::home().unwrap_or_default().join(".dstack/server"), PathBuf::from)
    };
    /// Address to listen on.
    host: String = "DSTACK_SERVER_HOST", "127.0.0.1", text_or("127.0.0.1");
    /// Port to listen on.
    port: u16 = "DSTACK_SERVER_PORT", "3000", or(3000);
    /// Public URL, used in links and in the CLI's configuration.
    url: Option<String> = "DSTACK_SERVER_URL", "http://host:port", text;
    /// Token of the admin user, only at first start. Each start prints the token.
    admin_token: Option<String> = "DSTACK_SERVER_ADMIN_TOKEN", "random", text;
    /// Database.
    database_url: Option<String> = "DSTACK_DATABASE_URL", "SQLite in <dir>/data/dstack.db", text;
    /// Connections to PostgreSQL that are kept.
    db_pool_size: u32 = "DSTACK_DB_POOL_SIZE", "20", or(20);
    /// Connections to PostgreSQL beyond that, when there is much to do.
    db_max_overflow: u32 = "DSTACK_DB_MAX_OVERFLOW", "20", or(20);
    /// Seconds that PostgreSQL may take for a transaction; 0: any number.
    db_command_timeout: Option<f64> = "DSTACK_DB_COMMAND_TIMEOUT", "20", number;
    /// Every statement for the database in the log, without values.
    sql_echo: bool = "DSTACK_SQL_ECHO_ENABLED", "off", env::flag;
    /// Ignore config.yml.
    config_disabled: bool = "DSTACK_SERVER_CONFIG_DISABLED", "off", env::flag;
    /// Serve the API only; another server does the work.
    background_disabled: bool = "DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED", "off", env::flag;
    /// Level of the log: debug, info, warning, error.
    log_level: Option<String> = "DSTACK_SERVER_LOG_LEVEL", "info", text;
    /// Level of the log of everything that is not dstack's own.
    root_log_level: Option<String> = "DSTACK_SERVER_ROOT_LOG_LEVEL", "error", text;
    /// Format of the log: rich, standard (both are lines of text here) or json.
    log_format: Option<String> = "DSTACK_SERVER_LOG_FORMAT", "rich", text;
    /// Refuse backends with `creds: {type: default}`, which take what credentials they find around the server.
    default_creds_disabled: bool = "DSTACK_DEFAULT_CREDS_DISABLED", "off", env::flag;
    /// Update the default project of the CLI without asking.
    update_default_project: bool = "DSTACK_UPDATE_DEFAULT_PROJECT", "off", env::flag;
    /// Never update the default project of the CLI.
    do_not_update_default_project: bool = "DSTACK_DO_NOT_UPDATE_DEFAULT_PROJECT", "off", env::flag;
    /// Largest upload of code or files in bytes; 0 = as large as a quarter of `DSTACK_SERVER_MAX_BODY_MEMORY`, which none may exceed.
    code_upload_limit: u64 = "DSTACK_SERVER_CODE_UPLOAD_LIMIT", "2097152", or(2 * 1024 * 1024);
    /// Bytes of output of a job in an hour; 0 = unlimited.
    log_quota_per_job_hour: u64 = "DSTACK_SERVER_LOG_QUOTA_PER_JOB_HOUR", "52428800", or(50 * 1024 * 1024);
    /// Keep the output of jobs in this log group of Amazon CloudWatch.
    cloudwatch_group: Option<String> = "DSTACK_SERVER_CLOUDWATCH_LOG_GROUP", "none: in files", text;
    /// Region of the log group.
    cloudwatch_region: Option<String> = "DSTACK_SERVER_CLOUDWATCH_LOG_REGION", "as AWS_REGION says", text;
    /// Keep the output of jobs in Cloud Logging of this Google Cloud project.
    gcp_logging_project: Option<String> = "DSTACK_SERVER_GCP_LOGGING_PROJECT", "none: in files", text;
    /// Address of Cloud Logging, for a proxy or an emulator; it is sent no credentials unless GOOGLE_APPLICATION_CREDENTIALS is set.
    gcp_logging_endpoint: Option<String> = "DSTACK_SERVER_GCP_LOGGING_ENDPOINT", "Google's", text;
    /// Send the output of jobs to Fluent Bit on this host.
    fluentbit_host: Option<String> = "DSTACK_SERVER_FLUENTBIT_HOST", "none: in files", text;
    /// Port of Fluent Bit.
    fluentbit_port: u16 = "DSTACK_SERVER_FLUENTBIT_PORT", "24224", or(24224);
    /// Input of Fluent Bit: forward or http.
    fluentbit_protocol: String = "DSTACK_SERVER_FLUENTBIT_PROTOCOL", "forward", text_or("forward");
    /// First part of the tags.
    fluentbit_tag_prefix: String = "DSTACK_SERVER_FLUENTBIT_TAG_PREFIX", "dstack", text_or("dstack");
    /// Read the output of jobs, which Fluent Bit got, from this Elasticsearch or OpenSearch (a URL).
    elasticsearch_host: Option<String> = "DSTACK_SERVER_ELASTICSEARCH_HOST", "none: not read", text;
    /// Index that Fluent Bit writes to.
    elasticsearch_index: String = "DSTACK_SERVER_ELASTICSEARCH_INDEX", "dstack-logs", text_or("dstack-logs");
    /// API key for Elasticsearch.
    elasticsearch_api_key: Option<Secret> = "DSTACK_SERVER_ELASTICSEARCH_API_KEY", "none", |name: &str| {
        text(name).map(Secret::new)
    };
    /// Keep uploaded code and files in this S3 bucket (also: DSTACK_SERVER_BUCKET).
    s3_bucket: Option<String> = "DSTACK_SERVER_S3_BUCKET", "none: in the database", |name: &str| {
        text(name).or_else(|| text("DSTACK_SERVER_BUCKET"))
    };
    /// Region of the S3 bucket (also: DSTACK_SERVER_BUCKET_REGION).
    s3_region: Option<String> = "DSTACK_SERVER_S3_BUCKET_REGION", "as AWS_REGION says, or us-east-1", |name: &str| {
        text(name).or_else(|| text("DSTACK_SERVER_BUCKET_REGION"))
    };
    /// Keep uploaded code and files in this bucket of Google Cloud Storage.
    gcs_bucket: Option<String> = "DSTACK_SERVER_GCS_BUCKET", "none: in the database", text;
    /// Address of Cloud Storage, for a proxy or an emulator; it is sent no credentials unless GOOGLE_APPLICATION_CREDENTIALS is set.
    gcs_endpoint: Option<String> = "DSTACK_SERVER_GCS_ENDPOINT", "Google's", text;
    /// Projects that a user who is no admin may own.
    user_project_quota: i64 = "DSTACK_USER_PROJECT_DEFAULT_QUOTA", "10", or(10);
    /// Seconds that events are kept; 0 or less: none are.
    events_ttl: i64 = "DSTACK_SERVER_EVENTS_TTL_SECONDS", "2592000", or(2_592_000);
    /// Seconds that metrics of running jobs are kept.
    metrics_running_ttl: i64 = "DSTACK_SERVER_METRICS_RUNNING_TTL_SECONDS", "3600", or(3600);
    /// Seconds that metrics of finished jobs are kept.
    metrics_finished_ttl: i64 = "DSTACK_SERVER_METRICS_FINISHED_TTL_SECONDS", "604800", or(604_800);
    /// Seconds that checks of the health of GPUs are kept.
    health_ttl: i64 = "DSTACK_SERVER_INSTANCE_HEALTH_TTL_SECONDS", "604800", or(604_800);
    /// Seconds between two checks of the health of an instance's GPUs; 1 at least.
    health_interval: u64 = "DSTACK_SERVER_INSTANCE_HEALTH_MIN_COLLECT_INTERVAL_SECONDS", "60", or(60);
    /// Refuse services that no gateway publishes.
    forbid_services_without_gateway: bool = "DSTACK_FORBID_SERVICES_WITHOUT_GATEWAY", "off", env::flag;
    /// Bytes that the body of a request to a service may have at a gateway.
    service_max_body_size: u64 = "DSTACK_DEFAULT_SERVICE_CLIENT_MAX_BODY_SIZE", "67108864", or(64 * 1024 * 1024);
    /// URL of the directory of the certificate authority (ACME) that gateways ask.
    acme_server: Option<String> = "DSTACK_ACME_SERVER", "Let's Encrypt", text;
    /// Id of the key of an account there, where the authority wants one.
    acme_eab_kid: Option<String> = "DSTACK_ACME_EAB_KID", "none", text;
    /// That key.
    acme_eab_hmac_key: Option<Secret> = "DSTACK_ACME_EAB_HMAC_KEY", "none", |name: &str| {
        text(name).map(Secret::new)
    };
    /// Most probes of a job.
    max_probes: usize = "DSTACK_SERVER_MAX_PROBES_PER_JOB", "10", or(10);
    /// Longest timeout of a probe in seconds.
    max_probe_timeout: i64 = "DSTACK_SERVER_MAX_PROBE_TIMEOUT", "300", or(300);
    /// Most replicas of a gateway.
    gateway_max_replicas: i64 = "DSTACK_SERVER_GATEWAY_MAX_REPLICAS", "9", or(9);
    /// Let projects share fleets and gateways with each other (off in dstack 0.22.5).
    exports_enabled: bool = "DSTACK_SERVER_EXPORTS_ENABLED", "off", env::flag;
    /// Failed logins of an address or with a token before further ones are answered 429; 0: any number.
    failed_logins_limit: u32 = "DSTACK_SERVER_FAILED_LOGINS_LIMIT", "100", or(100);
    /// Seconds in which failed logins are counted.
    failed_logins_window: u64 = "DSTACK_SERVER_FAILED_LOGINS_WINDOW", "60", or(60);
    /// Seconds that a login provider may take for all that one call needs of it.
    login_timeout: u64 = "DSTACK_SERVER_LOGIN_TIMEOUT", "20", or(20);
    /// Address of the service behind `plugins: [rest_plugin]`.
    plugin_service: Option<String> = "DSTACK_PLUGIN_SERVICE_URI", "none", text;
    /// Seconds that the plugin service may take.
    plugin_timeout: u64 = "DSTACK_PLUGIN_SERVICE_TIMEOUT", "8", or(8);
    /// Calls that change something at a time; more are answered 429.
    max_writes: usize = "DSTACK_SERVER_MAX_CONCURRENT_WRITES", "512", or(512);
    /// Plans at a time; more are answered 429.
    max_plans: usize = "DSTACK_SERVER_MAX_CONCURRENT_PLANS", "256", or(256);
    /// Calls that only read at a time; more are answered 429.
    max_reads: usize = "DSTACK_SERVER_MAX_CONCURRENT_READS", "4096", or(4096);
    /// Uploads at a time; more are answered 429.
    max_uploads: usize = "DSTACK_SERVER_MAX_CONCURRENT_UPLOADS", "64", or(64);
    /// Bytes of request bodies and uploads that are held in memory at a time; more wait for some seconds, and are answered 429.
    max_body_memory: usize = "DSTACK_SERVER_MAX_BODY_MEMORY", "268435456", or(256 * 1024 * 1024);
    /// Connections of clients at a time; more wait until one is closed.
    max_connections: Option<usize> = "DSTACK_SERVER_MAX_CONNECTIONS", "three quarters of the files that may be open (`ulimit -Hn`), 10000 at most", number;
    /// Refuse `dstack: true` in runs.
    forbid_dstack_in_runs: bool = "DSTACK_FORBID_DSTACK_IN_RUNS", "off", env::flag;
    /// Default image of jobs.
    docker_base_image: String = "DSTACK_DOCKER_BASE_IMAGE", "dstackai/base", text_or("dstackai/base");
    /// Version of the default image.
    docker_base_image_version: String = "DSTACK_DOCKER_BASE_IMAGE_VERSION", "0.16", text_or("0.16");
    /// Ubuntu of the default image.
    docker_base_image_ubuntu: String = "DSTACK_DOCKER_BASE_IMAGE_UBUNTU_VERSION", "24.04", text_or("24.04");
    /// Image of jobs with `docker: true`.
    dind_image: String = "DSTACK_DIND_IMAGE", "dstackai/dind", text_or("dstackai/dind");
    /// Registry of images that name none.
    default_docker_registry: Option<String> = "DSTACK_SERVER_DEFAULT_DOCKER_REGISTRY", "none: the container engine's", text;
    /// User for images that name no registry, of jobs without `registry_auth`.
    default_docker_username: Option<String> = "DSTACK_SERVER_DEFAULT_DOCKER_REGISTRY_USERNAME", "none", text;
    /// Its password.
    default_docker_password: Option<Secret> = "DSTACK_SERVER_DEFAULT_DOCKER_REGISTRY_PASSWORD", "none", |name: &str| {
        text(name).map(Secret::new)
    };
    /// What users may have the server contact besides public addresses, by naming an image or a repo of templates: hosts, domains (`*.corp`), addresses and networks (`10.0.0.0/8`), separated by commas; `*`: all but link-local and metadata addresses ([ADR 21](adr/021-outbound-guard.md)). What settings and `config.yml` name needs no entry.
    outbound_allow: Option<String> = "DSTACK_SERVER_OUTBOUND_ALLOW", "none: public addresses only", text;
    /// Which jobs get their host's network: 1: nodes of several that have an instance to themselves, 2: all that have, 3: none. On this machine: none.
    job_network_mode: u8 = "DSTACK_SERVER_JOB_NETWORK_MODE", "2", or(2);
    /// Offers tried for one instance.
    max_offers_tried: usize = "DSTACK_SERVER_MAX_OFFERS_TRIED", "25", or(dstack_plan::fleets::MAX_OFFERS_TRIED);
    /// Where APIs of clouds are instead of at their vendors, for proxies and emulators: `cloudrift=http://127.0.0.1:8080`, more after commas.
    backend_endpoints: Option<String> = "DSTACK_SERVER_BACKEND_ENDPOINTS", "the vendors'", text;
    /// Directory of files that describe backends, `*.yml` and `*.yaml`, read at the start ([manifest.md](backends/manifest.md)).
    backends_dir: Option<PathBuf> = "DSTACK_SERVER_BACKENDS_DIR", "<dir>/backends.d", |name: &str| text(name).map(PathBuf::from);
    /// What becomes of things in clouds that carry the marks of this installation and belong to nobody: report (an event and a line of the log); remove: those whose instance or group is over here, or has another one, are ended as well; remove-unknown: also those of which nothing is known here. Disks are never ended ([doctor.md](doctor.md)).
    orphans: String = "DSTACK_SERVER_ORPHANS", "report", text_or(ORPHANS_REPORT);
    /// Seconds for which such a thing belongs to nobody before it is reported, or ended.
    orphans_grace: u64 = "DSTACK_SERVER_ORPHANS_GRACE_SECONDS", "1800", or(dstack_plan::orphans::GRACE.as_secs());
    /// Never look for newer prices: those that came with this version are used, and those that were loaded before.
    catalog_refresh_disabled: bool = "DSTACK_SERVER_CATALOG_REFRESH_DISABLED", "off", env::flag;
    /// End the tasks of ended jobs, but leave their containers on the hosts: for looking at them. Nobody removes them later.
    keep_shim_tasks: bool = "DSTACK_SERVER_KEEP_SHIM_TASKS", "off", env::flag;
    /// Offer the server's own machine as an instance of project `main`: 1, true, yes or on: also where others reach the server; 0, false, no or off: never ([isolation.md](isolation.md)).
    local: Option<bool> = "DSTACK_SERVER_LOCAL", "only where nobody else reaches the server", switch;
    /// What runs jobs on the server's own machine: docker, process, or auto: as at its last start, at the first docker where a container engine is installed ([isolation.md](isolation.md)).
    local_runtime: String = "DSTACK_LOCAL_RUNTIME", "auto", text_or("auto");
    /// Such as production: a label of what is sent to OpenTelemetry and Sentry ([telemetry.md](telemetry.md)).
    environment: String = "DSTACK_SERVER_ENVIRONMENT", "dev", text_or("dev");
    /// Send traces to an OpenTelemetry collector; where it is, OTEL_EXPORTER_OTLP_ENDPOINT says.
    otel_traces: bool = "DSTACK_OTEL_TRACES_ENABLED", "off", env::flag;
    /// Share of the traces of requests that is sent, 0 to 1.
    otel_traces_rate: f64 = "DSTACK_OTEL_TRACES_SAMPLE_RATE", "1.0", or(1.0);
    /// Share of the traces of work in the background that is sent, 0 to 1.
    otel_background_rate: f64 = "DSTACK_OTEL_TRACES_BACKGROUND_SAMPLE_RATE", "1.0", or(1.0);
    /// Send the log to an OpenTelemetry collector.
    otel_logs: bool = "DSTACK_OTEL_LOGS_ENABLED", "off", env::flag;
    /// Metrics of the server itself.
    otel_metrics: bool = "DSTACK_OTEL_METRICS_ENABLED", "off", env::flag;
    /// Where they go, as a list: otlp (an OpenTelemetry collector), prometheus (/metrics, if that is enabled).
    otel_metrics_exporters: String = "DSTACK_OTEL_METRICS_EXPORTERS", "otlp", text_or("otlp");
    /// Send errors and traces to this project of Sentry.
    sentry_dsn: Option<Secret> = "DSTACK_SENTRY_DSN", "none", |name: &str| text(name).map(Secret::new);
    /// Share of the traces of requests that Sentry gets, 0 to 1.
    sentry_traces_rate: f64 = "DSTACK_SENTRY_TRACES_SAMPLE_RATE", "0.1", or(0.1);
    /// Share of the traces of work in the background that Sentry gets, 0 to 1.
    sentry_background_rate: f64 = "DSTACK_SENTRY_TRACES_BACKGROUND_SAMPLE_RATE", "0.01", or(0.01);
    /// Serve metrics at /metrics.
    prometheus: bool = "DSTACK_ENABLE_PROMETHEUS_METRICS", "off", env::flag;
    /// Token for /metrics.
    prometheus_token: Option<String> = "DSTACK_PROMETHEUS_AUTH_TOKEN", "none: open", text;
    /// Proxies before the server whose `X-Forwarded-*` headers are believed and passed on to services: networks and addresses, separated by commas.
    trusted_proxies: Vec<IpNet> = "DSTACK_SERVER_TRUSTED_PROXIES", "127.0.0.0/8,::1", trusted_proxies::networks;
    /// Give pages of services that are reached through this server an origin of their own, so that they cannot read what the page of the server keeps in the browser. Pages that keep something in the browser themselves, or ask their own service with scripts, do not work then.
    sandbox_services: bool = "DSTACK_SERVER_SANDBOX_SERVICES", "off", env::flag;
    /// Write a line of the log for each request to a service or model that comes through this server, without its query.
    services_access_log: bool = "DSTACK_SERVER_SERVICES_ACCESS_LOG", "off", env::flag;
    /// Seconds that a replica of a service may be silent: before its answer, and between two pieces of it. As long a request waits for the first replica of a service.
    service_timeout: u64 = "DSTACK_SERVICE_CLIENT_TIMEOUT", "300", or(300);
    /// Token of the SSH proxy; without it the proxy's route is closed.
    sshproxy_token: Option<String> = "DSTACK_SSHPROXY_API_TOKEN", "none: closed", text;
    /// Address of the SSH proxy, host or host:port.
    sshproxy_address: Option<String> = "DSTACK_SERVER_SSHPROXY_ADDRESS", "none", text;
    /// Do not let users' own keys into jobs: the SSH proxy is the only way (needs its token and address).
    sshproxy_enforced: bool = "DSTACK_SERVER_SSHPROXY_ENFORCED", "off", env::flag;
    /// Git repo of UI templates.
    templates_repo: Option<String> = "DSTACK_SERVER_TEMPLATES_REPO", "none", text;
}

/// Some settings are secret: none are printed but those that everybody sees.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("dir", &self.dir)
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// URL under which the server is known.
    pub fn server_url(&self) -> String {
        self.url
            .clone()
            .unwrap_or_else(|| format!("http://{}", self.listening_address()))
    }

    /// Returns the host of the public URL, if one is set; what is no URL as a whole.
    pub fn public_host(&self) -> Option<String> {
        let text = self.url.as_deref()?;
        let host = |text: &str| Some(Url::parse(text).ok()?.host_str()?.to_owned());
        host(text)
            .or_else(|| host(&format!("http://{text}")))
            .or_else(|| Some(text.to_owned()))
    }

    /// Returns the directory of files that describe backends.
    pub fn manifests_dir(&self) -> PathBuf {
        let own = || self.dir.join("backends.d");
        self.backends_dir.clone().unwrap_or_else(own)
    }

    /// Returns the path of the SQLite database as its URL spells it; `None`: it is another database.
    pub fn sqlite_path(&self) -> Option<PathBuf> {
        let Some(url) = &self.database_url else {
            return Some(self.dir.join("data/dstack.db"));
        };
        let (scheme, path) = url.split_once("://")?;
        let path = path.split('?').next().unwrap_or(path);
        scheme.starts_with("sqlite").then(|| PathBuf::from(path))
    }

    /// Returns the path of the SQLite database once escapes (`%20`) are resolved, as the database does it.
    pub fn sqlite_file(&self) -> Option<PathBuf> {
        let path = self.sqlite_path()?;
        let text = path.to_str()?;
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        Some(decoded.map_or_else(|_| path.clone(), |text| PathBuf::from(text.as_ref())))
    }

    /// Host and port, as in URLs: addresses of IPv6 stand in brackets.
    pub(crate) fn listening_address(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::from((ip, self.port)).to_string(),
            Err(_) => format!("{}:{}", self.host, self.port),
        }
    }

    /// Where images come from that name no registry.
    pub fn default_registry(&self) -> DefaultRegistry {
        let (user, password) = (&self.default_docker_username, &self.default_docker_password);
        let credentials = user.as_ref().zip(password.as_ref());
        DefaultRegistry {
            name: self.default_docker_registry.clone(),
            credentials: credentials.map(|(username, password)| RegistryCredentials {
                username: username.clone(),
                password: password.clone(),
            }),
        }
    }

    /// How the database is used.
    pub fn database_options(&self) -> DatabaseOptions {
        DatabaseOptions {
            connections: self.database_connections(),
            patience: patience(self.db_command_timeout),
        }
    }

    /// What is sent to OpenTelemetry and Sentry by a process that has this name.
    ///
    /// # Errors
    /// What is set makes no sense.
    pub fn telemetry(&self, instance: String) -> Result<TelemetryOptions, TelemetryError> {
        let metrics = match self.otel_metrics {
            true => Some(MetricsExporters::parse(&self.otel_metrics_exporters)?),
            false => None,
        };
        Ok(TelemetryOptions {
            version: dstack_api::VERSION,
            instance,
            environment: self.environment.clone(),
            traces: self.otel_traces.then_some(Rates {
                requests: self.otel_traces_rate,
                background: self.otel_background_rate,
            }),
            logs: self.otel_logs,
            metrics,
            sentry: self.sentry_dsn.clone().map(|dsn| SentryOptions {
                dsn,
                rates: Rates {
                    requests: self.sentry_traces_rate,
                    background: self.sentry_background_rate,
                },
            }),
        })
    }

    /// Most connections to PostgreSQL.
    pub const fn database_connections(&self) -> u32 {
        let connections = self.db_pool_size.saturating_add(self.db_max_overflow);
        if connections == 0 { 1 } else { connections }
    }

    /// Which jobs get their host's network.
    pub fn host_network(&self) -> HostNetwork {
        HostNetwork::from_number(self.job_network_mode).unwrap_or_else(|| {
            tracing::warn!(
                "DSTACK_SERVER_JOB_NETWORK_MODE={} is not 1, 2 or 3: the default is used",
                self.job_network_mode
            );
            HostNetwork::default()
        })
    }

    /// Offers tried for one instance.
    pub const fn offers_tried(&self) -> usize {
        self.max_offers_tried
    }

    /// What becomes of things in clouds that belong to nobody. Nothing is ended unless that is what the setting says.
    pub fn orphan_policy(&self) -> OrphanPolicy {
        let removes = match self.orphans.trim() {
            ORPHANS_REPORT => Removes::Nothing,
            ORPHANS_REMOVE => Removes::Ended,
            ORPHANS_REMOVE_UNKNOWN => Removes::Everything,
            wanted => {
                tracing::warn!(
                    "DSTACK_SERVER_ORPHANS={wanted} is none of {ORPHANS_REPORT}, {ORPHANS_REMOVE} and \
                     {ORPHANS_REMOVE_UNKNOWN}: orphans are reported only"
                );
                Removes::Nothing
            }
        };
        OrphanPolicy {
            grace: Duration::from_secs(self.orphans_grace),
            removes,
        }
    }

    /// Pause between two checks of the health of an instance's GPUs.
    pub fn health_every(&self) -> Duration {
        Duration::from_secs(self.health_interval.max(1))
    }

    /// Whether users may reach their jobs through the SSH proxy only.
    pub const fn sshproxy_is_the_only_way(&self) -> bool {
        self.sshproxy_enforced && self.sshproxy_token.is_some() && self.sshproxy_address.is_some()
    }

    /// Counts failed logins.
    pub fn failed_logins(&self) -> FailedLogins {
        FailedLogins::new(
            self.failed_logins_limit,
            Duration::from_secs(self.failed_logins_window),
        )
    }

    /// Where gateways get certificates.
    pub fn acme(&self) -> AcmeSettings {
        AcmeSettings {
            acme_server: self.acme_server.clone(),
            acme_eab_kid: self.acme_eab_kid.clone(),
            acme_eab_hmac_key: self.acme_eab_hmac_key.clone(),
        }
    }

    /// How long a replica of a service may be silent.
    pub fn service_patience(&self) -> Duration {
        const YEAR: u64 = 365 * 24 * 3600;
        Duration::from_secs(self.service_timeout.clamp(1, YEAR))
    }

    /// How long a login provider may take.
    pub const fn login_patience(&self) -> Duration {
        Duration::from_secs(self.login_timeout)
    }

    /// How many calls may be served at a time.
    pub const fn limits(&self) -> Limits {
        Limits {
            reads: self.max_reads,
            plans: self.max_plans,
            writes: self.max_writes,
            uploads: self.max_uploads,
            body_bytes: self.max_body_memory,
        }
    }

    /// What planning needs of them.
    pub fn defaults(&self) -> dstack_plan::ServerDefaults {
        dstack_plan::ServerDefaults {
            base_image: self.docker_base_image.clone(),
            base_image_version: self.docker_base_image_version.clone(),
            base_image_ubuntu: self.docker_base_image_ubuntu.clone(),
            dind_image: self.dind_image.clone(),
            metrics_running_ttl: self.metrics_running_ttl,
            max_probes: self.max_probes,
            max_probe_timeout: self.max_probe_timeout,
            forbid_dstack_in_runs: self.forbid_dstack_in_runs,
            ..dstack_plan::ServerDefaults::default()
        }
    }
}

/// How long a transaction may take; `None`: as long as it likes.
fn patience(seconds: Option<f64>) -> Option<Duration> {
    let Some(seconds) = seconds else {
        return DatabaseOptions::default().patience;
    };
    if seconds == 0.0 {
        return None;
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(patience) => Some(patience),
        Err(_) => {
            tracing::warn!("DSTACK_DB_COMMAND_TIMEOUT={seconds} is not a time: the default is used");
            DatabaseOptions::default().patience
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_may_take_any_time_is_asked_for_with_0() {
        assert_eq!(patience(Some(0.0)), None);
        assert_eq!(patience(Some(1.5)), Some(Duration::from_millis(1500)));
        assert_eq!(patience(None), Some(Duration::from_secs(20)));
        assert_eq!(patience(Some(-1.0)), patience(None));
    }

    #[test]
    fn the_public_host_is_that_of_the_url() {
        let host = |url: &str| {
            let settings = Settings {
                url: Some(url.to_owned()),
                ..Settings::from_env()
            };
            settings.public_host().unwrap()
        };
        assert_eq!(host("https://dstack.example.org/x"), "dstack.example.org");
        assert_eq!(host("http://[::1]:3000"), "[::1]");
        assert_eq!(host("localhost:3000"), "localhost");
        assert_eq!(host("dstack.example.org"), "dstack.example.org");
    }

    #[test]
    fn files_that_describe_backends_lie_below_the_state_directory_unless_it_is_said_where() {
        let settings = |backends_dir: Option<&str>| Settings {
            dir: "/srv/dstack".into(),
            backends_dir: backends_dir.map(PathBuf::from),
            ..Settings::from_env()
        };
        assert_eq!(
            settings(None).manifests_dir(),
            PathBuf::from("/srv/dstack/backends.d")
        );
        assert_eq!(settings(Some("/etc/b")).manifests_dir(), PathBuf::from("/etc/b"));
    }

    #[test]
    fn the_file_of_an_sqlite_database_is_known() {
        let file = |url: Option<&str>| {
            let settings = Settings {
                dir: "/srv/dstack".into(),
                database_url: url.map(str::to_owned),
                ..Settings::from_env()
            };
            settings.sqlite_file()
        };
        assert_eq!(file(None), Some("/srv/dstack/data/dstack.db".into()));
        let plain = Some("sqlite+aiosqlite:///srv/my%20db/d.db?mode=rwc");
        assert_eq!(file(plain), Some("/srv/my db/d.db".into()));
        assert_eq!(file(Some("postgresql://u:p@h/db")), None);
    }

    #[test]
    fn orphans_are_ended_only_where_the_setting_says_exactly_that() {
        for (text, removes) in [
            ("report", Removes::Nothing),
            ("remove", Removes::Ended),
            (" remove ", Removes::Ended),
            ("remove-unknown", Removes::Everything),
            ("Remove!", Removes::Nothing),
            ("1", Removes::Nothing),
        ] {
            let settings = Settings {
                orphans: text.to_owned(),
                orphans_grace: 600,
                ..Settings::from_env()
            };
            let policy = settings.orphan_policy();
            assert_eq!(
                (policy.removes, policy.grace),
                (removes, Duration::from_secs(600)),
                "{text}"
            );
        }
        assert_eq!(Settings::from_env().orphan_policy(), OrphanPolicy::default());
    }

    #[test]
    fn a_switch_can_be_switched_off() {
        for (text, expected) in [
            ("1", Some(true)),
            ("True", Some(true)),
            (" on ", Some(true)),
            ("0", Some(false)),
            ("false", Some(false)),
            ("NO", Some(false)),
            ("off", Some(false)),
            ("2", None),
            ("localhost", None),
        ] {
            assert_eq!(parse_switch(text), expected, "{text}");
        }
    }

    #[test]
    fn addresses_of_ipv6_stand_in_brackets() {
        let url = |host: &str| {
            let settings = Settings {
                url: None,
                host: host.to_owned(),
                port: 3000,
                ..Settings::from_env()
            };
            settings.server_url()
        };
        assert_eq!(url("::1"), "http://[::1]:3000");
        assert_eq!(url("[::1]"), "http://[::1]:3000");
        assert_eq!(url("127.0.0.1"), "http://127.0.0.1:3000");
        assert_eq!(url("localhost"), "http://localhost:3000");
    }

    /// Written anew by `DSTACK_UPDATE_PAGES=1 cargo nextest run -p dstack-server settings`.
    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
        if env::flag("DSTACK_UPDATE_PAGES") {
            fs_err::write(&path, reference_page()).unwrap();
        }
        assert_eq!(fs_err::read_to_string(&path).unwrap(), reference_page());
    }

    /// Those of the documentation of dstack 0.22.5.
    #[test]
    fn every_variable_of_the_reference_is_known() {
        let known = |name: &str| {
            VARIABLES.iter().any(|variable| variable.name == name)
                || unused::UNUSED.iter().any(|(names, _)| names.contains(&name))
        };
        let documented = include_str!("../tests/data/variables-0.22.5.txt");
        let unknown: Vec<&str> = documented.lines().filter(|name| !known(name)).collect();
        assert_eq!(unknown, Vec::<&str>::new());
    }

    #[test]
    fn names_are_unique_and_all_have_a_meaning() {
        let mut names: Vec<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
        assert!(
            VARIABLES
                .iter()
                .all(|variable| variable.name.starts_with("DSTACK_") && !variable.meaning.trim().is_empty())
        );
    }
}
