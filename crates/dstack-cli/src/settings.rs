//! Environment variables that the command line reads, in one place.

use std::collections::BTreeMap;
use std::sync::Arc;

use dstack_system::env;

/// Project when `--project` is not given.
pub const PROJECT: &str = "DSTACK_PROJECT";
/// Server, together with [`TOKEN`] instead of the configuration file.
pub const SERVER_URL: &str = "DSTACK_SERVER_URL";
/// Token; overrides the configuration file's.
pub const TOKEN: &str = "DSTACK_TOKEN";
/// Profile when `--profile` is not given.
pub const PROFILE: &str = "DSTACK_PROFILE";
/// Whether profiles are not loaded.
pub const NO_PROFILE: &str = "DSTACK_NO_PROFILE";
/// Value of the `X-API-VERSION` header.
pub const API_VERSION: &str = "DSTACK_CLIENT_API_VERSION";
/// Program that `login` opens URLs with.
pub const BROWSER: &str = "BROWSER";
/// Whether `apply` prints how to connect to a development environment.
pub const PRINT_CONNECTION_INFO: &str = "DSTACK_FF_CLI_PRINT_JOB_CONNECTION_INFO";

/// The environment: the process's, or a fixed one in tests.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    fixed: Option<Arc<BTreeMap<String, String>>>,
}

impl Environment {
    /// The process's environment.
    pub fn system() -> Self {
        Self::default()
    }

    /// A fixed environment.
    pub fn fixed<const N: usize>(variables: [(&str, &str); N]) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            fixed: Some(Arc::new(variables.collect())),
        }
    }

    /// A variable; `None` when unset or empty.
    pub fn get(&self, name: &str) -> Option<String> {
        match &self.fixed {
            Some(fixed) => fixed.get(name).filter(|value| !value.is_empty()).cloned(),
            None => env::var(name),
        }
    }
}
