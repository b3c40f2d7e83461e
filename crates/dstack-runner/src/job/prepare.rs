//! Everything before the commands start. Blocking.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dstack_agent_api::runner::{JobInfo, RepoData, SubmitBody, SubmitJobSpec};
use dstack_sshd::SessionDefaults;
use dstack_system::accounts;

use crate::capabilities::Capabilities;
use crate::credentials::{self, GitCredentials};
use crate::environment::{self, Env};
use crate::paths;
use crate::pty::{Credentials, PtyCommand};
use crate::repo::{self, ExistsAction, FilePlacement, FilesJob, RepoJob};
use crate::shared::{Core, JobSsh, Settings, chain};
use crate::uploads;
use crate::users::{self, JobUser, Owner};

use super::Ending;

/// Where the repo goes when the server does not say (servers before 0.19.27).
const LEGACY_REPO_DIR: &str = "/workflow";

/// Host keys that the image, or the host, knows for all its users.
const KNOWN_HOSTS: &str = "/etc/ssh/ssh_known_hosts";

/// Mode of files in the state directory that everybody may read.
const PUBLIC: u32 = 0o644;
/// Of those that are their owner's alone.
const PRIVATE: u32 = 0o600;

/// Who runs the job, and where.
#[derive(Debug, Clone)]
pub(super) struct Place {
    user: JobUser,
    home: PathBuf,
    /// The home is the user's own and may get files.
    home_usable: bool,
    working_dir: PathBuf,
    /// Who gets the job's files; `None`: they stay the runner's.
    owner: Option<Owner>,
    capabilities: Capabilities,
}

impl Place {
    /// Looks up the user and makes the working directory.
    pub(super) fn resolve(core: &Core, body: &SubmitBody) -> Result<Self, Ending> {
        let capabilities = Capabilities::effective();
        let user_error = |why: &str| Ending::executor_error(format!("Failed to set job user ({why})"));
        let own = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        let wanted = body.job_spec.user.as_ref();
        let mut user = users::resolve(&core.settings.passwd, wanted, own.0, own.1)
            .map_err(|error| user_error(&chain(&error)))?;
        let can_switch = capabilities.can_switch_user();
        if !can_switch && (user.uid, user.gid) != own {
            core.log.warn(format_args!(
                "the runner lacks the rights to switch users: the job runs as uid {} and not as uid {}",
                own.0, user.uid
            ));
            user = users::resolve(&core.settings.passwd, None, own.0, own.1)
                .map_err(|error| user_error(&chain(&error)))?;
        }
        let home = home_of(core, &user, own.0);
        let home_usable = home.is_some() && home.as_deref() != Some(Path::new("/"));
        let owner = (can_switch && user.uid != own.0).then(|| user.owner());
        let mut place = Self {
            home: home.unwrap_or_else(|| PathBuf::from("/")),
            home_usable,
            working_dir: PathBuf::new(),
            user,
            owner,
            capabilities,
        };
        place.working_dir = place
            .make_working_dir(core, &body.job_spec)
            .map_err(|why| Ending::executor_error(format!("Failed to set job working dir ({why})")))?;
        Ok(place)
    }

    fn make_working_dir(&self, core: &Core, spec: &SubmitJobSpec) -> Result<PathBuf, String> {
        let Some(wanted) = spec.working_dir.as_deref().filter(|path| !path.is_empty()) else {
            return std::env::current_dir().map_err(|error| error.to_string());
        };
        let wanted = of_job(&core.settings, wanted);
        let path = paths::resolve(&wanted, &self.home, None).map_err(|error| chain(&error))?;
        paths::create_dirs(&path, self.owner).map_err(|error| error.to_string())?;
        Ok(path)
    }

    /// What the server is told.
    pub(super) fn info(&self) -> JobInfo {
        JobInfo {
            working_dir: self.working_dir.display().to_string(),
            username: self.user.name.clone(),
        }
    }

    /// The job's command on its terminal.
    pub(super) fn command(&self, argv: Vec<String>, env: Env) -> PtyCommand {
        let credentials = self.capabilities.can_switch_user().then(|| Credentials {
            uid: self.user.uid,
            gid: self.user.gid,
            groups: self.user.groups.clone(),
        });
        PtyCommand {
            argv,
            env,
            dir: self.working_dir.clone(),
            credentials,
            unlimited_memlock: self.capabilities.can_raise_limits(),
        }
    }

    fn resolve_path(&self, path: &str) -> Result<PathBuf, paths::PathError> {
        paths::resolve(path, &self.home, Some(&self.working_dir))
    }
}

