//! What stands between clients and the control plane.

use std::sync::Arc;

use dstack_telemetry::Telemetry;

use crate::config_backends::rounds::Rounds;
use crate::overload::Overload;
use crate::plugins::Plugins;
use crate::render::run_lists::RunLists;
use crate::render::runs::RunCache;
use crate::settings::Settings;
use crate::site::Site;
use crate::templates_repo::TemplatesRepos;

/// What stands between clients and the control plane.
#[derive(Debug)]
pub struct Edge {
    /// Environment and flags.
    pub settings: Settings,
    /// Limits how many calls of a kind are served at a time, and the memory that their bodies take.
    pub overload: Overload,
    /// May change or refuse what is applied.
    pub plugins: Plugins,
    /// Looks whether repositories of templates can be read.
    pub templates_repos: TemplatesRepos,
    /// Sends what happens here to OpenTelemetry and Sentry.
    pub telemetry: Telemetry,
    /// Runs as JSON, by version.
    pub runs: Arc<RunCache>,
    /// Whole lists of them, until something is written.
    pub run_lists: RunLists,
    /// The web page.
    pub site: Site,
    /// Backends of config.yml that are being configured.
    pub(crate) config_backends: Rounds,
}

impl Edge {
    /// As the settings say; nothing is rendered yet.
    pub fn new(settings: Settings, overload: Overload, telemetry: Telemetry, runs: Arc<RunCache>) -> Self {
        Self {
            plugins: Plugins::new(&settings),
            templates_repos: TemplatesRepos::new(settings.outbound_policy()),
            settings,
            overload,
            telemetry,
            runs,
            run_lists: RunLists::default(),
            site: Site::default(),
            config_backends: Rounds::default(),
        }
    }

    /// The same, with a web page.
    #[must_use]
    pub fn with_site(self, site: Site) -> Self {
        Self { site, ..self }
    }

    /// The same, with waits of its own for the backends of config.yml.
    #[must_use]
    pub(crate) fn with_config_backends(self, config_backends: Rounds) -> Self {
        Self {
            config_backends,
            ..self
        }
    }
}
