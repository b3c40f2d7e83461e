//! Images: which one a job gets, and whether its registry must be asked.

use std::collections::{BTreeMap, BTreeSet};

use dstack_model::configurations::{AnyRunConfiguration, ServiceConfiguration, TaskConfiguration};
use dstack_model::profiles::Profile;
use dstack_model::runs::RunSpec;

use super::{Builder, JobContext, Node, Target};
use crate::{DUMMY_IMAGE, ImageConfig, ServerDefaults};

impl Builder<'_> {
    pub(super) fn docker(&self) -> bool {
        let of_group = self.group.as_ref().and_then(|group| group.docker);
        of_group.or(self.run.configuration.base().docker).unwrap_or(false)
    }

    /// The image that was asked for, if any.
    pub(super) fn image(&self) -> Option<&str> {
        let of_group = self.group.as_ref().and_then(|group| group.image.as_deref());
        of_group.or(self.run.configuration.base().image.as_deref())
    }

    /// Whether the image is one of ours: the default one, or the one with Docker inside.
    pub(super) fn has_our_image(&self) -> bool {
        self.image().is_none()
    }

    pub(super) fn image_name(&self) -> String {
        if self.docker() {
            return self.cx.server.dind_image.clone();
        }
        let of_group = self.group.as_ref().and_then(|group| group.nvcc);
        let nvcc = of_group.or(self.run.configuration.base().nvcc).unwrap_or(false);
        self.image()
            .map_or_else(|| self.cx.server.default_image(nvcc), str::to_owned)
    }

    /// What the image says of itself, if it was asked.
    pub(super) fn image_config(&self) -> Option<&ImageConfig> {
        self.cx.images.get(&self.image_name())
    }

    /// Whether something is taken from the image: its user, its command, its architecture.
    fn needs_image(&self) -> bool {
        let base = self.run.configuration.base();
        let groups = self.run.configuration.task().map(TaskConfiguration::node_groups);
        let groups = groups.unwrap_or_default();
        let without_commands = || match &self.run.configuration {
            AnyRunConfiguration::Task(_) => groups.iter().any(|group| group.commands.is_empty()),
            _ => self.own_commands(&Node::default()).is_empty(),
        };
        let commands = || base.entrypoint.is_none() && without_commands();
        if self.docker() || self.image().is_none() {
            return commands();
        }
        let resources = self
            .group
            .as_ref()
            .map_or(&base.resources, |group| &group.resources);
        let architecture =
            || resources.cpu.arch.is_none() || groups.iter().any(|group| group.resources.cpu.arch.is_none());
        base.user.is_none() || architecture() || commands()
    }
}

/// The images whose configuration the jobs of a run are made with: those from which something is taken that the run
/// does not say itself.
pub fn images(run: &RunSpec, server: &ServerDefaults) -> BTreeSet<String> {
    let groups = run
        .configuration
        .service()
        .map(ServiceConfiguration::replica_groups);
    let groups = groups.map_or_else(|| vec![None], |groups| groups.into_iter().map(Some).collect());
    let cx = JobContext {
        server,
        images: &BTreeMap::new(),
        target: Target::Container,
    };
    let needed = groups.into_iter().filter_map(|group| {
        let builder = Builder {
            run,
            profile: Profile::default(),
            group,
            cx: &cx,
            nodes: 1,
        };
        builder.needs_image().then(|| builder.image_name())
    });
    needed.filter(|name| name != DUMMY_IMAGE).collect()
}
