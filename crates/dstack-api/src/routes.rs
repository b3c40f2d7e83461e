//! The table of all routes.

use dstack_model::backends::BackendType;
use dstack_model::changes::{Changes, FollowChangesQuery};
use dstack_model::diagnosis::{Diagnosis, ListAccountRequest, ListAccountResponse};
use dstack_model::events::Event;
use dstack_model::exports::Export;
use dstack_model::files::FileArchive;
use dstack_model::fleets::{Fleet, FleetPlan};
use dstack_model::gateways::{Gateway, GatewayPlan};
use dstack_model::instances::Instance;
use dstack_model::logs::JobSubmissionLogs;
use dstack_model::metrics::{JobMetrics, ServiceMetrics};
use dstack_model::projects::Project;
use dstack_model::public_keys::PublicKeyInfo;
use dstack_model::repos::{RepoHead, RepoHeadWithCreds};
use dstack_model::requests::*;
use dstack_model::rollouts::RolloutState;
use dstack_model::runs::{Run, RunPlan};
use dstack_model::secrets::Secret;
use dstack_model::templates::UiTemplate;
use dstack_model::users::{NewUserToken, User, UserToken, UserWithCreds};
use dstack_model::volumes::Volume;

use crate::endpoint::{Nothing, routes};
use crate::responses::{
    BackendConfigBody, BackendConfigYaml, ExportsAnswer, ImportsAnswer, ProjectsAnswer, ServerStatus,
    UploadCodeQuery, UsersAnswer,
};

