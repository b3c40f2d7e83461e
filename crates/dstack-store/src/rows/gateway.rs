//! Rows of gateways, and the changes of status that they allow.

use dstack_model::gateways::{GatewayConfiguration, GatewayLoadBalancer, GatewayStatus};
use dstack_plan::lifecycle::transitions::gateway_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{GatewayId, ProjectId, Time};

use super::{TransitionError, change_status, life};
use crate::Json;
use crate::entity::entity;

entity! {
    /// A gateway of a project. It leaves no row.
    GatewayRow in "gateways" {
        /// Id.
        key id: GatewayId,
        /// Project.
        pub project_id: ProjectId,
        /// Unique in the project.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// Status.
        status: GatewayStatus,
        /// Why it has failed.
        status_message: Option<String>,
        /// What was asked for.
        pub configuration: Json<GatewayConfiguration>,
        /// Domain of its services.
        pub wildcard_domain: Option<String>,
        /// Address of its load balancer.
        pub hostname: Option<String>,
        /// The load balancer before it, once it is made.
        pub load_balancer: Option<Json<GatewayLoadBalancer>>,
        /// Id of the backend that it is made in.
        pub backend_id: Option<String>,
        /// Whether its deletion was asked for.
        pub to_be_deleted: bool,
        /// When the row was changed last.
        pub last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<WaitReason>,
    }
}

life!(GatewayRow, GatewayStatus);

/// What a gateway begins with.
#[derive(Debug, Clone)]
pub struct NewGateway {
    /// Id.
    pub id: GatewayId,
    /// Project.
    pub project: ProjectId,
    /// Unique in the project.
    pub name: String,
    /// What is asked for, with that name.
    pub configuration: GatewayConfiguration,
    /// Id of the backend that it is to be made in; unset: it is to run on hosts of an SSH fleet.
    pub backend: Option<String>,
}

impl GatewayRow {
    /// A new gateway that its cloud has yet to make.
    pub fn submitted(new: NewGateway, now: Time) -> Self {
        Self {
            id: new.id,
            project_id: new.project,
            name: new.name,
            created_at: now,
            status: GatewayStatus::Submitted,
            status_message: None,
            wildcard_domain: new.configuration.domain.clone(),
            configuration: Json::new(new.configuration),
            hostname: None,
            load_balancer: None,
            backend_id: new.backend,
            to_be_deleted: false,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// Why it has failed, for users.
    pub fn status_message(&self) -> Option<&str> {
        self.status_message.as_deref()
    }

    /// Its replicas are being made.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn provision(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayStatus::Provisioning, now)
    }

    /// All of its replicas run.
    ///
    /// # Errors
    /// As [`GatewayRow::provision`].
    pub fn run(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayStatus::Running, now)
    }

    fn go(&mut self, to: GatewayStatus, now: Time) -> Result<(), TransitionError> {
        change_status(("gateway", &self.id), &mut self.status, to, gateway_allowed)?;
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// It cannot be made.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn fail(&mut self, message: String, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayStatus::Failed, now)?;
        self.status_message = Some(message);
        Ok(())
    }

    /// Its deletion is asked for.
    pub const fn mark_for_deletion(&mut self, now: Time) {
        self.to_be_deleted = true;
        self.last_processed_at = now;
        self.wake_at(now);
    }
}
