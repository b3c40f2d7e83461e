//! What a task asks for and a plain process cannot give.

use dstack_agent_api::shim::TaskConfig;

/// Sentences for the job's log, the general one first.
pub fn notices(config: &TaskConfig) -> Vec<String> {
    let mut lines = vec![format!(
        "This machine has no container engine: commands run directly on it, and the image {} is not used.",
        config.image_name
    )];
    let mut ignored = Vec::new();
    if config.cpu > 0.0 {
        ignored.push("the CPU limit");
    }
    if config.memory > 0 {
        ignored.push("the memory limit");
    }
    if config.shm_size > 0 {
        ignored.push("shm_size");
    }
    if config.privileged {
        ignored.push("privileged");
    }
    if !config.volume_mounts.is_empty() || !config.instance_mounts.is_empty() {
        ignored.push("volumes");
    }
    if !ignored.is_empty() {
        lines.push(format!(
            "Ignored without a container engine: {}.",
            ignored.join(", ")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for() {
        let plain = TaskConfig {
            image_name: "ubuntu".into(),
            ..TaskConfig::default()
        };
        assert_eq!(notices(&plain).len(), 1);
        assert!(notices(&plain)[0].contains("ubuntu"));
        let more = TaskConfig {
            cpu: 1.0,
            memory: 1,
            ..plain
        };
        assert_eq!(
            notices(&more)[1],
            "Ignored without a container engine: the CPU limit, the memory limit."
        );
    }
}
