//! `type: task`.

use dstack_units::PortMapping;
use dstack_units::name::is_group_name;
use serde::Serialize;
use serde_json::Value;

use super::DEFAULT_GROUP_NAME;
use super::base::BaseRunConfiguration;
use super::group_names::{Group, check_groups};
use crate::profiles::ProfileParams;
use crate::resources::ResourcesSpec;
use crate::{Decode, limits, tag};

tag!(
    /// The value of `type` for [`TaskConfiguration`].
    pub TaskTag = "task"
);

/// Nodes of a task that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct NodeGroup {
    /// The name of the node group. If not provided, defaults to '0', '1', etc. based on position.
    #[decode(check = check_name)]
    pub name: Option<String>,
    /// The number of nodes in this group.
    #[decode(default = 1, ge = 1)]
    pub nodes: i64,
    /// The resources requirements for nodes in this group. Does not inherit top-level `resources`.
    #[decode(default)]
    pub resources: ResourcesSpec,
    /// The shell commands to run for nodes in this group.
    #[decode(default)]
    pub commands: Vec<String>,
    /// Port numbers/mapping to expose for nodes in this group.
    #[decode(default)]
    pub ports: Vec<PortMapping>,
}

fn check_name(name: Option<String>) -> Result<Option<String>, String> {
    match &name {
        Some(text) if !is_group_name(text) => {
            Err("Node group name should match regex '^[a-z0-9][a-z0-9-]{0,39}$'".to_owned())
        }
        _ => Ok(name),
    }
}

/// The configuration of a task: commands that run on one node or several.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
#[decode(before = nodes_or_groups, after = check)]
pub struct TaskConfiguration {
    /// The number of nodes for homogeneous multi-node tasks.
    #[decode(ge = 1, limit = limits::optional_nodes)]
    pub nodes: Option<i64>,
    /// A list of node groups for heterogeneous multi-node tasks. Mutually exclusive with `nodes`.
    #[decode(check = check_groups, limit = limits::node_groups)]
    pub groups: Option<Vec<NodeGroup>>,
    /// Port numbers/mapping to expose.
    #[decode(default)]
    pub ports: Vec<PortMapping>,
    /// The shell commands to run.
    #[decode(default)]
    pub commands: Vec<String>,
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: TaskTag,
    /// What all run configurations have.
    #[serde(flatten)]
    #[decode(flatten)]
    pub base: BaseRunConfiguration,
    /// Where and how it may be placed.
    #[serde(flatten)]
    #[decode(flatten)]
    pub params: ProfileParams,
}

impl TaskConfiguration {
    /// The groups; one made of the top level when there are none.
    pub fn node_groups(&self) -> Vec<NodeGroup> {
        if let Some(groups) = &self.groups {
            return groups.clone();
        }
        vec![NodeGroup {
            name: Some(DEFAULT_GROUP_NAME.to_owned()),
            nodes: self.nodes.unwrap_or(1),
            resources: self.base.resources.clone(),
            commands: self.commands.clone(),
            ports: self.ports.clone(),
        }]
    }

    /// How many nodes there are in all.
    pub fn nodes_num(&self) -> i64 {
        match &self.groups {
            Some(groups) => limits::sum(groups.iter().map(|group| group.nodes)),
            None => self.nodes.unwrap_or(1),
        }
    }
}

fn nodes_or_groups(value: &Value) -> Result<Option<Value>, String> {
    let given = |key: &str| value.get(key).is_some_and(|found| !found.is_null());
    if given("nodes") && given("groups") {
        return Err("`nodes` and `groups` are mutually exclusive".to_owned());
    }
    Ok(None)
}

impl Group for NodeGroup {
    const KIND: &'static str = "node";
    fn name(&mut self) -> &mut Option<String> {
        &mut self.name
    }
}

fn check(task: TaskConfiguration) -> Result<TaskConfiguration, String> {
    let Some(groups) = &task.groups else {
        if task.commands.is_empty() && task.base.image.as_ref().is_none_or(String::is_empty) {
            return Err("Either `commands` or `image` must be set".to_owned());
        }
        return Ok(task);
    };
    let forbidden = |key: &str, instead: &str| {
        Err(format!(
            "Top-level `{key}` is not allowed when `groups` is set. Specify `{instead}` in each node group instead."
        ))
    };
    if !task.commands.is_empty() {
        return forbidden("commands", "commands");
    }
    if !task.ports.is_empty() {
        return forbidden("ports", "ports");
    }
    if task.base.entrypoint.is_some() {
        return forbidden("entrypoint", "commands");
    }
    if task.base.image.is_none()
        && let Some(group) = groups.iter().find(|group| group.commands.is_empty())
    {
        return Err(format!(
            "Node group '{}': either `commands` must be set in the group, or `image` at the task level.",
            group.name.as_deref().unwrap_or_default()
        ));
    }
    Ok(task)
}
