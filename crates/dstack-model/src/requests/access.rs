//! Server, authentication, users, projects, secrets, events, exports.

use dstack_units::{EventId, ProjectId, PublicKeyId, RunId, Time, UserId};
use serde::Serialize;
use uuid::Uuid;

use crate::Decode;
use crate::events::EventTargetType;
use crate::limits::MAX_PAGE;
use crate::users::{GlobalRole, ProjectRole};

/// Answer of `server/get_info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ServerInfo {
    /// Unset on development builds.
    pub server_version: Option<String>,
}

/// An item of `auth/list_providers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthProviderInfo {
    /// The OAuth2 provider name.
    pub name: String,
    /// Whether the provider is configured on the server.
    pub enabled: bool,
}

/// What the server puts into OAuth2's `state`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthState {
    /// A random string to protect against CSRF.
    pub value: String,
    /// If specified, the user is redirected to this port of localhost.
    #[decode(ge = 1, le = 65535)]
    pub local_port: Option<i64>,
}

/// Request of `auth/get_next_redirect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthGetNextRedirectRequest {
    /// The OAuth2 authorization code.
    pub code: String,
    /// The OAuth2 state.
    pub state: String,
}

/// Answer of `auth/get_next_redirect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthGetNextRedirectResponse {
    /// The URL that the user needs to be redirected to. If `null`, there is no next redirect.
    pub redirect_url: Option<String>,
}

/// `auth/{provider}/authorize` (not served by the open-source server).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct OAuthAuthorizeRequest {
    /// The user is redirected to this port of localhost.
    #[decode(ge = 1, le = 65535)]
    pub local_port: Option<i64>,
    /// The server base URL used to access the server.
    pub base_url: Option<String>,
}

/// Answer of `auth/{provider}/authorize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthAuthorizeResponse {
    /// An OAuth2 authorization URL.
    pub authorization_url: String,
}

/// `auth/{provider}/callback` (not served by the open-source server).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OAuthCallbackRequest {
    /// The OAuth2 authorization code.
    pub code: String,
    /// The OAuth2 state.
    pub state: String,
    /// The server base URL used to access the server.
    pub base_url: Option<String>,
}

/// Request of `users/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListUsersRequest {
    /// Return `total_count` with the total number of users.
    #[decode(default)]
    pub return_total_count: bool,
    /// Include only users with the name containing `name_pattern`.
    #[decode(pattern = "^[a-zA-Z0-9-_]*$")]
    pub name_pattern: Option<String>,
    /// The last user's `created_at` of the page before.
    pub prev_created_at: Option<Time>,
    /// The last user's `id` of the page before.
    pub prev_id: Option<UserId>,
    /// Limit number of users returned.
    #[decode(default = 2000, ge = 0, le = 2000)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

impl Default for ListUsersRequest {
    fn default() -> Self {
        Self {
            return_total_count: false,
            name_pattern: None,
            prev_created_at: None,
            prev_id: None,
            limit: 2000,
            ascending: false,
        }
    }
}

/// `users/get_user`, `users/refresh_token`, `users/refresh_ssh_key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UserNameRequest {
    /// Name of the user; other users than the caller need a global admin.
    pub username: String,
}

/// Request of `users/create` and `users/update`; an update sets all of it, also what is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateUserRequest {
    /// Name of the user: `^[a-zA-Z0-9-_]{1,60}$`, unique without regard to case.
    pub username: String,
    /// Role on the whole server.
    pub global_role: GlobalRole,
    /// E-mail address; members of projects can be named by it.
    pub email: Option<String>,
    /// Whether they may log in.
    #[decode(default = true)]
    pub active: bool,
}

/// Request of `users/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteUsersRequest {
    /// Names of the users; when one of them does not exist, none is deleted.
    pub users: Vec<String>,
}

/// `users/tokens/list` (not in dstack 0.22.5).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct ListTokensRequest {
    /// Whose; the caller's when unset.
    pub username: Option<String>,
}