// Plans carry a configuration; what is applied also carries the run or fleet that the client has seen, with all its jobs or
// instances: some 8 KB for each of 2,000 jobs.
routes! {
    /// The server's version.
    ServerGetInfo = Post "/api/server/get_info", Anyone, reads, none Nothing => ServerInfo, reads, since "0.18.14";
    /// Whether the server runs.
    Healthcheck = Get "/healthcheck", Anyone, reads, none Nothing => ServerStatus, reads, since "0.12.3";

    /// Everything that is wrong with the installation. Not part of dstack 0.22.5's API.
    ServerGetDiagnosis = Post "/api/server/get_diagnosis", GlobalAdmin, reads, none Nothing => Diagnosis, reads;
    /// What accounts of a cloud have of this installation. Not part of dstack 0.22.5's API.
    ServerListAccount = Post "/api/server/list_account", GlobalAdmin, reads, json ListAccountRequest => ListAccountResponse, reads;

    /// What changes from now on, as server-sent events (`text/event-stream`): `hello` at first, `changes` with what is to be read
    /// again, `reset` where that is everything. Goes on after the id in `Last-Event-ID`. Not part of dstack 0.22.5's API.
    ChangesFollow = Get "/api/changes/follow", User, reads, query FollowChangesQuery => Changes, reads;

    /// Ways to log in besides tokens.
    AuthListProviders = Post "/api/auth/list_providers", Anyone, reads, none Nothing => Vec<OAuthProviderInfo>, reads, since "0.20.1";
    /// Where the browser goes after a login.
    AuthGetNextRedirect = Post "/api/auth/get_next_redirect", Anyone, reads, json OAuthGetNextRedirectRequest => OAuthGetNextRedirectResponse, reads, since "0.20.1";
    /// Begins a login with a provider: where the browser must go.
    AuthAuthorize = Post "/api/auth/{provider}/authorize", Anyone, changes, json OAuthAuthorizeRequest => OAuthAuthorizeResponse, silent ["nobody is logged in yet"];
    /// Finishes a login with a provider: the user for the code with which the browser came back.
    AuthCallback = Post "/api/auth/{provider}/callback", Anyone, changes, json OAuthCallbackRequest => UserWithCreds, writes ["User created", "User identity added", "User logged in"];

    /// Users; oneself for those who are no admins.
    UsersList = Post "/api/users/list", User, reads, optional ListUsersRequest => UsersAnswer, reads, since "0.12.0";
    /// Returns the caller, with their token and SSH key.
    UsersGetMyUser = Post "/api/users/get_my_user", User, reads, none Nothing => UserWithCreds, reads, since "0.12.0";
    /// A user with credentials.
    UsersGetUser = Post "/api/users/get_user", User, account, json UserNameRequest => UserWithCreds, reads, since "0.12.0";
    /// Creates a user.
    UsersCreate = Post "/api/users/create", GlobalAdmin, governs, json CreateUserRequest => User, writes ["User created"], since "0.12.0";
    /// Changes a user.
    UsersUpdate = Post "/api/users/update", GlobalAdmin, governs, json CreateUserRequest => User, writes ["User updated"], since "0.12.0";
    /// Replaces a token.
    UsersRefreshToken = Post "/api/users/refresh_token", User, account, json UserNameRequest => UserWithCreds, writes ["User token refreshed"], since "0.12.0";
    /// Replaces an SSH key pair.
    UsersRefreshSshKey = Post "/api/users/refresh_ssh_key", User, account, json UserNameRequest => UserWithCreds, writes ["User SSH key refreshed"], since "0.19.33";
    /// Deletes users by name.
    UsersDelete = Post "/api/users/delete", GlobalAdmin, governs, json DeleteUsersRequest => (), writes ["User deleted"], since "0.12.3";
    /// Further tokens of a user.
    TokensList = Post "/api/users/tokens/list", User, account, optional ListTokensRequest => Vec<UserToken>, reads;
    /// Makes an API token for the caller.
    TokensCreate = Post "/api/users/tokens/create", User, account, json CreateTokenRequest => NewUserToken, writes ["User token created"];
    /// Deletes API tokens of a user.
    TokensDelete = Post "/api/users/tokens/delete", User, account, json DeleteTokensRequest => (), writes ["User token deleted"];
    /// The caller's public keys.
    PublicKeysList = Post "/api/users/public_keys/list", User, reads, none Nothing => Vec<PublicKeyInfo>, reads, since "0.20.16";
    /// Adds a public key.
    PublicKeysAdd = Post "/api/users/public_keys/add", User, account, json AddPublicKeyRequest => PublicKeyInfo, writes ["Public key added"], since "0.20.16";
    /// Deletes public keys.
    PublicKeysDelete = Post "/api/users/public_keys/delete", User, account, json DeletePublicKeysRequest => (), writes ["Public key deleted"], since "0.20.16";

    /// Lists the projects that the caller may see.
    ProjectsList = Post "/api/projects/list", User, reads, optional ListProjectsRequest => ProjectsAnswer, reads, since "0.12.0";
    /// Projects of the caller that cannot run anything yet.
    ProjectsListOnlyNoFleets = Post "/api/projects/list_only_no_fleets", User, reads, none Nothing => Vec<Project>, reads, since "0.20.2";
    /// Creates a project.
    ProjectsCreate = Post "/api/projects/create", User, governs, json CreateProjectRequest => Project, writes ["Project created"], since "0.12.0";
    /// Deletes projects by name.
    ProjectsDelete = Post "/api/projects/delete", User, governs, json DeleteProjectsRequest => (), writes ["Project deleted"], since "0.12.0";
    /// A project with backends and members.
    ProjectsGet = Post "/api/projects/{project_name}/get", MemberOrPublic, reads, none Nothing => Project, reads, since "0.12.0";
    /// Replaces all members.
    ProjectsSetMembers = Post "/api/projects/{project_name}/set_members", Manager, changes, json ProjectMembersRequest => Project, writes ["Project members updated"], since "0.12.0";
    /// Adds members to a project.
    ProjectsAddMembers = Post "/api/projects/{project_name}/add_members", ManagerOrPublic, changes, json ProjectMembersRequest => Project, writes ["Project members updated"], since "0.19.16";
    /// Removes members from a project.
    ProjectsRemoveMembers = Post "/api/projects/{project_name}/remove_members", MemberSelf, changes, json RemoveProjectMembersRequest => Project, writes ["Project members updated"], since "0.19.16";
    /// Changes a project.
    ProjectsUpdate = Post "/api/projects/{project_name}/update", Admin, changes, json UpdateProjectRequest => Project, writes ["Project updated"], since "0.19.16";

    /// Types of backends that this build knows.
    BackendsListTypes = Post "/api/backends/list_types", Anyone, reads, none Nothing => Vec<BackendType>, reads, since "0.12.0";
    /// Configures a backend.
    BackendsCreate = Post "/api/project/{project_name}/backends/create", Admin, changes, json BackendConfigBody => BackendConfigBody, writes ["Backend created"], since "0.12.0", up to 2 MiB;
    /// Changes a backend's configuration.
    BackendsUpdate = Post "/api/project/{project_name}/backends/update", Admin, changes, json BackendConfigBody => BackendConfigBody, writes ["Backend updated"], since "0.12.0", up to 2 MiB;
    /// Removes backends by type.
    BackendsDelete = Post "/api/project/{project_name}/backends/delete", Admin, changes, json DeleteBackendsRequest => (), writes ["Backend deleted"], since "0.12.0";
    /// A backend's configuration.
    BackendsConfigInfo = Post "/api/project/{project_name}/backends/{backend_name}/config_info", Admin, reveals, none Nothing => BackendConfigBody, reads, since "0.12.0";
    /// Configures a backend from YAML.
    BackendsCreateYaml = Post "/api/project/{project_name}/backends/create_yaml", Admin, changes, json BackendYamlRequest => (), writes ["Backend created"], since "0.18.1", up to 2 MiB;
    /// Changes a backend's configuration from YAML.
    BackendsUpdateYaml = Post "/api/project/{project_name}/backends/update_yaml", Admin, changes, json BackendYamlRequest => (), writes ["Backend updated"], since "0.18.1", up to 2 MiB;
    /// A backend's configuration as YAML.
    BackendsGetYaml = Post "/api/project/{project_name}/backends/{backend_name}/get_yaml", Admin, reveals, none Nothing => BackendConfigYaml, reads, since "0.18.1";

    /// Fleets of all projects.
    FleetsList = Post "/api/fleets/list", User, reads, json ListFleetsRequest => Vec<Fleet>, reads, since "0.18.29";
    /// Fleets of a project.
    ProjectFleetsList = Post "/api/project/{project_name}/fleets/list", Member, reads, optional ListImportedRequest => Vec<Fleet>, reads, since "0.18.7";
    /// Returns a fleet by name or id.
    FleetsGet = Post "/api/project/{project_name}/fleets/get", Importer, reads, json GetFleetRequest => Fleet, reads, since "0.18.7";
    /// What applying a fleet would do.
    FleetsGetPlan = Post "/api/project/{project_name}/fleets/get_plan", Member, reads, json GetFleetPlanRequest => FleetPlan, reads, since "0.18.17", up to 2 MiB;
    /// Creates or changes a fleet.
    FleetsApply = Post "/api/project/{project_name}/fleets/apply", Member, changes, json ApplyFleetPlanRequest => Fleet, writes ["Fleet created", "Instance created on fleet submission", "Instance created on fleet update", "Instance status changed"], since "0.19.6", up to 16 MiB;
    /// Deletes fleets by name.
    FleetsDelete = Post "/api/project/{project_name}/fleets/delete", Member, changes, json NamesRequest => (), writes ["Fleet status changed", "Instance status changed"], since "0.18.7";
    /// Deletes some instances of a fleet.
    FleetsDeleteInstances = Post "/api/project/{project_name}/fleets/delete_instances", Member, changes, json DeleteFleetInstancesRequest => (), writes ["Instance status changed"], since "0.18.7";
    /// Accepts another host key of a host. Not part of dstack 0.22.5's API.
    FleetsTrustHost = Post "/api/project/{project_name}/fleets/trust_host", Member, changes, json TrustHostRequest => (), writes ["Host key accepted"];

    /// Instances of all projects.
    InstancesList = Post "/api/instances/list", User, reads, json ListInstancesRequest => Vec<Instance>, reads, since "0.18.36";
    /// Returns an instance by id.
    InstancesGet = Post "/api/project/{project_name}/instances/get", Importer, reads, json GetInstanceRequest => Instance, reads, since "0.20.8";
    /// Results of health checks.
    InstancesGetHealthChecks = Post "/api/project/{project_name}/instances/get_instance_health_checks", Member, reads, json GetInstanceHealthChecksRequest => GetInstanceHealthChecksResponse, reads, since "0.19.22";

    /// Repos of a project.
    ReposList = Post "/api/project/{project_name}/repos/list", Member, reads, none Nothing => Vec<RepoHead>, reads, since "0.12.0";
    /// A repo, with the caller's credentials.
    ReposGet = Post "/api/project/{project_name}/repos/get", Member, reveals, json GetRepoRequest => RepoHeadWithCreds, reads, since "0.12.0";
    /// Creates or changes a repo and the caller's credentials.
    ReposInit = Post "/api/project/{project_name}/repos/init", Member, changes, json SaveRepoCredsRequest => (), writes ["Repo initialized"], since "0.12.0";
    /// Deletes repos by id.
    ReposDelete = Post "/api/project/{project_name}/repos/delete", Member, changes, json DeleteReposRequest => (), writes ["Repo deleted"], since "0.12.0";
    /// Uploads a diff.
    ReposUploadCode = Post "/api/project/{project_name}/repos/upload_code", Member, changes, upload UploadCodeQuery => (), writes ["Repo code uploaded"], since "0.12.0";

    /// Runs of all projects.
    RunsList = Post "/api/runs/list", User, reads, json ListRunsRequest => Vec<Run>, reads, since "0.12.0";
    /// Returns a run by name or id.
    RunsGet = Post "/api/project/{project_name}/runs/get", Member, reads, json GetRunRequest => Run, reads, since "0.12.0";
    /// What applying a run would do, and offers for it.
    RunsGetPlan = Post "/api/project/{project_name}/runs/get_plan", Member, reads, json GetRunPlanRequest => RunPlan, reads, since "0.12.0", up to 2 MiB;
    /// Submits or changes a run.
    RunsApply = Post "/api/project/{project_name}/runs/apply", Member, changes, json ApplyRunPlanRequest => Run, writes ["Run submitted", "Service assigned to run without a gateway", "Job created on run submission", "Run updated", "Run deleted"], since "0.18.23", up to 16 MiB;
    /// Stops or aborts runs by name.
    RunsStop = Post "/api/project/{project_name}/runs/stop", Member, changes, json StopRunsRequest => (), writes ["Run status changed"], since "0.12.0";
    /// How far the roll-out of a service is. Not part of dstack 0.22.5's API.
    RunsGetRollout = Post "/api/project/{project_name}/runs/get_rollout", Member, reads, json NameRequest => RolloutState, reads;
    /// Goes on with the roll-out of a service, or back. Not part of dstack 0.22.5's API.
    RunsRollout = Post "/api/project/{project_name}/runs/rollout", Member, changes, json RolloutRequest => RolloutState, writes ["Roll-out promoted", "Roll-out aborted"];
    /// Deletes finished runs.
    RunsDelete = Post "/api/project/{project_name}/runs/delete", Member, changes, json DeleteRunsRequest => (), writes ["Run deleted"], since "0.12.0";

    /// GPUs that could be had, grouped.
    GpusList = Post "/api/project/{project_name}/gpus/list", Member, reads, json ListGpusRequest => ListGpusResponse, reads, since "0.19.25", up to 2 MiB;

    /// Resource use of a job.
    MetricsJob = Get "/api/project/{project_name}/metrics/job/{run_name}", Member, reads, query JobMetricsQuery => JobMetrics, reads, since "0.18.18";
    /// What was counted of the requests to a service. Not part of dstack 0.22.5's API.
    MetricsService = Get "/api/project/{project_name}/metrics/service/{run_name}", Member, reads, none Nothing => ServiceMetrics, reads;
    /// Output of a job.
    LogsPoll = Post "/api/project/{project_name}/logs/poll", Member, reads, json PollLogsRequest => JobSubmissionLogs, reads, since "0.12.0";

    /// Names of secrets.
    SecretsList = Post "/api/project/{project_name}/secrets/list", Manager, reads, none Nothing => Vec<Secret>, reads, since "0.12.0";
    /// A secret with its value.
    SecretsGet = Post "/api/project/{project_name}/secrets/get", Manager, reveals, json NameRequest => Secret, reads, since "0.12.0";
    /// Creates or changes a secret.
    SecretsCreateOrUpdate = Post "/api/project/{project_name}/secrets/create_or_update", Manager, changes, json CreateOrUpdateSecretRequest => Secret, writes ["Secret created", "Secret updated"], since "0.19.17";
    /// Deletes secrets by name.
    SecretsDelete = Post "/api/project/{project_name}/secrets/delete", Manager, changes, json DeleteSecretsRequest => (), writes ["Secret deleted"], since "0.12.0";

    /// Gateways of a project.
    GatewaysList = Post "/api/project/{project_name}/gateways/list", MemberOrPublic, reads, optional ListImportedRequest => Vec<Gateway>, reads, since "0.12.0";
    /// Returns a gateway by name.
    GatewaysGet = Post "/api/project/{project_name}/gateways/get", ImporterOrPublic, reads, json NameRequest => Gateway, reads, since "0.12.0";
    /// What applying a gateway would do.
    GatewaysGetPlan = Post "/api/project/{project_name}/gateways/get_plan", Admin, reads, json GetGatewayPlanRequest => GatewayPlan, reads, since "0.20.27";
    /// Creates or changes a gateway.
    GatewaysApply = Post "/api/project/{project_name}/gateways/apply", Admin, changes, json ApplyGatewayPlanRequest => Gateway, writes ["Gateway created", "Gateway updated", "Gateway set as project default", "Gateway unset as project default"], since "0.20.27";
    /// Creates a gateway (deprecated).
    GatewaysCreate = Post "/api/project/{project_name}/gateways/create", Admin, changes, json CreateGatewayRequest => Gateway, writes ["Gateway created", "Gateway set as project default", "Gateway unset as project default"], since "0.12.0";
    /// Deletes gateways by name.
    GatewaysDelete = Post "/api/project/{project_name}/gateways/delete", Admin, changes, json NamesRequest => (), writes ["Gateway marked for deletion"], since "0.12.0";
    /// Chooses the default gateway.
    GatewaysSetDefault = Post "/api/project/{project_name}/gateways/set_default", Admin, changes, json SetDefaultGatewayRequest => (), writes ["Gateway set as project default", "Gateway unset as project default"], since "0.12.0";
    /// Changes a gateway's domain (deprecated).
    GatewaysSetWildcardDomain = Post "/api/project/{project_name}/gateways/set_wildcard_domain", Admin, changes, json SetWildcardDomainRequest => Gateway, writes ["Gateway wildcard domain changed"], since "0.12.0";

    /// Volumes of all projects.
    VolumesList = Post "/api/volumes/list", User, reads, json ListVolumesRequest => Vec<Volume>, reads, since "0.18.9";
    /// Volumes of a project.
    ProjectVolumesList = Post "/api/project/{project_name}/volumes/list", Member, reads, none Nothing => Vec<Volume>, reads, since "0.18.5";
    /// Returns a volume by name.
    VolumesGet = Post "/api/project/{project_name}/volumes/get", Member, reads, json NameRequest => Volume, reads, since "0.18.5";
    /// Creates a volume.
    VolumesCreate = Post "/api/project/{project_name}/volumes/create", Member, changes, json CreateVolumeRequest => Volume, writes ["Volume created"], since "0.18.5";
    /// Deletes volumes by name.
    VolumesDelete = Post "/api/project/{project_name}/volumes/delete", Member, changes, json NamesRequest => (), writes ["Volume marked for deletion"], since "0.18.5";

    /// The caller's archive with this hash.
    FilesGetArchiveByHash = Post "/api/files/get_archive_by_hash", User, reads, json GetFileArchiveByHashRequest => FileArchive, reads, since "0.19.17";
    /// Uploads an archive.
    FilesUploadArchive = Post "/api/files/upload_archive", User, changes, upload Nothing => FileArchive, silent ["their one target would be the user, and lists of what happened to a user show what dstack 0.22.5 shows"], since "0.19.17";

    /// The audit trail.
    EventsList = Post "/api/events/list", User, reads, json ListEventsRequest => Vec<Event>, reads, since "0.20.0";

    /// Configurations to start from.
    TemplatesList = Post "/api/project/{project_name}/templates/list", Member, reads, none Nothing => Vec<UiTemplate>, reads, since "0.20.12";

    /// Shares fleets and gateways with other projects.
    ExportsCreate = Post "/api/project/{project_name}/exports/create", Admin, changes, json CreateExportRequest => Export, writes ["Export created"], since "0.20.13";
    /// Changes an export.
    ExportsUpdate = Post "/api/project/{project_name}/exports/update", Admin, changes, json UpdateExportRequest => Export, writes ["Export updated"], since "0.20.13";
    /// Deletes an export.
    ExportsDelete = Post "/api/project/{project_name}/exports/delete", Admin, changes, json NameRequest => (), writes ["Export deleted"], since "0.20.13";
    /// Exports of a project.
    ExportsList = Post "/api/project/{project_name}/exports/list", Member, reads, none Nothing => ExportsAnswer, reads, since "0.20.13";
    /// Imports of a project.
    ImportsList = Post "/api/project/{project_name}/imports/list", Member, reads, none Nothing => ImportsAnswer, reads, since "0.20.14";
    /// Deletes an import.
    ImportsDelete = Post "/api/project/{project_name}/imports/delete", Admin, changes, json DeleteImportRequest => (), writes ["Import deleted"], since "0.20.17";

    /// How the SSH proxy reaches a job.
    SshProxyGetUpstream = Post "/api/sshproxy/get_upstream", SshProxyToken, reads, json GetUpstreamRequest => GetUpstreamResponse, reads, since "0.20.14";
}
