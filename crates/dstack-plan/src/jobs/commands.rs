//! What runs in a job's container.

use dstack_model::configurations::AnyRunConfiguration;

use super::{Builder, Node, Target, ide};
use crate::{DUMMY_IMAGE, PlanError};

impl Builder<'_> {
    pub(super) fn commands(&self, node: &Node<'_>) -> Result<Vec<String>, PlanError> {
        let base = self.run.configuration.base();
        let own = self.own_commands(node);
        let argv = if let Some(entrypoint) = &base.entrypoint {
            let mut argv = shell_words::split(entrypoint)
                .map_err(|_| PlanError::new(format!("`entrypoint` has an unclosed quote: {entrypoint}")))?;
            argv.extend(own);
            argv
        } else if own.is_empty() {
            self.image_commands()
        } else {
            let mut lines = self.preparations();
            lines.extend(own);
            vec![self.shell(), "-i".to_owned(), "-c".to_owned(), join(&lines)]
        };
        if argv.is_empty() && self.cx.target == Target::Host && self.image().is_some() {
            return Err(PlanError::new(
                "Could not determine what command to run: jobs run without a container engine here, so the image's own \
                 command is not there. Please specify `commands`, or start the server where a container engine runs",
            ));
        }
        if argv.is_empty() {
            return Err(PlanError::new(
                "Could not determine what command to run. Please specify either `commands` or `entrypoint` in your run \
                 configuration",
            ));
        }
        Ok(argv)
    }

    /// What the configuration says, before anything is added.
    pub(super) fn own_commands(&self, node: &Node<'_>) -> Vec<String> {
        match &self.run.configuration {
            AnyRunConfiguration::Task(task) => node
                .group
                .map_or_else(|| task.commands.clone(), |group| group.commands.clone()),
            AnyRunConfiguration::Service(service) => match &self.group {
                Some(group) if !group.commands.is_empty() => group.commands.clone(),
                _ => service.commands.clone(),
            },
            AnyRunConfiguration::DevEnvironment(dev) => ide::commands(dev, self.run_name()),
        }
    }

    fn image_commands(&self) -> Vec<String> {
        if self.image_name() == DUMMY_IMAGE {
            return vec![":".to_owned()];
        }
        let Some(image) = self.image_config() else {
            return Vec::new();
        };
        image.entrypoint.iter().chain(&image.cmd).cloned().collect()
    }

    fn shell(&self) -> String {
        match &self.run.configuration.base().shell {
            Some(shell) if shell.starts_with('/') => shell.clone(),
            Some(shell) => format!("/bin/{shell}"),
            None if self.has_our_image() && self.cx.target == Target::Container => "/bin/bash".to_owned(),
            None => "/bin/sh".to_owned(),
        }
    }

    /// What the default images need before the user's commands: a Python environment of the user's own, or Docker.
    fn preparations(&self) -> Vec<String> {
        if self.cx.target == Target::Host {
            return Vec::new();
        }
        if self.docker() {
            return vec!["start-dockerd".to_owned()];
        }
        if self.image().is_some() {
            return Vec::new();
        }
        let of_group = self.group.as_ref().and_then(|group| group.python);
        let python = of_group
            .or(self.run.configuration.base().python)
            .map_or_else(|| self.cx.server.python.clone(), |version| version.to_string());
        let uv = "UV_PYTHON_INSTALL_DIR=/opt/uv/python";
        vec![
            "eval $(echo 'export DSTACK_VENV_DIR=/dstack/venv' | sudo tee -a /dstack/profile)".to_owned(),
            "sudo rm -rf $DSTACK_VENV_DIR".to_owned(),
            "sudo mkdir $DSTACK_VENV_DIR".to_owned(),
            "sudo chown $(id -u):$(id -g) $DSTACK_VENV_DIR".to_owned(),
            format!(
                "(if {uv} uv python find {python} > /dev/null 2>&1; then export {uv} UV_PYTHON_DOWNLOADS=never; fi; \
                 uv venv -q --prompt dstack -p {python} --seed $DSTACK_VENV_DIR)"
            ),
            "eval $(echo '. $DSTACK_VENV_DIR/bin/activate' | sudo tee -a /dstack/profile)".to_owned(),
        ]
    }
}

/// One shell line of many; a command in the background needs braces of its own.
fn join(lines: &[String]) -> String {
    let wrapped = lines.iter().map(|line| {
        let line = line.trim();
        if line.ends_with('&') {
            format!("{{ {line} }}")
        } else {
            line.to_owned()
        }
    });
    wrapped.collect::<Vec<_>>().join(" && ")
}
