//! What the owner of a host allows there, whatever a job asks for.

use std::path::Path;

use dstack_model::configurations::MountPoint;
use dstack_model::runs::{JobSpec, RunSpec};
use serde::{Deserialize, Serialize};

use super::Unfit;

/// Rules of the server's own machine. They are kept with the address of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRules {
    /// Takes new jobs. Those that run there are followed to their end either way.
    pub offered: bool,
    /// Runs jobs in containers; otherwise as processes of its own.
    pub containers: bool,
    /// Paths of the host that no container gets, nor anything below or above them: the server's files, keys, the container
    /// engine's socket. Empty: containers get whatever they ask for, or there are no containers.
    pub protected_paths: Vec<String>,
    /// How jobs were run there when those who govern its project were told last who can run code there, if there was anybody
    /// to tell of; `None`: not yet since it is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
}

impl Default for HostRules {
    fn default() -> Self {
        Self {
            offered: true,
            containers: true,
            protected_paths: Vec::new(),
            told: None,
        }
    }
}

impl HostRules {
    /// Whether the rules let the job in.
    ///
    /// # Errors
    /// Nothing is let in, or the job could read or change what is protected.
    pub(super) fn check(&self, job: &JobSpec) -> Result<(), Unfit> {
        if !self.offered {
            return Err(Unfit::NotOffered);
        }
        if self.protected_paths.is_empty() {
            return Ok(());
        }
        if job.privileged {
            return Err(Unfit::Privileged);
        }
        for mount in job.volumes.iter().flatten() {
            let MountPoint::Instance(mount) = mount else {
                continue;
            };
            let protected = &self.protected_paths;
            if protected.iter().any(|path| overlap(path, &mount.instance_path)) {
                return Err(Unfit::Protected(mount.instance_path.clone()));
            }
        }
        Ok(())
    }
}

/// What of a job there is in a container only: its field of the configuration, and whether the job has it. A host without
/// containers is the last one for such a job.
fn of_containers(run: &RunSpec, job: &JobSpec) -> [(&'static str, bool); 5] {
    let base = run.configuration.base();
    [
        ("image", base.image.is_some()),
        ("docker", base.docker == Some(true)),
        ("user", base.user.is_some()),
        ("privileged", base.privileged),
        (
            "volumes",
            job.volumes.as_ref().is_some_and(|mounts| !mounts.is_empty()),
        ),
    ]
}

/// Whether the job names something that only a container has.
pub(super) fn names_container(run: &RunSpec, job: &JobSpec) -> bool {
    of_containers(run, job).iter().any(|(_, is_asked)| *is_asked)
}

/// What a host without containers makes of a job, in a sentence: it runs the commands, and ignores most of what is around them.
pub fn notice_of_processes(instance: &str, run: &RunSpec, job: &JobSpec) -> String {
    let base = run.configuration.base();
    // Without these, a job is much the same there.
    let comforts = [
        ("python", base.python.is_some()),
        ("nvcc", base.nvcc == Some(true)),
        ("registry_auth", base.registry_auth.is_some()),
        ("resources.shm_size", base.resources.shm_size.is_some()),
    ];
    let ignored: Vec<String> = of_containers(run, job)
        .into_iter()
        .chain(comforts)
        .filter(|(_, is_asked)| *is_asked)
        .map(|(field, _)| format!("`{field}`"))
        .collect();
    let start = format!(
        "{instance} has no container engine: the commands run directly on it, as the server's user, and see its files. Limits of CPU \
         and memory do not hold there"
    );
    match ignored.as_slice() {
        [] => format!("{start}."),
        ignored => format!("{start}, and it ignores {}.", ignored.join(", ")),
    }
}

/// Whether one of the paths is the other, or lies below it. Links are not looked at: the host's agent does that. Paths of the
/// configuration have no `..`.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (Path::new(one), Path::new(other));
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::placement::tests::run;

    fn verdict(rules: &HostRules, more: &Value) -> String {
        let mut task = json!({"type": "task", "commands": ["x"]});
        task.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (_, jobs) = run(task);
        match rules.check(&jobs[0]) {
            Ok(()) => "fits".to_owned(),
            Err(unfit) => unfit.to_string(),
        }
    }

    #[test]
    fn what_is_protected_is_mounted_neither_by_itself_nor_with_what_is_around_it() {
        let rules = HostRules {
            protected_paths: vec!["/home/ann/.dstack".to_owned(), "/run/docker.sock".to_owned()],
            ..HostRules::default()
        };
        for (path, allowed) in [
            ("/data", true),
            ("/home/ann/.dstack", false),
            ("/home/ann/.dstack/server/data", false),
            ("/home/ann/.dstack-cache", true),
            ("/home/ann/work", true),
            ("/home/ann", false),
            ("/run/./docker.sock", false),
            ("/run", false),
            ("/", false),
        ] {
            let found = verdict(&rules, &json!({"volumes": [format!("{path}:/mounted")]}));
            assert_eq!(found == "fits", allowed, "{path}: {found}");
        }
        assert_eq!(
            verdict(&rules, &json!({"volumes": ["/run:/r"]})),
            "does not mount /run: the server's files, keys or container engine are there, and this is its own machine"
        );
        assert_eq!(
            verdict(&rules, &json!({"privileged": true})),
            "runs nothing that is `privileged` (nor `docker: true`): it is the server's own machine"
        );
        assert_eq!(verdict(&rules, &json!({"volumes": ["data:/data"]})), "fits");
    }

    #[test]
    fn without_containers_there_is_nothing_to_protect_them_from() {
        let rules = HostRules::default();
        assert_eq!(
            verdict(&rules, &json!({"privileged": true, "volumes": ["/:/r"]})),
            "fits"
        );
    }

    #[test]
    fn processes_ignore_what_is_named() {
        let notice = |more: &Value| {
            let mut task = json!({"type": "task", "commands": ["x"]});
            task.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let (run, jobs) = run(task);
            notice_of_processes("local-0", &run, &jobs[0])
        };
        let plain = notice(&json!({}));
        assert!(
            plain.starts_with("local-0 has no container engine") && plain.ends_with("do not hold there."),
            "{plain}"
        );
        let more = json!({"image": "x", "user": "u", "privileged": true, "volumes": ["/a:/b"], "resources": {"shm_size": "1GB"}});
        let ignored = notice(&more);
        assert!(
            ignored.ends_with("it ignores `image`, `user`, `privileged`, `volumes`, `resources.shm_size`."),
            "{ignored}"
        );
    }

    #[test]
    fn a_machine_that_is_not_offered_says_how_it_would_be() {
        let rules = HostRules {
            offered: false,
            ..HostRules::default()
        };
        assert_eq!(
            verdict(&rules, &json!({})),
            "is the server's own machine, which the server was not told to offer (`dstack server --local`)"
        );
    }

    #[test]
    fn what_earlier_versions_wrote_is_offered() {
        let rules: HostRules = serde_json::from_value(json!({})).unwrap();
        assert_eq!(rules, HostRules::default());
        assert!(rules.offered);
    }
}
