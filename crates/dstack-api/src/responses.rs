//! Answers and queries that only this crate needs.

use dstack_model::Decode;
use dstack_model::decode::{Cx, Value};
use dstack_model::exports::{Export, Import, ListExportsResponse, ListImportsResponse};
use dstack_model::projects::{Project, ProjectsInfoList};
use dstack_model::schema::{Schema, Schemas, any_of};
use dstack_model::users::{User, UsersInfoList};
use serde::{Deserialize, Serialize};

/// Answer of `/healthcheck`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ServerStatus {
    /// Always `running`.
    pub status: String,
}

/// Answer of `users/list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UsersAnswer {
    /// The answer to requests with `return_total_count`.
    Counted(UsersInfoList),
    /// The answer to requests without `return_total_count`.
    Plain(Vec<User>),
}

/// Answer of `projects/list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProjectsAnswer {
    /// The answer to requests with `return_total_count`.
    Counted(ProjectsInfoList),
    /// The answer to requests without `return_total_count`.
    Plain(Vec<Project>),
}

/// Answer of `exports/list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExportsAnswer {
    /// To clients since 0.22.0, with warnings.
    Full(ListExportsResponse),
    /// To clients older than 0.22.0.
    Plain(Vec<Export>),
}

/// Answer of `imports/list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ImportsAnswer {
    /// To clients since 0.22.0, with warnings.
    Full(ListImportsResponse),
    /// To clients older than 0.22.0.
    Plain(Vec<Import>),
}

macro_rules! answered_in_two_forms {
    ($($answer:ty: $plain:ty, $full:ty;)*) => {
        $(impl Schema for $answer {
            fn schema(schemas: &mut Schemas) -> Value {
                any_of(vec![<$plain>::schema(schemas), <$full>::schema(schemas)])
            }
        })*
    };
}

answered_in_two_forms! {
    UsersAnswer: Vec<User>, UsersInfoList;
    ProjectsAnswer: Vec<Project>, ProjectsInfoList;
    ExportsAnswer: Vec<Export>, ListExportsResponse;
    ImportsAnswer: Vec<Import>, ListImportsResponse;
}

/// The configuration of a backend, with credentials: an object with `type`, which the server takes apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendConfigBody(pub Value);

impl BackendConfigBody {
    /// Name of its schema, which the server adds to the OpenAPI document.
    pub const SCHEMA: &'static str = "BackendConfig";
}

impl dstack_model::decode::Decode for BackendConfigBody {
    fn decode(value: &Value, _: &mut Cx) -> Option<Self> {
        Some(Self(value.clone()))
    }
}

impl Schema for BackendConfigBody {
    fn schema(schemas: &mut Schemas) -> Value {
        schemas.reference(Self::SCHEMA)
    }
}

/// Answer of `backends/{backend_name}/get_yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct BackendConfigYaml {
    /// The backend's type.
    pub name: String,
    /// Its configuration with credentials.
    pub config_yaml: String,
}

/// Query of `repos/upload_code`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UploadCodeQuery {
    /// The id of the repository.
    pub repo_id: String,
}
