//! What every command needs: the terminal, the user's folders, and the project it works in.

use std::path::{Path, PathBuf};

use dstack_api::client::Client;
use dstack_api::endpoint::Nothing;
use dstack_api::routes::UsersGetMyUser;
use dstack_model::client_config::ClientConfig;
use dstack_system::Secret;

use crate::config;
use crate::error::{CliError, ErrorKind};
use crate::settings::{self, Environment};
use crate::ssh::keys::{self, KeyFile};
use crate::ui::{Role, Text, Ui};

/// The surroundings of a command.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where the command prints and asks.
    pub ui: Ui,
    /// The environment variables that the command may read.
    pub env: Environment,
    /// The home directory.
    pub home: PathBuf,
    /// The working directory.
    pub folder: PathBuf,
}

/// A project on a server.
#[derive(Debug, Clone)]
pub struct Project {
    /// Calls the project's server with the user's token.
    pub client: Client,
    /// The project's name on the server.
    pub name: String,
}

impl Context {
    /// This process's surroundings.
    ///
    /// # Errors
    /// No home directory, or the working directory was deleted.
    pub fn system(ui: Ui) -> Result<Self, CliError> {
        let home = dstack_system::env::home().ok_or_else(|| {
            CliError::new(ErrorKind::Home, "the home directory is unknown")
                .hint("set the environment variable HOME")
        })?;
        let folder = std::env::current_dir().map_err(|error| {
            CliError::caused_by(ErrorKind::Home, "the current directory cannot be used", error)
        })?;
        Ok(Self {
            ui,
            env: Environment::system(),
            home,
            folder,
        })
    }

    /// Returns `~/.dstack`, which may not exist yet.
    pub fn dstack_folder(&self) -> PathBuf {
        self.home.join(".dstack")
    }

    /// Returns `~/.dstack/ssh`, which may not exist yet.
    pub fn ssh_folder(&self) -> PathBuf {
        self.dstack_folder().join("ssh")
    }

    /// The configuration file; a broken one is complained about and counts as empty.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn config(&self) -> Result<ClientConfig, CliError> {
        let file = config::load(&self.config_path())?;
        if let Some(problem) = file.problem {
            problem.report(&self.ui);
        }
        Ok(file.config)
    }

    /// Returns the path of the configuration file, which may not exist yet.
    pub fn config_path(&self) -> PathBuf {
        self.dstack_folder().join("config.yml")
    }

    /// Changes the configuration file while nobody else does, and returns what it says then. A broken one is kept beside it.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn change_config(&self, change: impl FnOnce(&mut ClientConfig)) -> Result<ClientConfig, CliError> {
        let changed = config::change(&self.config_path(), change)?;
        if let Some(kept) = changed.kept {
            self.ui.complain(Text::new().role(
                Role::Warning,
                format!("What could not be understood is kept in {}", kept.display()),
            ));
        }
        Ok(changed.config)
    }

    /// A client for a server.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn client(&self, url: &str, token: Secret) -> Result<Client, CliError> {
        let client = Client::new(url, Some(token))?;
        Ok(match self.env.get(settings::API_VERSION) {
            Some(version) => client.with_version(Some(version)),
            None => client,
        })
    }

    /// The project that a command works in: flag, then environment, then configuration file.
    ///
    /// # Errors
    /// Nothing says which, or the named one is unknown.
    pub fn project(&self, flag: Option<&str>) -> Result<Project, CliError> {
        let name = flag
            .map(str::to_owned)
            .or_else(|| self.env.get(settings::PROJECT));
        let (url, token) = (self.env.get(settings::SERVER_URL), self.env.get(settings::TOKEN));
        if let (Some(url), Some(token)) = (&url, &token) {
            let name = name.ok_or_else(|| {
                CliError::new(ErrorKind::NoProject, "The project name is not specified")
                    .hint("pass `--project NAME` or set DSTACK_PROJECT")
            })?;
            return Ok(Project {
                client: self.client(url, Secret::new(token))?,
                name,
            });
        }
        self.configured_project(name.as_deref(), url.as_deref(), token)
    }

    fn configured_project(
        &self,
        name: Option<&str>,
        url: Option<&str>,
        token: Option<String>,
    ) -> Result<Project, CliError> {
        let config = self.config()?;
        let found = match name {
            Some(name) => config.project(name),
            None => config.default_project(),
        };
        let Some(found) = found else {
            return Err(match (name, url) {
                (_, Some(_)) => CliError::new(
                    ErrorKind::Credentials,
                    "DSTACK_SERVER_URL is set, but there is no token for it",
                )
                .hint("set DSTACK_TOKEN"),
                (Some(name), None) => {
                    CliError::new(ErrorKind::NoProject, format!("Project {name} is not configured"))
                        .hint("add it with `dstack project add`, or see `dstack project list`")
                }
                (None, None) if token.is_some() => CliError::new(
                    ErrorKind::Credentials,
                    "DSTACK_TOKEN is set, but neither a server nor a project",
                )
                .hint("set DSTACK_SERVER_URL and DSTACK_PROJECT as well"),
                (None, None) => {
                    CliError::new(ErrorKind::NoProject, "No default project, specify project name").hint(
                        "pass `--project NAME`, or run `dstack project add` or `dstack project set-default`",
                    )
                }
            });
        };
        let token = Secret::new(token.unwrap_or_else(|| found.token.clone()));
        let client = self.client(url.unwrap_or(&found.url), token)?;
        Ok(Project {
            client,
            name: found.name.clone(),
        })
    }

    /// The user's key pair as the server keeps it, downloaded when the one on this machine is older than 10 minutes.
    ///
    /// # Errors
    /// The server does not answer, or the file cannot be written.
    pub async fn user_key(&self, client: &Client) -> Result<Option<KeyFile>, CliError> {
        let token = client.token().map(Secret::expose).unwrap_or_default();
        let path = keys::user_key_path(&self.ssh_folder(), token);
        if let Some(key) = keys::fresh_user_key(&path) {
            return Ok(Some(key));
        }
        let user = client.call::<UsersGetMyUser>((), &Nothing).await?;
        keys::store_user_key(&path, &user)
    }

    /// A path of the user: `~` expanded, relative to `base`.
    pub fn resolve(&self, path: &str, base: &Path) -> PathBuf {
        base.join(crate::ssh::config::expand(path, &self.home))
    }
}
