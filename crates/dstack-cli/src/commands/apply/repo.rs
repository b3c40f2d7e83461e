//! Which repository a run takes along.

use std::path::{Path, PathBuf};

use dstack_api::routes::{ReposGet, ReposInit};
use dstack_model::configurations::RepoSpec;
use dstack_model::repos::{
    AnyRepoInfo, AnyRunRepoData, DEFAULT_VIRTUAL_REPO_ID, RemoteRepoCreds, RemoteRepoInfo, RemoteRunRepoData,
    VirtualRepoInfo,
};
use dstack_model::requests::{GetRepoRequest, SaveRepoCredsRequest};
use sha2::{Digest, Sha256};

use crate::args::GitArgs;
use crate::args::apply::RepoArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::repo::access::{self, Given};
use crate::repo::local;
use crate::repo::url::RepoUrl;
use crate::ssh::config;

/// A repository as the server knows it, and what has to be uploaded.
#[derive(Debug)]
pub(crate) struct Repo {
    pub(crate) id: String,
    pub(crate) data: AnyRunRepoData,
    /// Patch to upload, and its hash.
    pub(crate) diff: Option<(String, Vec<u8>)>,
}

/// Where a repository comes from.
#[derive(Debug)]
enum Source {
    Url(String),
    Folder(PathBuf),
}

/// A repository that was looked at on this machine.
#[derive(Debug)]
pub(crate) struct Remote {
    url: RepoUrl,
    data: RemoteRunRepoData,
    diff: Vec<u8>,
}

/// Chooses the repository and makes it known to the server.
pub(crate) async fn choose(
    context: &Context,
    project: &Project,
    args: &RepoArgs,
    specs: &[RepoSpec],
    configuration_path: &str,
) -> Result<Repo, CliError> {
    let Some(source) = source(context, args, specs, configuration_path)? else {
        return virtual_repo(project).await;
    };
    let spec = specs.first().filter(|_| args.repo.is_none());
    let mut remote = look(context, source).await?;
    if remote.data.repo_hash.is_none() {
        // A plain URL: the flags, then the file say what to check out.
        remote.data.repo_branch = args
            .repo_branch
            .clone()
            .or_else(|| spec.and_then(|spec| spec.branch.clone()));
        remote.data.repo_hash = args
            .repo_hash
            .clone()
            .or_else(|| spec.and_then(|spec| spec.hash.clone()));
    }
    let id = remote.url.repo_id();
    let stored = stored_creds(project, &id).await?;
    let new_credentials = args.credentials.token.is_some() || args.credentials.git_identity.is_some();
    let given = given(&args.credentials, stored.as_ref());
    let creds = access::find(&remote.url, &given, &context.home).await?;
    if stored.is_none() || new_credentials {
        init(project, &id, &remote, creds).await?;
    }
    let diff = (!remote.diff.is_empty()).then(|| (hex::encode(Sha256::digest(&remote.diff)), remote.diff));
    Ok(Repo {
        id,
        data: AnyRunRepoData::Remote(remote.data),
        diff,
    })
}

fn source(
    context: &Context,
    args: &RepoArgs,
    specs: &[RepoSpec],
    configuration_path: &str,
) -> Result<Option<Source>, CliError> {
    if args.no_repo {
        return Ok(None);
    }
    if let Some(repo) = &args.repo {
        return Ok(Some(parse(context, repo, &context.folder)));
    }
    let Some(spec) = specs.first() else {
        return Ok(None);
    };
    if let Some(url) = &spec.url {
        return Ok(Some(Source::Url(url.clone())));
    }
    let local = spec.local_path.as_deref().unwrap_or(".");
    let file = context.folder.join(configuration_path);
    let folder = context.resolve(local, file.parent().unwrap_or(&context.folder));
    let resolved = fs_err::canonicalize(&folder).map_err(|_| {
        CliError::new(
            ErrorKind::Repo,
            format!("Invalid repo path: {local} -> {}", folder.display()),
        )
    })?;
    Ok(Some(Source::Folder(resolved)))
}

fn parse(context: &Context, text: &str, base: &Path) -> Source {
    match RepoUrl::parse(text, |_| config::HostSettings::default()) {
        Ok(_) => Source::Url(text.to_owned()),
        Err(_) => Source::Folder(context.resolve(text, base)),
    }
}

