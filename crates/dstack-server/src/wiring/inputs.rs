//! What a job needs besides its rows: secrets, credentials, keys, code, files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use dstack_agent_api::runner::{
    FileArchive, RepoCredentials, RepoData, SshKey, SubmitBody, SubmitJobSpec, SubmitJobSubmission,
    SubmitRun, SubmitRunSpec, UnixUser,
};
use dstack_compute::Owner;
use dstack_engine::peers::{cluster_info, placed_spec};
use dstack_engine::{Image, Inputs, InputsError, MachineInputs, RunJobs, SshKeys, StartInputs};
use dstack_images::RegistryCredentials;
use dstack_model::common::Tags;
use dstack_model::configurations::ServiceConfiguration;
use dstack_model::repos::{AnyRunRepoData, RemoteRepoCreds};
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_plan::jobs::{registry_auth, with_secrets};
use dstack_plan::services::replicas::Slot;
use dstack_store::encryption::Encryption;
use dstack_store::queries::secrets;
use dstack_store::rows::{FleetRow, GatewayRow, InstanceRow, RunRow};
use dstack_store::{Database, JobSnapshot, SqlStore};
use dstack_system::Secret;
use dstack_units::{InstanceId, ProjectId};

use crate::blobs::{BlobError, Blobs};
use crate::job_maker::JobMaker;
use crate::settings::Settings;
use dstack_control::keys::Keys;

use super::agent_tokens::AgentTokens;

/// From the database and the bucket. Secrets are decrypted for the call and not kept, but for what [`AgentTokens`] needs.
#[derive(Debug)]
pub struct SqlInputs {
    database: Database,
    encryption: Encryption,
    keys: Arc<Keys>,
    jobs: JobMaker,
    blobs: Blobs,
    tokens: AgentTokens,
    log_quota_hour: Option<i64>,
    only_through_proxy: bool,
}

impl SqlInputs {
    /// What machines of a project are made with.
    async fn machine_of(&self, project: ProjectId, tags: Option<Tags>) -> Result<MachineInputs> {
        let project = self.database.projects().by_id(project).await?;
        let project = project.ok_or_else(|| InputsError::Refused("the project is gone".to_owned()))?;
        let pair = self.keys.of_project(&project).await;
        let pair = pair.map_err(InputsError::transient)?;
        Ok(MachineInputs {
            owner: Owner {
                project: project.name,
                user: String::new(),
                tags: tags.map(|tags| tags.into_iter().collect()).unwrap_or_default(),
            },
            authorized_keys: vec![pair.public.trim_end().to_owned()],
        })
    }

    /// As the settings say.
    pub fn new(jobs: JobMaker, blobs: Blobs, settings: &Settings) -> Self {
        let quota = i64::try_from(settings.log_quota_per_job_hour).ok();
        Self {
            database: jobs.database.clone(),
            encryption: jobs.encryption.clone(),
            keys: Arc::clone(&jobs.keys),
            tokens: AgentTokens::new(jobs.database.clone(), Arc::clone(&jobs.keys)),
            jobs,
            blobs,
            log_quota_hour: quota.filter(|quota| *quota > 0),
            only_through_proxy: settings.sshproxy_is_the_only_way(),
        }
    }

    async fn secrets(&self, project: ProjectId) -> Result<HashMap<String, String>> {
        let rows = self.database.secrets().list(project).await?;
        // One that cannot be decrypted is missing: the job that wants it says so, others are not held up.
        let open = |row: secrets::SecretRow| {
            Some((
                row.name,
                self.encryption.decrypt(&row.value).ok()?.expose().to_owned(),
            ))
        };
        Ok(rows.into_iter().filter_map(open).collect())
    }

    async fn repo_credentials(&self, run: &RunRow) -> Result<Option<RepoCredentials>> {
        let Some(repo) = run.repo_id else { return Ok(None) };
        let Some(stored) = self.database.repos().creds(repo, run.user_id).await? else {
            return Ok(None);
        };
        let text = self
            .encryption
            .decrypt(&stored)
            .map_err(|error| InputsError::Refused(format!("the credentials of the repo: {error}")))?;
        let creds: Option<RemoteRepoCreds> = serde_json::from_str(text.expose()).ok();
        Ok(creds.map(|creds| RepoCredentials {
            clone_url: creds.clone_url,
            private_key: creds.private_key.map(Secret::new),
            oauth_token: creds.oauth_token.map(Secret::new),
        }))
    }

