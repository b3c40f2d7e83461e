//! Fleets, instances, volumes, gateways, backends.

use dstack_units::{FleetId, InstanceId, Time, VolumeId};
use serde::Serialize;
use serde_json::Value;

use crate::Decode;
use crate::backends::BackendName;
use crate::fleets::{ApplyFleetPlanInput, FleetSpec};
use crate::gateways::{ApplyGatewayPlanInput, GatewayConfiguration, GatewaySpec};
use crate::health::HealthCheck;
use crate::limits::MAX_PAGE;
use crate::volumes::AnyVolumeConfiguration;

/// Request of `/api/fleets/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListFleetsRequest {
    /// Only of this project.
    pub project_name: Option<String>,
    /// Without deleted ones.
    #[decode(default)]
    pub only_active: bool,
    /// Also imported ones.
    #[decode(default)]
    pub include_imported: bool,
    /// The last fleet's `created_at` of the page before.
    pub prev_created_at: Option<Time>,
    /// The last fleet's `id` of the page before.
    pub prev_id: Option<FleetId>,
    /// Limit number of fleets returned.
    #[decode(default = 100, ge = 0, le = 100)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

/// `fleets/list` and `gateways/list` of a project.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct ListImportedRequest {
    /// Also imported ones.
    #[decode(default)]
    pub include_imported: bool,
}

/// Request of `fleets/get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetFleetRequest {
    /// Name of the fleet; finds no deleted ones.
    pub name: Option<String>,
    /// By id, which wins.
    pub id: Option<FleetId>,
}

/// Request of `fleets/get_plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct GetFleetPlanRequest {
    /// What is to be applied.
    pub spec: FleetSpec,
}

/// Request of `fleets/apply`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ApplyFleetPlanRequest {
    /// What is applied, and what is there by the plan.
    pub plan: ApplyFleetPlanInput,
    /// Apply even if the expected resource does not match.
    pub force: bool,
}

/// Request of `fleets/delete_instances`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteFleetInstancesRequest {
    /// Name of the fleet.
    pub name: String,
    /// Numbers of the instances in the fleet.
    pub instance_nums: Vec<i64>,
}

/// Request of `fleets/trust_host`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct TrustHostRequest {
    /// Name of the fleet.
    pub name: String,
    /// Number of the host's instance in the fleet.
    pub instance_num: i64,
    /// Fingerprint of the host key that is accepted from now on, as `ssh-keygen -l` shows it: `SHA256:` and base64.
    pub host_key: String,
    /// It is the key of the jump host before it.
    #[decode(default = false)]
    pub jump_host: bool,
}

/// Request of `/api/instances/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListInstancesRequest {
    /// Only of these projects.
    pub project_names: Option<Vec<String>>,
    /// Only of these fleets.
    pub fleet_ids: Option<Vec<FleetId>>,
    /// Without terminated ones.
    #[decode(default)]
    pub only_active: bool,
    /// Also imported ones.
    #[decode(default)]
    pub include_imported: bool,
    /// The last instance's `created` of the page before.
    pub prev_created_at: Option<Time>,
    /// The last instance's `id` of the page before.
    pub prev_id: Option<InstanceId>,
    /// Limit number of instances returned.
    #[decode(default = 1000, ge = 0, le = MAX_PAGE)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

/// Request of `instances/get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetInstanceRequest {
    /// Id of the instance.
    pub id: InstanceId,
}

/// Request of `instances/get_instance_health_checks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GetInstanceHealthChecksRequest {
    /// Name of the fleet.
    pub fleet_name: String,
    /// Number of the instance in the fleet.
    pub instance_num: i64,
    /// Only later ones.
    pub after: Option<Time>,
    /// Only earlier ones.
    pub before: Option<Time>,
    /// Most checks to answer; unset: all.
    #[decode(ge = 0, le = MAX_PAGE)]
    pub limit: Option<i64>,
}

/// Answer of `instances/get_instance_health_checks`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct GetInstanceHealthChecksResponse {
    /// The checks, newest first.
    pub health_checks: Vec<HealthCheck>,
}

/// Request of `/api/volumes/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListVolumesRequest {
    /// Only of this project.
    pub project_name: Option<String>,
    /// Without deleted ones.
    #[decode(default)]
    pub only_active: bool,
    /// The last volume's `created_at` of the page before.
    pub prev_created_at: Option<Time>,
    /// The last volume's `id` of the page before.
    pub prev_id: Option<VolumeId>,
    /// Limit number of volumes returned.
    #[decode(default = 100, ge = 0, le = 100)]
    pub limit: i64,
    /// Lists the oldest first; `false`: the newest first.
    #[decode(default)]
    pub ascending: bool,
}

/// Request of `volumes/create`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct CreateVolumeRequest {
    /// What to make.
    pub configuration: AnyVolumeConfiguration,
}

/// Request of `gateways/create` (deprecated; see `gateways/apply`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CreateGatewayRequest {
    /// What to make.
    pub configuration: GatewayConfiguration,
}

/// Request of `gateways/get_plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(before = drop_null_router_of_spec)]
pub struct GetGatewayPlanRequest {
    /// What is to be applied.
    pub spec: GatewaySpec,
}

/// Request of `gateways/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(before = drop_null_router_of_plan)]
pub struct ApplyGatewayPlanRequest {
    /// What is applied, and what is there by the plan.
    pub plan: ApplyGatewayPlanInput,
    /// Apply even if the expected resource does not match.
    pub force: bool,
}

/// Clients 0.20.27 to 0.20.29 send `router: null`.
fn drop_null_router_of_spec(value: &Value) -> Result<Option<Value>, String> {
    Ok(drop_null_router(value, &["/spec/configuration"]))
}

fn drop_null_router_of_plan(value: &Value) -> Result<Option<Value>, String> {
    Ok(drop_null_router(
        value,
        &["/plan/spec/configuration", "/plan/current_resource/configuration"],
    ))
}

fn drop_null_router(value: &Value, pointers: &[&str]) -> Option<Value> {
    let router = |pointer: &&str| value.pointer(pointer).and_then(|found| found.get("router"));
    pointers
        .iter()
        .filter_map(router)
        .find(|router| router.is_null())?;
    let mut value = value.clone();
    for pointer in pointers {
        if let Some(Value::Object(map)) = value.pointer_mut(pointer)
            && map.get("router").is_some_and(Value::is_null)
        {
            map.shift_remove("router");
        }
    }
    Some(value)
}

/// Request of `gateways/set_default`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SetDefaultGatewayRequest {
    /// Name of the gateway.
    pub name: String,
    /// The project that it is imported from.
    pub gateway_project: Option<String>,
}

/// Request of `gateways/set_wildcard_domain` (deprecated; see `gateways/apply`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct SetWildcardDomainRequest {
    /// Name of the gateway.
    pub name: String,
    /// Domain under which the gateway's services get their names.
    pub wildcard_domain: String,
}

/// Request of `backends/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DeleteBackendsRequest {
    /// Types of the backends; those that are not configured are ignored.
    pub backends_names: Vec<BackendName>,
}

/// Request of `backends/create_yaml` and `backends/update_yaml`.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct BackendYamlRequest {
    /// The backend's configuration in YAML, with credentials.
    pub config_yaml: String,
}

impl std::fmt::Debug for BackendYamlRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackendYamlRequest(…)")
    }
}