/// A folder or URL given on the command line of `init`.
pub(crate) async fn look_at(context: &Context, text: Option<&str>) -> Result<Remote, CliError> {
    let source = text.map_or_else(
        || Source::Folder(context.folder.clone()),
        |text| parse(context, text, &context.folder),
    );
    look(context, source).await
}

async fn look(context: &Context, source: Source) -> Result<Remote, CliError> {
    let user_config = crate::fs::read_if_exists(&context.home.join(".ssh/config"))?.unwrap_or_default();
    let parse = |url: &str| {
        RepoUrl::parse(url, |host| config::lookup(&user_config, host, &context.home))
            .map_err(|error| CliError::from_error(ErrorKind::Repo, error))
    };
    match source {
        Source::Url(text) => {
            let url = parse(&text)?;
            Ok(Remote {
                data: data(&url),
                url,
                diff: Vec::new(),
            })
        }
        Source::Folder(folder) => {
            let tree = local::read(&folder, &context.ui).await?;
            let url = parse(&tree.url)?;
            let data = RemoteRunRepoData {
                repo_branch: Some(tree.branch),
                repo_hash: Some(tree.hash),
                repo_config_name: tree.user_name,
                repo_config_email: tree.user_email,
                ..data(&url)
            };
            Ok(Remote {
                data,
                url,
                diff: tree.diff,
            })
        }
    }
}

fn data(url: &RepoUrl) -> RemoteRunRepoData {
    RemoteRunRepoData {
        repo_type: Default::default(),
        repo_name: url.name().to_owned(),
        repo_branch: None,
        repo_hash: None,
        repo_config_name: None,
        repo_config_email: None,
    }
}

async fn stored_creds(project: &Project, id: &str) -> Result<Option<RemoteRepoCreds>, CliError> {
    let request = GetRepoRequest {
        repo_id: id.to_owned(),
        include_creds: true,
    };
    match project.client.call::<ReposGet>(&project.name, &request).await {
        Ok(head) => Ok(head.repo_creds),
        Err(error)
            if error.is_not_exists() || error.code() == Some(dstack_api::ErrorCode::RepoDoesNotExist) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Credentials of the command line; the stored ones when there are none.
fn given(args: &GitArgs, stored: Option<&RemoteRepoCreds>) -> Given {
    if args.token.is_some() || args.git_identity.is_some() {
        return Given {
            identity_file: args.git_identity.clone(),
            private_key: None,
            token: args.token.clone(),
        };
    }
    Given {
        identity_file: None,
        private_key: stored.and_then(|creds| creds.private_key.clone()),
        token: stored.and_then(|creds| creds.oauth_token.clone()),
    }
}

/// Finds credentials on this machine and stores the repository: `dstack init`.
pub(crate) async fn register(
    context: &Context,
    project: &Project,
    remote: &Remote,
    args: &GitArgs,
) -> Result<(), CliError> {
    let creds = access::find(&remote.url, &given(args, None), &context.home).await?;
    init(project, &remote.url.repo_id(), remote, creds).await
}

async fn init(project: &Project, id: &str, remote: &Remote, creds: RemoteRepoCreds) -> Result<(), CliError> {
    let info = RemoteRepoInfo {
        repo_type: Default::default(),
        repo_name: remote.data.repo_name.clone(),
    };
    let request = SaveRepoCredsRequest {
        repo_id: id.to_owned(),
        repo_info: AnyRepoInfo::Remote(info),
        repo_creds: Some(creds),
    };
    Ok(project.client.call::<ReposInit>(&project.name, &request).await?)
}

async fn virtual_repo(project: &Project) -> Result<Repo, CliError> {
    let request = SaveRepoCredsRequest {
        repo_id: DEFAULT_VIRTUAL_REPO_ID.to_owned(),
        repo_info: AnyRepoInfo::Virtual(VirtualRepoInfo::default()),
        repo_creds: None,
    };
    project.client.call::<ReposInit>(&project.name, &request).await?;
    Ok(Repo {
        id: DEFAULT_VIRTUAL_REPO_ID.to_owned(),
        data: AnyRunRepoData::Virtual(VirtualRepoInfo::default()),
        diff: None,
    })
}
