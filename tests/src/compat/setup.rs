//! The server each suite was recorded on.

use std::path::Path;

use anyhow::{Result, bail};

use crate::server::{Server, Setup};

const TOKEN: &str = "golden-admin-token";

const CONFIG: &str = "\
projects:
- name: main
  backends:
  - type: aws
    creds: {type: access_key, access_key: GOLDENACCESSKEY, secret_key: golden-secret-key}
    regions: [us-east-1, us-west-2, eu-west-1]
  - type: runpod
    creds: {type: api_key, api_key: golden-runpod-key}
encryption:
  keys: []
";

const RESTRICTED: &str = "\
default_permissions:
  allow_non_admins_create_projects: false
  allow_non_admins_manage_ssh_fleets: false
  allow_managers_manage_secrets: true
";

/// Starts a fresh server set up as the recorded one of a suite. This machine is not offered: it was not then.
pub fn start(program: &Path, suite: &str, catalog_url: &str) -> Result<Server> {
    let idle = ("DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED", "1");
    let (config, variables): (String, &[(&str, &str)]) = match suite {
        "api" => (CONFIG.into(), &[idle]),
        "restricted" => (format!("{CONFIG}{RESTRICTED}"), &[idle]),
        "exports" => (CONFIG.into(), &[idle, ("DSTACK_SERVER_EXPORTS_ENABLED", "1")]),
        "lifecycle" => (CONFIG.into(), &[]),
        _ => bail!("suite {suite} is unknown: its server setup is not known either"),
    };
    let setup = Setup::new(program)
        .token(TOKEN)
        .config(&config)
        .variable("GPUHUNT_CATALOG_URL", catalog_url);
    let setup = variables
        .iter()
        .fold(setup, |setup, (name, value)| setup.variable(name, *value));
    let setup = setup.argument("--no-local");
    if crate::parts::on_postgres() {
        return setup.on_postgres().map_err(anyhow::Error::msg)?.start();
    }
    setup.start()
}
