//! The server's own machine in a project: who may run code there, said to those who govern the project.

use dstack_store::queries::projects::ProjectRow;
use dstack_store::rows::{AgentAddress, InstanceRow};
use dstack_store::{
    Changes, EngineStore as _, EventMaker, Json, NewEvent, PlacementSnapshot, SqlStore, events,
};
use dstack_units::ProjectId;

use crate::access::Project;
use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};
use crate::projects::Projects;

/// How often it is tried again to say something of a machine whose row the engine changes meanwhile.
const ATTEMPTS: usize = 10;

/// How jobs are run on the server's own machine, which is an instance of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnMachine {
    /// `docker` or `process`; of several machines, `process` if one of them has it.
    runtime: String,
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
        Ok(Self::of_rows(&offered(&placement)))
    }

    /// Of several machines, the one where members may do most.
    fn of_rows(machines: &[(&InstanceRow, &AgentAddress)]) -> Option<Self> {
        let mut runtimes = machines.iter().map(|(_, address)| runtime_of(address));
        let bare = runtimes.clone().find(|runtime| *runtime == "process");
        let runtime = bare.or_else(|| runtimes.next())?.to_owned();
        Some(Self { runtime })
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

/// The machines of all servers that share the database, as far as they take jobs.
fn offered(placement: &PlacementSnapshot) -> Vec<(&InstanceRow, &AgentAddress)> {
    let is_local = |id| {
        let mut fleets = placement.fleets.iter();
        fleets.any(|fleet| fleet.local && Some(fleet.id) == id)
    };
    let local = placement.instances.iter().filter(|row| is_local(row.fleet_id));
    let addresses = local.filter_map(|row| Some((row, row.agent.as_deref()?)));
    addresses.filter(|(_, address)| address.rules().offered).collect()
}

fn runtime_of(address: &AgentAddress) -> &str {
    let AgentAddress::Local { runtime, .. } = address;
    runtime
}

/// Nobody was told of the machine as it is.
fn is_news(address: &AgentAddress) -> bool {
    address.rules().told.as_deref() != Some(runtime_of(address))
}

impl Projects {
    /// Tells those who govern the project of machines that nobody was told of as they are, if it has several members. What was
    /// told is remembered with it: a server that is killed before tells at its next start.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn tell_of_own_machines(&self, project: &ProjectRow) -> Result<()> {
        let mut result = self.try_tell_of_own_machines(project).await;
        for _ in 1..ATTEMPTS {
            match &result {
                Err(ControlError::Store(error)) if error.is_conflict() => {
                    result = self.try_tell_of_own_machines(project).await;
                }
                _ => break,
            }
        }
        result
    }

    async fn try_tell_of_own_machines(&self, project: &ProjectRow) -> Result<()> {
        let store = SqlStore::new(self.0.database.clone());
        let placement = store.placement(project.id).await?;
        let mut news = offered(&placement);
        news.retain(|(_, address)| is_news(address));
        let Some(machine) = OwnMachine::of_rows(&news) else {
            return Ok(());
        };
        let found = Project::by_name(&self.0.database, &project.name).await?;
        let members = found.map(|found| found.members).unwrap_or_default();
        let maker = EventMaker::system(self.0.now(), self.0.random.clone());
        let mut changes = Changes::new(maker.clone());
        for (row, address) in news {
            let mut after = row.clone();
            after.agent = Some(Json::new(address.clone().told_of()));
            changes.update(row, after);
        }
        let mut warning = None;
        if members.len() > 1 {
            let mut names: Vec<&str> = members.iter().map(|member| member.user.name.as_str()).collect();
            names.sort_unstable();
            let text = machine.warning(&project.name, &names);
            if self.0.keep_events {
                changes.event(NewEvent {
                    for_managers: true,
                    ..maker.event(text.clone(), vec![events::project(project)])
                });
            }
            warning = Some(text);
        }
        store.commit(changes.into_commit()).await?;
        if let Some(warning) = warning {
            tracing::warn!(project.name = project.name, "{warning}");
        }
        Ok(())
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
    use super::*;

    #[test]
    fn the_warning_says_who_and_what() {
        let warning = |runtime: &str| {
            let machine = OwnMachine {
                runtime: runtime.to_owned(),
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