/// The home of the job's user, when it can be used. The runner's own user has the one it was started with, where that is
/// a person's (no container with root and its image's variables) or where there is no account.
fn home_of(core: &Core, user: &JobUser, own_uid: u32) -> Option<PathBuf> {
    let started_with = core
        .settings
        .inherited_env
        .iter()
        .find(|(name, _)| name == "HOME");
    let persons = user.uid == own_uid && (!core.settings.touch_system || user.account_home.is_empty());
    started_with
        .filter(|_| persons)
        .and_then(|(_, home)| accounts::usable_home(home))
        .or_else(|| accounts::usable_home(&user.account_home))
}

/// What the commands need.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Environment of the commands.
    pub(super) env: Env,
    // Removed from the home when the job is over.
    _credentials: GitCredentials,
}

/// Prepares home, repo, files and environment.
pub(super) fn prepare(
    core: &Core,
    body: &SubmitBody,
    place: &Place,
    ssh: &dyn JobSsh,
    cancelled: Arc<AtomicBool>,
) -> Result<Prepared, Ending> {
    let credentials = install_credentials(core, body, place, ssh);
    let repo_dir = prepare_repo(core, body, place, cancelled)?;
    prepare_files(core, body, place)?;
    let env = prepare_environment(core, body, place, &repo_dir)?;
    Ok(Prepared {
        env,
        _credentials: credentials,
    })
}

fn install_credentials(core: &Core, body: &SubmitBody, place: &Place, ssh: &dyn JobSsh) -> GitCredentials {
    let key = body
        .job_spec
        .ssh_key
        .as_ref()
        .filter(|_| body.cluster_info.job_ips.len() >= 2);
    if let Some(key) = key {
        ssh.add_key(&key.public);
    }
    if !core.settings.touch_system || !place.home_usable {
        return GitCredentials::default();
    }
    if let Some(key) = key {
        let nodes = nodes(body);
        if let Err(error) = credentials::install_cluster(&place.home, key, &nodes, ssh.port(), place.owner) {
            core.log.warn(format_args!(
                "cannot set up SSH between the nodes: {}",
                chain(&error)
            ));
        }
    }
    let installed = body
        .repo_credentials
        .as_ref()
        .map(|git| credentials::install_git(&place.home, git, place.owner));
    match installed {
        Some(Err(error)) => {
            core.log.warn(format_args!(
                "cannot set up git credentials for the job: {}",
                chain(&error)
            ));
            GitCredentials::default()
        }
        Some(Ok(credentials)) => credentials,
        None => GitCredentials::default(),
    }
}

/// The nodes of the job's replica, named as the server names their jobs.
fn nodes(body: &SubmitBody) -> Vec<credentials::Node> {
    let (run, replica) = (&body.run.run_spec.run_name, body.job_spec.replica_num);
    let addresses = body.cluster_info.job_ips.iter().enumerate();
    addresses
        .map(|(number, address)| credentials::Node {
            address: address.clone(),
            name: format!("{run}-{number}-{replica}"),
        })
        .collect()
}

/// The fixed folder of the repo is at the root of the job's container. A job that runs right on a host has it among its own
/// files: it may have no right to make it at the root, and other jobs must not find it there.
fn of_job(settings: &Settings, path: &str) -> String {
    let inside = Path::new(path).strip_prefix(LEGACY_REPO_DIR);
    match inside {
        Ok(rest) if !settings.touch_system => settings
            .state_dir
            .join("workflow")
            .join(rest)
            .display()
            .to_string(),
        _ => path.to_owned(),
    }
}

fn prepare_repo(
    core: &Core,
    body: &SubmitBody,
    place: &Place,
    cancelled: Arc<AtomicBool>,
) -> Result<PathBuf, Ending> {
    let spec = &body.job_spec;
    let failed = |why: String| Ending::repo_error(format!("Failed to set up the repo ({why})"));
    let dir = spec
        .repo_dir
        .as_deref()
        .filter(|dir| !dir.is_empty())
        .unwrap_or(LEGACY_REPO_DIR);
    let dir = of_job(&core.settings, dir);
    let dir = place.resolve_path(&dir).map_err(|error| failed(chain(&error)))?;
    let blob = uploads::code_path(&core.settings.temp_dir);
    let job = RepoJob {
        dir: dir.clone(),
        data: repo_data(body),
        credentials: body.repo_credentials.clone(),
        known_hosts: vec![place.home.join(".ssh/known_hosts"), KNOWN_HOSTS.into()],
        single_branch: spec.single_branch,
        exists_action: match spec.repo_exists_action.as_deref() {
            Some("error") => ExistsAction::Error,
            _ => ExistsAction::Skip,
        },
        blob: blob.exists().then(|| blob.clone()),
        owner: place.owner,
        cancelled,
    };
    repo::prepare(&job).map_err(|error| failed(chain(&error)))?;
    log_failure(
        core,
        "remove the uploaded code",
        uploads::remove_code(&core.settings.temp_dir),
    );
    Ok(dir)
}

