//! Templates of the web UI.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Decode, tag};

tag!(
    /// The value of `type` for templates.
    pub TemplateTag = "template"
);

macro_rules! plain_parameters {
    ($($(#[$meta:meta])* $name:ident, $tag:ident = $text:literal;)*) => {
        $(
            tag!(
                /// The parameter type.
                pub $tag = $text
            );

            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
            pub struct $name {
                /// The parameter type.
                #[serde(rename = "type")]
                pub kind: $tag,
            }
        )*
    };
}

plain_parameters! {
    /// Asks for the run's name.
    NameParameter, NameTag = "name";
    /// Asks for the IDE.
    IdeParameter, IdeTag = "ide";
    /// Asks for resources.
    ResourcesParameter, ResourcesTag = "resources";
    /// Asks for the Python version, or Docker.
    PythonOrDockerParameter, PythonOrDockerTag = "python_or_docker";
    /// Asks for a repo.
    RepoParameter, RepoTag = "repo";
    /// Asks for the working directory.
    WorkingDirParameter, WorkingDirTag = "working_dir";
}

tag!(
    /// The parameter type.
    pub EnvTag = "env"
);

/// Asks for an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct EnvParameter {
    /// The parameter type.
    #[serde(rename = "type")]
    pub kind: EnvTag,
    /// The display title.
    pub title: Option<String>,
    /// The environment variable name.
    pub name: Option<String>,
    /// The default value.
    pub value: Option<String>,
}

/// What a template asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum UiTemplateParameter {
    /// The run's name.
    #[decode(rename = "name")]
    Name(NameParameter),
    /// The IDE of a dev environment.
    #[decode(rename = "ide")]
    Ide(IdeParameter),
    /// The resources of the run.
    #[decode(rename = "resources")]
    Resources(ResourcesParameter),
    /// A Python version, or Docker.
    #[decode(rename = "python_or_docker")]
    PythonOrDocker(PythonOrDockerParameter),
    /// The repo of the run.
    #[decode(rename = "repo")]
    Repo(RepoParameter),
    /// The working directory.
    #[decode(rename = "working_dir")]
    WorkingDir(WorkingDirParameter),
    /// An environment variable.
    #[decode(rename = "env")]
    Env(EnvParameter),
}

/// A configuration with blanks to fill in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UiTemplate {
    /// The template type.
    #[serde(rename = "type")]
    pub kind: TemplateTag,
    /// The unique template identifier.
    pub name: String,
    /// The human-readable template name.
    pub title: String,
    /// The template description.
    pub description: Option<String>,
    /// The template parameters.
    #[decode(default)]
    pub parameters: Vec<UiTemplateParameter>,
    /// The dstack run configuration.
    pub configuration: Map<String, Value>,
}