/// `users/tokens/create` (not in dstack 0.22.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateTokenRequest {
    /// Its name, unique among the user's tokens.
    pub name: String,
    /// Whether it is good for reading only.
    #[decode(default)]
    pub read_only: bool,
    /// The only project that it is good for; unset: all of the user's.
    pub project_name: Option<String>,
    /// Seconds from now until it expires; unset: never.
    #[decode(ge = 1, le = 2000000000)]
    pub expires_in: Option<i64>,
}

/// `users/tokens/delete` (not in dstack 0.22.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteTokensRequest {
    /// Whose; the caller's when unset.
    pub username: Option<String>,
    /// Names of the tokens.
    pub names: Vec<String>,
}

/// Request of `users/public_keys/add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AddPublicKeyRequest {
    /// One line in OpenSSH's format.
    pub key: String,
    /// Its name; its comment when unset.
    pub name: Option<String>,
}

/// Request of `users/public_keys/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeletePublicKeysRequest {
    /// Ids of the keys; unknown ones are ignored.
    pub ids: Vec<PublicKeyId>,
}

/// Request of `projects/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListProjectsRequest {
    /// Include public projects where user is not a member.
    #[decode(default = true)]
    pub include_not_joined: bool,
    /// Include only projects owned by or joined by this user, with this user's membership.
    pub username: Option<String>,
    /// Return `total_count` with the total number of projects.
    #[decode(default)]
    pub return_total_count: bool,
    /// Include only projects with the name containing `name_pattern`.
    #[decode(pattern = "^[a-zA-Z0-9-_]*$")]
    pub name_pattern: Option<String>,
    /// The last project's `created_at` of the page before.
    pub prev_created_at: Option<Time>,
    /// The last project's `id` of the page before.
    pub prev_id: Option<ProjectId>,
    /// Limit number of projects returned.
    #[decode(default = 2000, ge = 0, le = 2000)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

impl Default for ListProjectsRequest {
    fn default() -> Self {
        Self {
            include_not_joined: true,
            username: None,
            return_total_count: false,
            name_pattern: None,
            prev_created_at: None,
            prev_id: None,
            limit: 2000,
            ascending: false,
        }
    }
}

/// Request of `projects/create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateProjectRequest {
    /// Name: `^[a-zA-Z0-9-_]{1,50}$`, unique without regard to case.
    pub project_name: String,
    /// Whether everybody may join.
    #[decode(default)]
    pub is_public: bool,
    /// Where its templates come from.
    pub templates_repo: Option<String>,
}

/// Request of `projects/{project_name}/update`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct UpdateProjectRequest {
    /// Whether everybody may join.
    pub is_public: Option<bool>,
    /// Where its templates come from.
    pub templates_repo: Option<String>,
    /// Removes the project's templates repo; wins over `templates_repo`.
    #[decode(default)]
    pub reset_templates_repo: bool,
}

/// Request of `projects/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteProjectsRequest {
    /// Names of the projects; when one of them does not exist, none is deleted.
    pub projects_names: Vec<String>,
}

/// A member to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct MemberSetting {
    /// The username or email of the user.
    pub username: String,
    /// Role in the project.
    pub project_role: ProjectRole,
}

/// Request of `projects/{project_name}/set_members` and `add_members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ProjectMembersRequest {
    /// The members with their roles; `set_members` removes all others.
    pub members: Vec<MemberSetting>,
}

/// Request of `projects/{project_name}/remove_members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RemoveProjectMembersRequest {
    /// Names or e-mail addresses of the members.
    pub usernames: Vec<String>,
}

/// Requests that only name something: gateways, secrets, exports, volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NameRequest {
    /// Name of what the request is about.
    pub name: String,
}

/// Requests that only list names: fleets, volumes and gateways to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NamesRequest {
    /// Names of what the request is about; unknown ones are ignored.
    pub names: Vec<String>,
}

impl NamesRequest {
    /// With one name.
    pub fn one(name: impl Into<String>) -> Self {
        Self {
            names: vec![name.into()],
        }
    }
}

