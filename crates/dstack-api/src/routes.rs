//! The table of all routes.

use dstack_model::backends::BackendType;
use dstack_model::events::Event;
use dstack_model::exports::Export;
use dstack_model::files::FileArchive;
use dstack_model::fleets::{Fleet, FleetPlan};
use dstack_model::gateways::{Gateway, GatewayPlan};
use dstack_model::instances::Instance;
use dstack_model::logs::JobSubmissionLogs;
use dstack_model::metrics::JobMetrics;
use dstack_model::projects::Project;
use dstack_model::public_keys::PublicKeyInfo;
use dstack_model::repos::{RepoHead, RepoHeadWithCreds};
use dstack_model::requests::*;
use dstack_model::runs::{Run, RunPlan};
use dstack_model::secrets::Secret;
use dstack_model::templates::UiTemplate;
use dstack_model::users::{NewUserToken, User, UserToken, UserWithCreds};
use dstack_model::volumes::Volume;
use serde_json::Value;

use crate::endpoint::{Nothing, routes};
use crate::responses::{
    BackendConfigYaml, ExportsAnswer, ImportsAnswer, ProjectsAnswer, ServerStatus, UploadCodeQuery,
    UsersAnswer,
};

routes! {
    /// The server's version.
    ServerGetInfo = Post "/api/server/get_info", Anyone, reads, none Nothing => ServerInfo;
    /// Whether the server runs.
    Healthcheck = Get "/healthcheck", Anyone, reads, none Nothing => ServerStatus;

    /// Ways to log in besides tokens.
    AuthListProviders = Post "/api/auth/list_providers", Anyone, reads, none Nothing => Vec<OAuthProviderInfo>;
    /// Where the browser goes after a login.
    AuthGetNextRedirect = Post "/api/auth/get_next_redirect", Anyone, reads, json OAuthGetNextRedirectRequest => OAuthGetNextRedirectResponse;

    /// Users; oneself for those who are no admins.
    UsersList = Post "/api/users/list", User, reads, optional ListUsersRequest => UsersAnswer;
    /// The caller.
    UsersGetMyUser = Post "/api/users/get_my_user", User, reads, none Nothing => UserWithCreds;
    /// A user with credentials.
    UsersGetUser = Post "/api/users/get_user", User, account, json UserNameRequest => UserWithCreds;
    /// Creates a user.
    UsersCreate = Post "/api/users/create", GlobalAdmin, governs, json CreateUserRequest => User;
    /// Changes a user.
    UsersUpdate = Post "/api/users/update", GlobalAdmin, governs, json CreateUserRequest => User;
    /// Replaces a token.
    UsersRefreshToken = Post "/api/users/refresh_token", User, account, json UserNameRequest => UserWithCreds;
    /// Replaces an SSH key pair.
    UsersRefreshSshKey = Post "/api/users/refresh_ssh_key", User, account, json UserNameRequest => UserWithCreds;
    /// Deletes users.
    UsersDelete = Post "/api/users/delete", GlobalAdmin, governs, json DeleteUsersRequest => ();
    /// Further tokens of a user.
    TokensList = Post "/api/users/tokens/list", User, account, optional ListTokensRequest => Vec<UserToken>;
    /// Makes a further token for the caller.
    TokensCreate = Post "/api/users/tokens/create", User, account, json CreateTokenRequest => NewUserToken;
    /// Deletes further tokens of a user.
    TokensDelete = Post "/api/users/tokens/delete", User, account, json DeleteTokensRequest => ();
    /// The caller's public keys.
    PublicKeysList = Post "/api/users/public_keys/list", User, reads, none Nothing => Vec<PublicKeyInfo>;
    /// Adds a public key.
    PublicKeysAdd = Post "/api/users/public_keys/add", User, account, json AddPublicKeyRequest => PublicKeyInfo;
    /// Deletes public keys.
    PublicKeysDelete = Post "/api/users/public_keys/delete", User, account, json DeletePublicKeysRequest => ();

    /// Projects.
    ProjectsList = Post "/api/projects/list", User, reads, optional ListProjectsRequest => ProjectsAnswer;
    /// Projects of the caller that cannot run anything yet.
    ProjectsListOnlyNoFleets = Post "/api/projects/list_only_no_fleets", User, reads, none Nothing => Vec<Project>;
    /// Creates a project.
    ProjectsCreate = Post "/api/projects/create", User, governs, json CreateProjectRequest => Project;
    /// Deletes projects.
    ProjectsDelete = Post "/api/projects/delete", User, governs, json DeleteProjectsRequest => ();
    /// A project with backends and members.
    ProjectsGet = Post "/api/projects/{project_name}/get", MemberOrPublic, reads, none Nothing => Project;
    /// Replaces all members.
    ProjectsSetMembers = Post "/api/projects/{project_name}/set_members", Manager, changes, json ProjectMembersRequest => Project;
    /// Adds members.
    ProjectsAddMembers = Post "/api/projects/{project_name}/add_members", ManagerOrPublic, changes, json ProjectMembersRequest => Project;
    /// Removes members.
    ProjectsRemoveMembers = Post "/api/projects/{project_name}/remove_members", MemberSelf, changes, json RemoveProjectMembersRequest => Project;
    /// Changes a project.
    ProjectsUpdate = Post "/api/projects/{project_name}/update", Admin, changes, json UpdateProjectRequest => Project;

    /// Types of backends that this build knows.
    BackendsListTypes = Post "/api/backends/list_types", Anyone, reads, none Nothing => Vec<BackendType>;
    /// Configures a backend.
    BackendsCreate = Post "/api/project/{project_name}/backends/create", Admin, changes, json Value => Value;
    /// Changes a backend's configuration.
    BackendsUpdate = Post "/api/project/{project_name}/backends/update", Admin, changes, json Value => Value;
    /// Removes backends.
    BackendsDelete = Post "/api/project/{project_name}/backends/delete", Admin, changes, json DeleteBackendsRequest => ();
    /// A backend's configuration.
    BackendsConfigInfo = Post "/api/project/{project_name}/backends/{backend_name}/config_info", Admin, reveals, none Nothing => Value;
    /// Configures a backend from YAML.
    BackendsCreateYaml = Post "/api/project/{project_name}/backends/create_yaml", Admin, changes, json BackendYamlRequest => ();
    /// Changes a backend's configuration from YAML.
    BackendsUpdateYaml = Post "/api/project/{project_name}/backends/update_yaml", Admin, changes, json BackendYamlRequest => ();
    /// A backend's configuration as YAML.
    BackendsGetYaml = Post "/api/project/{project_name}/backends/{backend_name}/get_yaml", Admin, reveals, none Nothing => BackendConfigYaml;

    /// Fleets of all projects.
    FleetsList = Post "/api/fleets/list", User, reads, json ListFleetsRequest => Vec<Fleet>;
    /// Fleets of a project.
    ProjectFleetsList = Post "/api/project/{project_name}/fleets/list", Member, reads, optional ListImportedRequest => Vec<Fleet>;
    /// A fleet.
    FleetsGet = Post "/api/project/{project_name}/fleets/get", Importer, reads, json GetFleetRequest => Fleet;
    /// What applying a fleet would do.
    FleetsGetPlan = Post "/api/project/{project_name}/fleets/get_plan", Member, reads, json GetFleetPlanRequest => FleetPlan;
    /// Creates or changes a fleet.
    FleetsApply = Post "/api/project/{project_name}/fleets/apply", Member, changes, json ApplyFleetPlanRequest => Fleet;
    /// Deletes fleets.
    FleetsDelete = Post "/api/project/{project_name}/fleets/delete", Member, changes, json NamesRequest => ();
    /// Deletes some instances of a fleet.
    FleetsDeleteInstances = Post "/api/project/{project_name}/fleets/delete_instances", Member, changes, json DeleteFleetInstancesRequest => ();

    /// Instances of all projects.
    InstancesList = Post "/api/instances/list", User, reads, json ListInstancesRequest => Vec<Instance>;
    /// An instance.
    InstancesGet = Post "/api/project/{project_name}/instances/get", Importer, reads, json GetInstanceRequest => Instance;
    /// Results of health checks.
    InstancesGetHealthChecks = Post "/api/project/{project_name}/instances/get_instance_health_checks", Member, reads, json GetInstanceHealthChecksRequest => GetInstanceHealthChecksResponse;

    /// Repos of a project.
    ReposList = Post "/api/project/{project_name}/repos/list", Member, reads, none Nothing => Vec<RepoHead>;
    /// A repo, with the caller's credentials.
    ReposGet = Post "/api/project/{project_name}/repos/get", Member, reveals, json GetRepoRequest => RepoHeadWithCreds;
    /// Creates or changes a repo and the caller's credentials.
    ReposInit = Post "/api/project/{project_name}/repos/init", Member, changes, json SaveRepoCredsRequest => ();
    /// Deletes repos.
    ReposDelete = Post "/api/project/{project_name}/repos/delete", Member, changes, json DeleteReposRequest => ();
    /// Uploads a diff.
    ReposUploadCode = Post "/api/project/{project_name}/repos/upload_code", Member, changes, upload UploadCodeQuery => ();

    /// Runs of all projects.
    RunsList = Post "/api/runs/list", User, reads, json ListRunsRequest => Vec<Run>;
    /// A run.
    RunsGet = Post "/api/project/{project_name}/runs/get", Member, reads, json GetRunRequest => Run;
    /// What applying a run would do, and offers for it.
    RunsGetPlan = Post "/api/project/{project_name}/runs/get_plan", Member, reads, json GetRunPlanRequest => RunPlan;
    /// Submits or changes a run.
    RunsApply = Post "/api/project/{project_name}/runs/apply", Member, changes, json ApplyRunPlanRequest => Run;
    /// Stops runs.
    RunsStop = Post "/api/project/{project_name}/runs/stop", Member, changes, json StopRunsRequest => ();
    /// Deletes finished runs.
    RunsDelete = Post "/api/project/{project_name}/runs/delete", Member, changes, json DeleteRunsRequest => ();

    /// GPUs that could be had, grouped.
    GpusList = Post "/api/project/{project_name}/gpus/list", Member, reads, json ListGpusRequest => ListGpusResponse;

    /// Resource use of a job.
    MetricsJob = Get "/api/project/{project_name}/metrics/job/{run_name}", Member, reads, query JobMetricsQuery => JobMetrics;
    /// Output of a job.
    LogsPoll = Post "/api/project/{project_name}/logs/poll", Member, reads, json PollLogsRequest => JobSubmissionLogs;

    /// Names of secrets.
    SecretsList = Post "/api/project/{project_name}/secrets/list", Manager, reads, none Nothing => Vec<Secret>;
    /// A secret with its value.
    SecretsGet = Post "/api/project/{project_name}/secrets/get", Manager, reveals, json NameRequest => Secret;
    /// Creates or changes a secret.
    SecretsCreateOrUpdate = Post "/api/project/{project_name}/secrets/create_or_update", Manager, changes, json CreateOrUpdateSecretRequest => Secret;
    /// Deletes secrets.
    SecretsDelete = Post "/api/project/{project_name}/secrets/delete", Manager, changes, json DeleteSecretsRequest => ();

    /// Gateways of a project.
    GatewaysList = Post "/api/project/{project_name}/gateways/list", MemberOrPublic, reads, optional ListImportedRequest => Vec<Gateway>;
    /// A gateway.
    GatewaysGet = Post "/api/project/{project_name}/gateways/get", ImporterOrPublic, reads, json NameRequest => Gateway;
    /// What applying a gateway would do.
    GatewaysGetPlan = Post "/api/project/{project_name}/gateways/get_plan", Admin, reads, json GetGatewayPlanRequest => GatewayPlan;
    /// Creates or changes a gateway.
    GatewaysApply = Post "/api/project/{project_name}/gateways/apply", Admin, changes, json ApplyGatewayPlanRequest => Gateway;
    /// Creates a gateway (deprecated).
    GatewaysCreate = Post "/api/project/{project_name}/gateways/create", Admin, changes, json CreateGatewayRequest => Gateway;
    /// Deletes gateways.
    GatewaysDelete = Post "/api/project/{project_name}/gateways/delete", Admin, changes, json NamesRequest => ();
    /// Chooses the default gateway.
    GatewaysSetDefault = Post "/api/project/{project_name}/gateways/set_default", Admin, changes, json SetDefaultGatewayRequest => ();
    /// Changes a gateway's domain (deprecated).
    GatewaysSetWildcardDomain = Post "/api/project/{project_name}/gateways/set_wildcard_domain", Admin, changes, json SetWildcardDomainRequest => Gateway;

    /// Volumes of all projects.
    VolumesList = Post "/api/volumes/list", User, reads, json ListVolumesRequest => Vec<Volume>;
    /// Volumes of a project.
    ProjectVolumesList = Post "/api/project/{project_name}/volumes/list", Member, reads, none Nothing => Vec<Volume>;
    /// A volume.
    VolumesGet = Post "/api/project/{project_name}/volumes/get", Member, reads, json NameRequest => Volume;
    /// Creates a volume.
    VolumesCreate = Post "/api/project/{project_name}/volumes/create", Member, changes, json CreateVolumeRequest => Volume;
    /// Deletes volumes.
    VolumesDelete = Post "/api/project/{project_name}/volumes/delete", Member, changes, json NamesRequest => ();

    /// The caller's archive with this hash.
    FilesGetArchiveByHash = Post "/api/files/get_archive_by_hash", User, reads, json GetFileArchiveByHashRequest => FileArchive;
    /// Uploads an archive.
    FilesUploadArchive = Post "/api/files/upload_archive", User, changes, upload Nothing => FileArchive;

    /// The audit trail.
    EventsList = Post "/api/events/list", User, reads, json ListEventsRequest => Vec<Event>;

    /// Configurations to start from.
    TemplatesList = Post "/api/project/{project_name}/templates/list", Member, reads, none Nothing => Vec<UiTemplate>;

    /// Shares fleets and gateways with other projects.
    ExportsCreate = Post "/api/project/{project_name}/exports/create", Admin, changes, json CreateExportRequest => Export;
    /// Changes an export.
    ExportsUpdate = Post "/api/project/{project_name}/exports/update", Admin, changes, json UpdateExportRequest => Export;
    /// Deletes an export.
    ExportsDelete = Post "/api/project/{project_name}/exports/delete", Admin, changes, json NameRequest => ();
    /// Exports of a project.
    ExportsList = Post "/api/project/{project_name}/exports/list", Member, reads, none Nothing => ExportsAnswer;
    /// Imports of a project.
    ImportsList = Post "/api/project/{project_name}/imports/list", Member, reads, none Nothing => ImportsAnswer;
    /// Deletes an import.
    ImportsDelete = Post "/api/project/{project_name}/imports/delete", Admin, changes, json DeleteImportRequest => ();

    /// How the SSH proxy reaches a job.
    SshProxyGetUpstream = Post "/api/sshproxy/get_upstream", SshProxyToken, reads, json GetUpstreamRequest => GetUpstreamResponse;
}