fn repo_data(body: &SubmitBody) -> RepoData {
    let data = body
        .job_spec
        .repo_data
        .clone()
        .or_else(|| body.run.run_spec.repo_data.clone());
    data.unwrap_or_else(|| RepoData {
        repo_type: "virtual".to_owned(),
        ..RepoData::default()
    })
}

fn prepare_files(core: &Core, body: &SubmitBody, place: &Place) -> Result<(), Ending> {
    let failed = |why: String| Ending::executor_error(format!("Failed to set up files ({why})"));
    let mut placements = Vec::new();
    for archive in &body.job_spec.file_archives {
        let uploaded = uploads::archive_path(&core.settings.temp_dir, &archive.id)
            .filter(|path| path.exists())
            .ok_or_else(|| failed(format!("archive {} was not uploaded", archive.id)))?;
        let destination = place
            .resolve_path(&archive.path)
            .map_err(|error| failed(chain(&error)))?;
        placements.push(FilePlacement {
            archive: uploaded,
            destination,
        });
    }
    if !placements.is_empty() {
        let job = FilesJob {
            placements,
            owner: place.owner,
        };
        repo::prepare_files(&job).map_err(|error| failed(chain(&error)))?;
    }
    log_failure(
        core,
        "remove the uploaded archives",
        uploads::remove_archives(&core.settings.temp_dir),
    );
    Ok(())
}

fn prepare_environment(
    core: &Core,
    body: &SubmitBody,
    place: &Place,
    repo_dir: &Path,
) -> Result<Env, Ending> {
    let state_dir = &core.settings.state_dir;
    let hostfile = state_dir.join("mpi/hostfile");
    let hosts = environment::hostfile(&body.cluster_info)
        .map_err(|error| Ending::executor_error(format!("Failed to write the MPI hostfile ({error})")))?;
    let paths = environment::Paths {
        home: &place.home,
        working_dir: &place.working_dir,
        repo_dir,
        hostfile: &hostfile,
    };
    let inherited = core.settings.inherited_env.iter().cloned();
    let env: BTreeMap<_, _> = environment::job_env(inherited, body, paths);
    let written = write_state(&hostfile, &hosts, PUBLIC, None);
    log_failure(core, "write the MPI hostfile", written);
    let profile = state_dir.join("profile");
    // Login shells of all users of the job's container read it. Without a container nobody but the job's user has to, and
    // the job's secrets are in it.
    let (mode, owner) = match core.settings.touch_system {
        true => (PUBLIC, None),
        false => (PRIVATE, place.owner),
    };
    let written = write_state(&profile, &environment::profile(&env), mode, owner);
    log_failure(core, "write the job's profile", written);
    if core.settings.touch_system {
        log_failure(
            core,
            "extend /etc/profile",
            source_profile(Path::new("/etc/profile"), &profile),
        );
    }
    let shared =
        environment::shared_with_logins(&env).map(|(name, value)| (name.to_owned(), value.to_owned()));
    core.session.send_replace(SessionDefaults {
        env: shared.collect(),
        working_dir: Some(place.working_dir.clone()),
    });
    Ok(env)
}

fn write_state(path: &Path, content: &str, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        paths::create_dirs(parent, None)?;
    }
    paths::write_file(path, content.as_bytes(), mode, owner, false)
}

/// Makes login shells read the profile: one line, added once.
fn source_profile(login: &Path, profile: &Path) -> io::Result<()> {
    let line = format!(". {}", profile.display());
    let text = match fs_err::read_to_string(login) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    if text.lines().any(|existing| existing == line) {
        return Ok(());
    }
    let separator = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    fs_err::write(login, format!("{text}{separator}{line}\n"))
}

fn log_failure(core: &Core, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        core.log.warn(format_args!("cannot {what}: {}", chain(&error)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_shells_source_the_profile_once() {
        let dir = tempfile::tempdir().unwrap();
        let login = dir.path().join("profile");
        for before in [None, Some("export A=1")] {
            if let Some(text) = before {
                fs_err::write(&login, text).unwrap();
            }
            source_profile(&login, Path::new("/dstack/profile")).unwrap();
            source_profile(&login, Path::new("/dstack/profile")).unwrap();
            let expected = before.map_or(String::new(), |text| format!("{text}\n"));
            assert_eq!(
                fs_err::read_to_string(&login).unwrap(),
                format!("{expected}. /dstack/profile\n")
            );
        }
    }
}