/// Request of `secrets/create_or_update`.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateOrUpdateSecretRequest {
    /// Name: `^[A-Za-z0-9-_]{1,200}$`.
    pub name: String,
    /// Value, of at most 5,000 characters; may be empty.
    pub value: String,
}

impl std::fmt::Debug for CreateOrUpdateSecretRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateOrUpdateSecretRequest")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Request of `secrets/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteSecretsRequest {
    /// Names of the secrets; when one of them does not exist, none is deleted.
    pub secrets_names: Vec<String>,
}

/// `events/list`. At most one of `target_*` and at most one of `within_*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = check_filters)]
pub struct ListEventsRequest {
    /// Events that target these projects.
    #[decode(min_len = 1, max_len = 16)]
    pub target_projects: Option<Vec<Uuid>>,
    /// Events that target these users.
    #[decode(min_len = 1, max_len = 16)]
    pub target_users: Option<Vec<Uuid>>,
    /// Events that target these fleets.
    #[decode(min_len = 1, max_len = 16)]
    pub target_fleets: Option<Vec<Uuid>>,
    /// Events that target these instances.
    #[decode(min_len = 1, max_len = 16)]
    pub target_instances: Option<Vec<Uuid>>,
    /// Events that target these runs.
    #[decode(min_len = 1, max_len = 16)]
    pub target_runs: Option<Vec<Uuid>>,
    /// Events that target these jobs.
    #[decode(min_len = 1, max_len = 16)]
    pub target_jobs: Option<Vec<Uuid>>,
    /// Events that target these volumes.
    #[decode(min_len = 1, max_len = 16)]
    pub target_volumes: Option<Vec<Uuid>>,
    /// Events that target these gateways.
    #[decode(min_len = 1, max_len = 16)]
    pub target_gateways: Option<Vec<Uuid>>,
    /// Events that target these gateway replicas.
    #[decode(min_len = 1, max_len = 16)]
    pub target_gateway_replicas: Option<Vec<Uuid>>,
    /// Events that target these secrets.
    #[decode(min_len = 1, max_len = 16)]
    pub target_secrets: Option<Vec<Uuid>>,
    /// Events that target these presets.
    #[decode(min_len = 1, max_len = 16)]
    pub target_presets: Option<Vec<Uuid>>,
    /// Events that target these projects or anything in them.
    #[decode(min_len = 1, max_len = 16)]
    pub within_projects: Option<Vec<Uuid>>,
    /// Events that target these fleets or their instances.
    #[decode(min_len = 1, max_len = 16)]
    pub within_fleets: Option<Vec<Uuid>>,
    /// Events that target these runs or their jobs.
    #[decode(min_len = 1, max_len = 16)]
    pub within_runs: Option<Vec<Uuid>>,
    /// Events that target these gateways or their replicas.
    #[decode(min_len = 1, max_len = 16)]
    pub within_gateways: Option<Vec<Uuid>>,
    /// Events that have a target of one of these types.
    #[decode(min_len = 1, max_len = 16)]
    pub include_target_types: Option<Vec<EventTargetType>>,
    /// Events about actions of these users, or of the system for `null`.
    #[decode(min_len = 1, max_len = 16)]
    pub actors: Option<Vec<Option<UserId>>>,
    /// The last event's `recorded_at` of the page before.
    pub prev_recorded_at: Option<Time>,
    /// The last event's `id` of the page before.
    pub prev_id: Option<EventId>,
    /// Limit number of events returned.
    #[decode(default = 100, ge = 1, le = 100)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

fn check_filters(request: ListEventsRequest) -> Result<ListEventsRequest, String> {
    let one_of = |kind: &str, filters: &[(&str, &Option<Vec<Uuid>>)]| {
        let set: Vec<&str> = filters
            .iter()
            .filter(|(_, ids)| ids.is_some())
            .map(|(name, _)| *name)
            .collect();
        if set.len() > 1 {
            return Err(format!(
                "At most one {kind}_* filter can be set at a time. Got {}",
                set.join(", ")
            ));
        }
        Ok(())
    };
    one_of(
        "target",
        &[
            ("target_projects", &request.target_projects),
            ("target_users", &request.target_users),
            ("target_fleets", &request.target_fleets),
            ("target_instances", &request.target_instances),
            ("target_runs", &request.target_runs),
            ("target_jobs", &request.target_jobs),
            ("target_volumes", &request.target_volumes),
            ("target_gateways", &request.target_gateways),
            ("target_gateway_replicas", &request.target_gateway_replicas),
            ("target_secrets", &request.target_secrets),
            ("target_presets", &request.target_presets),
        ],
    )?;
    one_of(
        "within",
        &[
            ("within_projects", &request.within_projects),
            ("within_fleets", &request.within_fleets),
            ("within_runs", &request.within_runs),
            ("within_gateways", &request.within_gateways),
        ],
    )?;
    Ok(request)
}

/// Request of `exports/create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateExportRequest {
    /// Name, unique within the project: `^[a-z][a-z0-9-]{1,40}$`.
    pub name: String,
    /// With all projects.
    #[decode(default)]
    pub is_global: bool,
    /// With these projects.
    #[decode(default)]
    pub importer_projects: Vec<String>,
    /// Names of the fleets that are exported.
    #[decode(default)]
    pub exported_fleets: Vec<String>,
    /// Names of the gateways that are exported.
    #[decode(default)]
    pub exported_gateways: Vec<String>,
}

