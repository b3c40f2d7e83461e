//! What runs the tasks of this host: a container engine, or the host itself.
//!
//! The two are never exchanged for one another behind anybody's back: a task that asks for an image must not find itself on the
//! host because the engine was slow to answer. `auto` decides once, by whether an engine is installed, and stays with that.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use dstack_system::env;

use crate::error::StartError;
use crate::runtime::docker::{DEFAULT_SOCKET, DOCKER};
use crate::runtime::process::PROCESS;
use crate::settings::{RuntimeChoice, Settings};
use crate::store::Store;
use dstack_system::file::write_atomically;

/// Holds the name of the runtime of the last start.
const FILE: &str = "runtime";
/// As many tasks are named in an error.
const NAMED: usize = 3;

/// Name of the runtime to start with, which is written down for the next start.
pub(super) fn choose(settings: &Settings, store: &Store) -> Result<&'static str, StartError> {
    let facts = Facts {
        alive: alive(store),
        remembered: remembered(&settings.home),
        engine_installed: engine_is_installed(settings),
    };
    let chosen = decide(settings.runtime, &facts).map_err(|conflict| StartError::OtherRuntime {
        runtime: conflict.other,
        tasks: conflict.tasks,
        home: settings.home.display().to_string(),
    })?;
    if facts.remembered != Some(chosen) {
        tracing::info!(runtime = chosen, "what runs the tasks of this host from now on");
        write_atomically(&settings.home.join(FILE), format!("{chosen}\n").as_bytes(), 0o600)
            .map_err(StartError::State)?;
    }
    Ok(chosen)
}

/// For people: what they may want to know of the choice.
pub(super) fn notice(settings: &Settings, chosen: &str) -> Option<String> {
    let missed =
        settings.runtime == RuntimeChoice::Auto && chosen == PROCESS && engine_is_installed(settings);
    missed.then(|| {
        "A container engine is installed now, but this machine began without one. Name the runtime \
         (DSTACK_LOCAL_RUNTIME=docker for the server, --runtime docker for the agent) to use it"
            .to_owned()
    })
}

/// What is known at the start.
#[derive(Debug, Clone, Default)]
struct Facts {
    /// Names of the tasks that may still run, by their runtime. Those whose runtime is not known are not here.
    alive: BTreeMap<&'static str, Vec<String>>,
    /// The runtime of the last start.
    remembered: Option<&'static str>,
    engine_installed: bool,
}

/// Tasks still run in another runtime than the wanted one.
#[derive(Debug, PartialEq, Eq)]
struct Conflict {
    other: &'static str,
    tasks: String,
}

fn decide(choice: RuntimeChoice, facts: &Facts) -> Result<&'static str, Conflict> {
    let wanted = match choice {
        RuntimeChoice::Docker => DOCKER,
        RuntimeChoice::Process => PROCESS,
        RuntimeChoice::Auto => facts
            .alive
            .keys()
            .copied()
            .next()
            .or(facts.remembered)
            .unwrap_or(if facts.engine_installed { DOCKER } else { PROCESS }),
    };
    match facts.alive.iter().find(|(runtime, _)| **runtime != wanted) {
        Some((other, tasks)) => Err(Conflict {
            other,
            tasks: named(tasks),
        }),
        None => Ok(wanted),
    }
}

fn named(tasks: &[String]) -> String {
    let shown = tasks.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match tasks.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

fn alive(store: &Store) -> BTreeMap<&'static str, Vec<String>> {
    let mut alive: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for (_, record) in store.scan() {
        if let Some(runtime) = known(&record.runtime).filter(|_| record.is_alive()) {
            alive.entry(runtime).or_default().push(record.config.name);
        }
    }
    alive
}

fn known(name: &str) -> Option<&'static str> {
    [DOCKER, PROCESS].into_iter().find(|known| *known == name)
}

fn remembered(home: &Path) -> Option<&'static str> {
    known(fs_err::read_to_string(home.join(FILE)).ok()?.trim())
}

/// Whether there is an engine on this host, or somebody has said where one is; not whether it answers.
fn engine_is_installed(settings: &Settings) -> bool {
    let socket = DEFAULT_SOCKET.trim_start_matches("unix://");
    settings.docker_host.is_some() || Path::new(socket).exists() || command_is_installed("docker")
}

fn command_is_installed(name: &str) -> bool {
    let executable = |path: &Path| {
        fs_err::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let path = env::var("PATH").unwrap_or_default();
    path.split(':').any(|dir| executable(&Path::new(dir).join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use RuntimeChoice::{Auto, Docker, Process};

    fn facts(
        alive: &[(&'static str, &str)],
        remembered: Option<&'static str>,
        engine_installed: bool,
    ) -> Facts {
        let mut facts = Facts {
            remembered,
            engine_installed,
            ..Facts::default()
        };
        for (runtime, task) in alive {
            facts.alive.entry(runtime).or_default().push((*task).to_owned());
        }
        facts
    }

    #[test]
    fn auto_decides_once_by_what_is_installed() {
        assert_eq!(decide(Auto, &facts(&[], None, true)), Ok(DOCKER));
        assert_eq!(decide(Auto, &facts(&[], None, false)), Ok(PROCESS));
        // Whatever is found later: neither fewer walls than before, nor another place for what runs.
        assert_eq!(decide(Auto, &facts(&[], Some(DOCKER), false)), Ok(DOCKER));
        assert_eq!(decide(Auto, &facts(&[], Some(PROCESS), true)), Ok(PROCESS));
        // Somebody may have deleted what was remembered.
        assert_eq!(decide(Auto, &facts(&[(DOCKER, "a")], None, false)), Ok(DOCKER));
        assert_eq!(decide(Auto, &facts(&[(PROCESS, "a")], None, true)), Ok(PROCESS));
    }

    #[test]
    fn a_named_runtime_is_used_unless_tasks_run_in_the_other() {
        assert_eq!(decide(Docker, &facts(&[], Some(PROCESS), false)), Ok(DOCKER));
        assert_eq!(
            decide(Process, &facts(&[(PROCESS, "a")], Some(DOCKER), true)),
            Ok(PROCESS)
        );
        let tasks = [(DOCKER, "a"), (DOCKER, "b"), (DOCKER, "c"), (DOCKER, "d")];
        let conflict = Conflict {
            other: DOCKER,
            tasks: "a, b, c and 1 more".to_owned(),
        };
        assert_eq!(decide(Process, &facts(&tasks, Some(DOCKER), true)), Err(conflict));
        assert!(decide(Docker, &facts(&[(PROCESS, "a")], None, true)).is_err());
        assert!(decide(Auto, &facts(&[(DOCKER, "a"), (PROCESS, "b")], None, true)).is_err());
    }

    #[test]
    fn only_tasks_that_may_still_run_count() {
        use crate::store::Record;
        use crate::task::Task;
        use dstack_agent_api::shim::TaskConfig;
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        for (id, runtime, over) in [("1", DOCKER, false), ("2", PROCESS, true), ("3", "", false)] {
            let mut task = Task::new(TaskConfig {
                id: id.into(),
                name: format!("run-{id}"),
                ..TaskConfig::default()
            });
            task.cleaned_up = over;
            store.create(&store.dir(id), &Record::of(&task, runtime)).unwrap();
        }
        assert_eq!(
            alive(&store),
            BTreeMap::from([(DOCKER, vec!["run-1".to_owned()])])
        );
    }
}
