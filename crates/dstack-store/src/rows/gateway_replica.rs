//! Rows of replicas of gateways, and the changes of status that they allow.

use dstack_model::gateways::{
    GatewayReplicaConfiguration, GatewayReplicaProvisioningData, GatewayReplicaStatus,
};
use dstack_model::reach::Reach;
use dstack_plan::lifecycle::transitions::gateway_replica_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{GatewayId, GatewayReplicaId, InstanceId, ProjectId, Time};

use super::{GatewayRow, TransitionError, change_status, life};
use crate::Json;
use crate::entity::entity;

entity! {
    /// A replica of a gateway: one program that passes requests on.
    GatewayReplicaRow in "gateway_replicas" {
        /// Id.
        key id: GatewayReplicaId,
        /// Project of the gateway.
        pub project_id: ProjectId,
        /// The gateway.
        pub gateway_id: GatewayId,
        /// Name of the gateway, with the replica's number.
        pub name: String,
        /// Its number among the replicas of the gateway.
        pub replica_num: i64,
        /// When it was created.
        pub created_at: Time,
        /// Status.
        status: GatewayReplicaStatus,
        /// Why it ends or has ended, if not because nobody wants it any more.
        status_message: Option<String>,
        /// What was asked for.
        pub configuration: Json<GatewayReplicaConfiguration>,
        /// Where it is; unset until that is known.
        pub provisioning_data: Option<Json<GatewayReplicaProvisioningData>>,
        /// The host of an SSH fleet that it runs on; unset: it has a machine of its own.
        pub instance_id: Option<InstanceId>,
        /// The build of the agent that it runs.
        pub build: Option<String>,
        /// The way to its own machine, with the host key that was seen; unset until it was reached.
        pub reach: Option<Json<Reach>>,
        /// Whether it is gone.
        deleted: bool,
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

life!(GatewayReplicaRow, GatewayReplicaStatus);

impl GatewayReplicaRow {
    /// A new replica: on this host, or on a machine of its own.
    pub fn submitted(
        id: GatewayReplicaId,
        gateway: &GatewayRow,
        replica_num: i64,
        configuration: GatewayReplicaConfiguration,
        host: Option<InstanceId>,
        now: Time,
    ) -> Self {
        Self {
            id,
            project_id: gateway.project_id,
            gateway_id: gateway.id,
            name: format!("{}-{replica_num}", gateway.name),
            replica_num,
            created_at: now,
            status: GatewayReplicaStatus::Submitted,
            status_message: None,
            configuration: Json::new(configuration),
            provisioning_data: None,
            instance_id: host,
            build: None,
            reach: None,
            deleted: false,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// Why it ends or has ended, for users.
    pub fn status_message(&self) -> Option<&str> {
        self.status_message.as_deref()
    }

    /// It is made, or serves, or is about to.
    pub const fn is_active(&self) -> bool {
        !matches!(
            self.status,
            GatewayReplicaStatus::Terminating | GatewayReplicaStatus::Terminated
        )
    }

    /// Nothing of it is left.
    pub const fn is_over(&self) -> bool {
        matches!(self.status, GatewayReplicaStatus::Terminated)
    }

    fn go(&mut self, to: GatewayReplicaStatus, now: Time) -> Result<(), TransitionError> {
        let of = ("gateway replica", &self.id as &dyn std::fmt::Display);
        change_status(of, &mut self.status, to, gateway_replica_allowed)?;
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// It is being set up.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn provision(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayReplicaStatus::Provisioning, now)
    }

    /// It answers, and is there.
    ///
    /// # Errors
    /// As [`GatewayReplicaRow::provision`].
    pub fn run(&mut self, place: GatewayReplicaProvisioningData, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayReplicaStatus::Running, now)?;
        self.provisioning_data = Some(Json::new(place));
        Ok(())
    }

    /// It is to end; why, if somebody still wants it.
    ///
    /// # Errors
    /// As [`GatewayReplicaRow::provision`].
    pub fn terminate(&mut self, message: Option<String>, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayReplicaStatus::Terminating, now)?;
        if self.status_message.is_none() {
            self.status_message = message;
        }
        self.wake_at(now);
        Ok(())
    }

    /// Nothing of it is left.
    ///
    /// # Errors
    /// As [`GatewayReplicaRow::provision`].
    pub fn finish(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(GatewayReplicaStatus::Terminated, now)?;
        self.deleted = true;
        Ok(())
    }
}
