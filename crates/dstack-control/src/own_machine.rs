//! The server's own machine in a project: its rows, and who may run code there, said to those who govern the project.

mod fleet;

use std::collections::BTreeSet;

use dstack_store::queries::projects::ProjectRow;
use dstack_store::rows::AgentAddress;
use dstack_store::{EngineStore as _, SqlStore, events};
use dstack_units::{InstanceId, ProjectId};

use crate::access::Project;
use crate::core::Actor;
use crate::directory::{Directory, Work};
use crate::error::Result;
use crate::projects::Projects;

pub use fleet::{Registered, ThisMachine, Withdrawn, register, withdraw};

/// How jobs are run on the server's own machine, which is an instance of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnMachine {
    /// `docker` or `process`; of several machines, `process` if one of them has it.
    runtime: String,
    /// Ids of the machines of all servers that share the database.
    machines: BTreeSet<InstanceId>,
}

impl OwnMachine {
    /// The machine that the project has, if it takes jobs.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn of_project(directory: &Directory, project: ProjectId) -> Result<Option<Self>> {
        let placement = SqlStore::new(directory.database.clone())
            .placement(project)
            .await?;
        let is_local = |id| {
            let mut fleets = placement.fleets.iter();
            fleets.any(|fleet| fleet.local && Some(fleet.id) == id)
        };
        let addresses = placement.instances.iter().filter(|row| is_local(row.fleet_id));
        let offered = addresses.filter_map(|row| match row.agent.as_deref()? {
            AgentAddress::Local { rules, .. } if !rules.offered => None,
            AgentAddress::Local { runtime, .. } => Some((row.id, runtime.clone())),
            AgentAddress::Ssh { .. } => None,
        });
        let (machines, runtimes): (BTreeSet<InstanceId>, Vec<String>) = offered.unzip();
        // Of several machines, the one where members may do most.
        let bare = runtimes.iter().find(|runtime| *runtime == "process");
        let runtime = bare.or_else(|| runtimes.first()).cloned();
        Ok(runtime.map(|runtime| Self { runtime, machines }))
    }

    /// Whether a machine was added since then, the first one or that of another server, or one runs jobs in another way.
    pub fn is_news_since(&self, before: Option<&Self>) -> bool {
        before
            .is_none_or(|before| before.runtime != self.runtime || !self.machines.is_subset(&before.machines))
    }

    /// What it means that these people are members.
    fn warning(&self, project: &str, names: &[&str]) -> String {
        let means = match self.runtime.as_str() {
            "process" => {
                "as processes of the server's own user: they can read its database and keys, and act for everybody"
            }
            _ => "in containers that may mount most of its directories: they can take it over",
        };
        format!(
            "Members of project {project} can run code on the server's own machine, {means}. New there: {}. \
             `--no-local` at the server's start ends that",
            names.join(", ")
        )
    }

    /// Adds the event to the work, and writes the warning in the log.
    pub(crate) fn warn(&self, work: &mut Work, project: &ProjectRow, names: &[&str]) {
        let warning = self.warning(&project.name, names);
        tracing::warn!(project.name = project.name, "{warning}");
        work.event_for_managers(warning, vec![events::project(project)]);
    }
}

impl Projects {
    /// Says that the machine, which was just added to the project or runs jobs in another way now, is there for several people
    /// already.
    ///
    /// # Errors
    /// The event cannot be written.
    pub async fn own_machine_added(&self, machine: &OwnMachine, project: &ProjectRow) -> Result<()> {
        let found = Project::by_name(&self.0.database, &project.name).await?;
        let members = found.map(|found| found.members).unwrap_or_default();
        if members.len() < 2 {
            return Ok(());
        }
        let mut names: Vec<&str> = members.iter().map(|member| member.user.name.as_str()).collect();
        names.sort_unstable();
        let mut work = self.0.work(Actor::System);
        machine.warn(&mut work, project, &names);
        self.0.finish(work).await
    }

    /// The server's own machine, if it takes jobs of the project.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn own_machine(&self, project: ProjectId) -> Result<Option<OwnMachine>> {
        OwnMachine::of_project(&self.0, project).await
    }
}

#[cfg(test)]
mod tests {
    use dstack_system::Random;

    use super::*;

    #[test]
    fn each_machine_is_told_of_once() {
        let machines = |ids: &[u64]| OwnMachine {
            runtime: "docker".to_owned(),
            machines: ids.iter().map(|id| Random::seeded(*id).uuid().into()).collect(),
        };
        assert!(machines(&[1]).is_news_since(None));
        assert!(machines(&[1, 2]).is_news_since(Some(&machines(&[1]))));
        assert!(!machines(&[1]).is_news_since(Some(&machines(&[1]))));
        assert!(!machines(&[1]).is_news_since(Some(&machines(&[1, 2]))));
        let processes = OwnMachine {
            runtime: "process".to_owned(),
            ..machines(&[1])
        };
        assert!(processes.is_news_since(Some(&machines(&[1]))));
    }

    #[test]
    fn the_warning_says_who_and_what() {
        let warning = |runtime: &str| {
            let machine = OwnMachine {
                runtime: runtime.to_owned(),
                machines: BTreeSet::new(),
            };
            machine.warning("main", &["bob", "carol"])
        };
        let processes = warning("process");
        assert!(
            processes.contains("as processes of the server's own user"),
            "{processes}"
        );
        assert!(processes.contains("New there: bob, carol."), "{processes}");
        assert!(warning("docker").contains("in containers"));
    }
}