    /// Those of the run: whoever applied it was allowed them.
    async fn archives(&self, spec: &JobSpec) -> Result<Vec<(String, Vec<u8>)>> {
        let mut archives = Vec::new();
        for mapping in &spec.file_archives {
            let content = fetched(self.blobs.archive(mapping.id).await)?;
            let content = content.ok_or_else(|| {
                let path = &mapping.path;
                InputsError::Refused(format!("the archive of `files` path {path} is not stored"))
            })?;
            archives.push((mapping.id.to_string(), content));
        }
        Ok(archives)
    }

    /// Variables that the fleet gives to its hosts, and so to every job on them; a job's own come before them.
    async fn host_env(&self, job: &JobSnapshot) -> Result<BTreeMap<String, Secret>> {
        let Some(fleet) = job.instance.as_ref().and_then(|instance| instance.fleet_id) else {
            return Ok(BTreeMap::new());
        };
        let Some(fleet) = SqlStore::new(self.database.clone()).fleet_row(fleet).await? else {
            return Ok(BTreeMap::new());
        };
        let env = fleet.spec.configuration.env.to_map();
        let env =
            env.map_err(|error| InputsError::Refused(format!("env of fleet {}: {error}", fleet.name)))?;
        Ok(env
            .into_iter()
            .map(|(name, value)| (name, Secret::new(value)))
            .collect())
    }

    async fn code(&self, run: &RunRow, spec: &JobSpec) -> Result<Option<Vec<u8>>> {
        match (run.repo_id, &spec.repo_code_hash) {
            (Some(repo), Some(hash)) => fetched(self.blobs.code(run.project_id, repo, hash).await),
            _ => Ok(None),
        }
    }
}

/// A database or a bucket that is away is asked again; what is gone is gone.
fn fetched(content: Result<Option<Vec<u8>>, BlobError>) -> Result<Option<Vec<u8>>> {
    content.map_err(|error| match error {
        BlobError::Store(error) => error.into(),
        BlobError::Bucket(_) => InputsError::transient(error),
        BlobError::Gone(_) | BlobError::NoBucket => InputsError::Refused(error.to_string()),
    })
}

type Result<T, E = InputsError> = std::result::Result<T, E>;

#[async_trait]
impl Inputs for SqlInputs {
    async fn jobs(&self, run: &RunRow, replicas: &[Slot]) -> Result<Vec<JobSpec>> {
        let made = self.jobs.jobs(run.project_id, &run.run_spec, replicas).await;
        made.map_err(|error| match error.is_transient() {
            true => InputsError::transient(error),
            false => InputsError::Refused(error.to_string()),
        })
    }

    async fn machine(&self, instance: &InstanceRow, fleet: Option<&FleetRow>) -> Result<MachineInputs> {
        let tags = fleet.and_then(|fleet| fleet.spec.merged_profile().params.tags);
        self.machine_of(instance.project_id, tags).await
    }

    async fn gateway(&self, gateway: &GatewayRow) -> Result<MachineInputs> {
        self.machine_of(gateway.project_id, gateway.configuration.tags.clone())
            .await
    }

    async fn start(&self, job: &JobSnapshot, jobs: &RunJobs) -> Result<StartInputs> {
        let spec = &placed_spec(job, jobs)?;
        let secrets = self.secrets(job.job.project_id).await?;
        let mut env = self.host_env(job).await?;
        for (name, value) in &spec.env {
            let value = with_secrets(value, &secrets)
                .map_err(|error| InputsError::Refused(format!("env {name}: {error}")))?;
            env.insert(name.clone(), Secret::new(value));
        }
        let archives = self.archives(spec).await?;
        let code = self.code(&job.run, spec).await?;
        let body = SubmitBody {
            repo_credentials: self.repo_credentials(&job.run).await?,
            log_quota_hour: self.log_quota_hour,
            job_spec: SubmitJobSpec {
                env,
                ..job_spec(spec)
            },
            ..body(job, jobs)
        };
        Ok(StartInputs { body, archives, code })
    }

    async fn image(&self, job: &JobSnapshot, has_efa: bool) -> Result<Image> {
        let spec = &job.job.job_spec;
        let own = match &spec.registry_auth {
            None => None,
            Some(auth) => {
                let secrets = self.secrets(job.job.project_id).await?;
                let (username, password) = registry_auth(auth, &secrets)
                    .map_err(|error| InputsError::Refused(format!("registry_auth: {error}")))?;
                Some(RegistryCredentials {
                    username,
                    password: Secret::new(password),
                })
            }
        };
        let efa_image = match has_efa && !names_image(&job.run.run_spec, &spec.image_name) {
            true => self.jobs.defaults.efa_image(&spec.image_name),
            false => None,
        };
        let image = efa_image.as_deref().unwrap_or(&spec.image_name);
        let has_own = own.is_some();
        let (name, credentials) = self.jobs.registry.apply(image, own);
        Ok(Image {
            name,
            are_credentials_servers: !has_own && credentials.is_some(),
            credentials: credentials.map(|found| (found.username, found.password)),
        })
    }