/// Request of `exports/update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UpdateExportRequest {
    /// Name of the export that is changed.
    pub name: String,
    /// With all projects.
    #[decode(default)]
    pub set_global: bool,
    /// No longer with all projects.
    #[decode(default)]
    pub unset_global: bool,
    /// Also with these projects.
    #[decode(default)]
    pub add_importer_projects: Vec<String>,
    /// No longer with these projects.
    #[decode(default)]
    pub remove_importer_projects: Vec<String>,
    /// Also these fleets.
    #[decode(default)]
    pub add_exported_fleets: Vec<String>,
    /// No longer these fleets.
    #[decode(default)]
    pub remove_exported_fleets: Vec<String>,
    /// Also these gateways.
    #[decode(default)]
    pub add_exported_gateways: Vec<String>,
    /// No longer these gateways.
    #[decode(default)]
    pub remove_exported_gateways: Vec<String>,
}

/// Request of `imports/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteImportRequest {
    /// The export's name.
    pub export_name: String,
    /// The export's project.
    pub export_project_name: String,
}

/// Request of `sshproxy/get_upstream`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetUpstreamRequest {
    /// A job's id; other forms may come.
    pub id: String,
}

/// A host on the way to a job.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UpstreamHost {
    /// The hostname or IP address.
    pub host: String,
    /// The SSH port.
    pub port: i64,
    /// The user to log in.
    pub user: String,
    /// The private key in OpenSSH file format.
    pub private_key: String,
}

impl std::fmt::Debug for UpstreamHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamHost")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Answer of `sshproxy/get_upstream`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetUpstreamResponse {
    /// The chain of SSH hosts, the jump host(s) first, the target host last.
    pub hosts: Vec<UpstreamHost>,
    /// The list of authorized public keys in OpenSSH file format.
    pub authorized_keys: Vec<String>,
}

/// The query of `GET metrics/job/{run_name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct JobMetricsQuery {
    /// The run's id, if its name is not enough.
    pub run_id: Option<RunId>,
    /// Number of the replica, from 0.
    #[decode(default)]
    pub replica_num: i64,
    /// Number of the job in its replica, from 0.
    #[decode(default)]
    pub job_num: i64,
    /// How many points.
    #[decode(default = 1, ge = 0, le = MAX_PAGE)]
    pub limit: i64,
    /// Only later ones.
    pub after: Option<Time>,
    /// Only earlier ones.
    pub before: Option<Time>,
}