    async fn ssh_keys(&self, job: &JobSnapshot) -> Result<SshKeys> {
        let mut keys = SshKeys::default();
        if let Some(project) = self.database.projects().by_id(job.job.project_id).await? {
            let pair = self
                .keys
                .of_project(&project)
                .await
                .map_err(InputsError::transient)?;
            keys.container.push(pair.public.trim_end().to_owned());
        }
        // Where users may come through the SSH proxy only, they log in there, and it uses the project's key.
        let user = job.run.run_spec.ssh_key_pub.as_deref();
        let user = user.filter(|_| !self.only_through_proxy);
        keys.host.extend(user.map(|key| key.trim().to_owned()));
        keys.container.extend(keys.host.iter().cloned());
        Ok(keys)
    }

    async fn runner_token(&self, job: &JobSnapshot) -> Result<Secret> {
        self.tokens.of_job(job.job.project_id, job.job.id).await
    }

    async fn shim_token(&self, project: ProjectId, instance: InstanceId) -> Result<Secret> {
        self.tokens.of_instance(project, instance).await
    }
}

/// Whether the run asks for this image by its name: it gets no other then.
fn names_image(run: &RunSpec, image: &str) -> bool {
    let of_run = run.configuration.base().image.as_deref();
    let groups = run
        .configuration
        .service()
        .map(ServiceConfiguration::replica_groups);
    let mut of_groups = groups.iter().flatten().filter_map(|group| group.image.as_deref());
    of_run == Some(image) || of_groups.any(|named| named == image)
}

fn body(job: &JobSnapshot, jobs: &RunJobs) -> SubmitBody {
    let run = &job.run.run_spec;
    let spec = SubmitRunSpec {
        run_name: job.run.run_name.clone(),
        repo_id: run.repo_id.clone().unwrap_or_default(),
        repo_data: run.repo_data.as_ref().map(repo_data),
        configuration: serde_json::json!({"type": run.configuration.type_name()}),
        configuration_path: run.configuration_path.clone().unwrap_or_default(),
    };
    SubmitBody {
        run: SubmitRun {
            id: job.run.id.to_string(),
            run_spec: spec.clone(),
        },
        run_spec: spec,
        job_submission: SubmitJobSubmission {
            id: job.job.id.to_string(),
        },
        cluster_info: cluster_info(job, jobs),
        ..SubmitBody::default()
    }
}

fn job_spec(spec: &JobSpec) -> SubmitJobSpec {
    SubmitJobSpec {
        replica_num: spec.replica_num.into(),
        job_num: spec.job_num.into(),
        jobs_per_replica: spec.jobs_per_replica.into(),
        user: spec.user.as_ref().map(|user| UnixUser {
            uid: user.uid.and_then(|id| u32::try_from(id).ok()),
            gid: user.gid.and_then(|id| u32::try_from(id).ok()),
            username: user.username.clone(),
            groupname: user.groupname.clone(),
        }),
        commands: spec.commands.clone(),
        single_branch: spec.single_branch.unwrap_or(false),
        max_duration: spec.max_duration,
        ssh_key: spec.ssh_key.as_ref().map(|key| SshKey {
            private: Secret::new(key.private.clone()),
            public: key.public.clone(),
        }),
        working_dir: spec.working_dir.clone(),
        repo_dir: Some(spec.repo_dir.clone()),
        repo_data: spec.repo_data.as_ref().map(repo_data),
        repo_exists_action: spec.repo_exists_action.map(|action| action.to_string()),
        file_archives: spec
            .file_archives
            .iter()
            .map(|mapping| FileArchive {
                id: mapping.id.to_string(),
                path: mapping.path.clone(),
            })
            .collect(),
        ..SubmitJobSpec::default()
    }
}

fn repo_data(data: &AnyRunRepoData) -> RepoData {
    match data {
        AnyRunRepoData::Remote(remote) => RepoData {
            repo_type: "remote".to_owned(),
            repo_name: Some(remote.repo_name.clone()),
            repo_branch: remote.repo_branch.clone(),
            repo_hash: remote.repo_hash.clone(),
            repo_config_name: remote.repo_config_name.clone(),
            repo_config_email: remote.repo_config_email.clone(),
            ..RepoData::default()
        },
        AnyRunRepoData::Local(local) => RepoData {
            repo_type: "local".to_owned(),
            repo_dir: Some(local.repo_dir.clone()),
            ..RepoData::default()
        },
        AnyRunRepoData::Virtual(_) => RepoData {
            repo_type: "virtual".to_owned(),
            ..RepoData::default()
        },
    }
}
