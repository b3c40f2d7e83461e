//! Gateways and their replicas.

use dstack_model::gateways::{
    GatewayReplicaConfiguration, GatewayReplicaProvisioningData, GatewayReplicaStatus,
};
use dstack_units::{GatewayId, ProjectId, Time};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::select::{Select, fetch_as, fetch_one};
use super::{Reads, record};
use crate::encryption::RowKeys;
use crate::entity::select_with;
use crate::rows::GatewayRow;
use crate::{Entity, Json, Result, Tx};

crate::text_columns!(GatewayReplicaStatus);

record! {
    /// A replica of a gateway.
    ReplicaRow in "gateway_replicas" {
        /// Id.
        id: String,
        /// Gateway.
        gateway_id: GatewayId,
        /// Its number.
        replica_num: i64,
        /// When it was created.
        created_at: Time,
        /// State.
        status: GatewayReplicaStatus,
        /// Why it is in this state.
        status_message: Option<String>,
        /// What was asked for.
        configuration: Json<GatewayReplicaConfiguration>,
        /// What the cloud made of it.
        provisioning_data: Option<Json<GatewayReplicaProvisioningData>>,
        /// Whether it is gone.
        deleted: bool,
        /// When it was looked at last.
        last_processed_at: Time,
        /// Changes with every update.
        version: i64,
    }
}

/// A gateway with the name of its project.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedGateway {
    /// The gateway.
    pub row: GatewayRow,
    /// Name of its project.
    pub project_name: String,
}

fn select() -> String {
    select_with::<GatewayRow>("p.name", "JOIN projects p ON p.id = t.project_id")
}

fn read(row: &AnyRow, keys: &RowKeys) -> Result<ListedGateway> {
    Ok(ListedGateway {
        row: GatewayRow::read(row, keys)?,
        project_name: row.try_get(GatewayRow::COLUMNS.len())?,
    })
}

/// What makes a gateway one that the project `$1` imports.
const IMPORTED: &str = "EXISTS (SELECT 1 FROM imports i JOIN exported_gateways e ON e.export_id = i.export_id \
     WHERE i.project_id = $1 AND e.gateway_id = t.id)";

/// Gateways and their replicas: see [`crate::Database::gateways`].
#[derive(Debug, Clone, Copy)]
pub struct Gateways<'a>(pub(crate) Reads<'a>);

impl Gateways<'_> {
    /// Of a project, oldest first; with those it imports on request.
    pub async fn list(self, project: ProjectId, imported: bool) -> Result<Vec<ListedGateway>> {
        let or = if imported {
            format!(" OR {IMPORTED}")
        } else {
            String::new()
        };
        let sql = format!(
            "{} WHERE t.project_id = $1{or} ORDER BY t.created_at, t.id",
            select()
        );
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            read(row, self.0.keys())
        })
        .await
    }

    /// By name.
    pub async fn by_name(self, project: ProjectId, name: &str) -> Result<Option<ListedGateway>> {
        let sql = select() + " WHERE t.project_id = $1 AND t.name = $2";
        self.one(sql, &[&project.to_string(), name]).await
    }

    /// One of another project, if this project imports it.
    pub async fn imported_by_name(
        self,
        project: ProjectId,
        owner: &str,
        name: &str,
    ) -> Result<Option<ListedGateway>> {
        let sql = format!("{} WHERE {IMPORTED} AND t.name = $2 AND p.name = $3", select());
        self.one(sql, &[&project.to_string(), name, owner]).await
    }

    /// The project's default gateway, if it still has access to it.
    pub async fn default_of(self, project: ProjectId) -> Result<Option<ListedGateway>> {
        let sql = format!(
            "{} WHERE t.id = (SELECT d.default_gateway_id FROM projects d WHERE d.id = $1) AND t.to_be_deleted = 0 \
             AND (t.project_id = $1 OR {IMPORTED})",
            select()
        );
        self.one(sql, &[&project.to_string()]).await
    }

    async fn one(self, sql: String, parameters: &[&str]) -> Result<Option<ListedGateway>> {
        fetch_one(self.0, sql, parameters, |row| read(row, self.0.keys())).await
    }

    /// Id of the project's default gateway, whether or not it has access to it.
    pub async fn default_id(self, project: ProjectId) -> Result<Option<GatewayId>> {
        let sql = "SELECT p.default_gateway_id FROM projects p WHERE p.id = $1 AND p.default_gateway_id IS NOT NULL";
        fetch_one(self.0, sql.to_owned(), &[&project.to_string()], |row| {
            crate::entity::read_column(row, 0, "projects", "default_gateway_id")
        })
        .await
    }

    /// Replicas of gateways that are not gone, by gateway and number.
    pub async fn replicas(self, gateways: &[GatewayId]) -> Result<Vec<ReplicaRow>> {
        let mut query = Select::new(format!(
            "SELECT {} FROM gateway_replicas r",
            ReplicaRow::columns("r")
        ));
        let list = query.bind_list(gateways.iter().copied());
        query.filter(format_args!("r.gateway_id IN {list} AND r.deleted = 0"));
        query.push(" ORDER BY r.gateway_id, r.replica_num");
        let rows = query.fetch(self.0).await?;
        rows.iter().map(|row| ReplicaRow::read_at(row, 0)).collect()
    }
}

/// Leaves the projects of which it is the default without one.
pub(crate) async fn forget_default(tx: &mut Tx, id: GatewayId) -> Result<()> {
    sqlx::query("UPDATE projects SET default_gateway_id = NULL WHERE default_gateway_id = $1")
        .bind(id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}

/// Makes a gateway the project's default, or leaves the project without one.
pub async fn set_default(tx: &mut Tx, project: ProjectId, gateway: Option<GatewayId>) -> Result<()> {
    sqlx::query("UPDATE projects SET default_gateway_id = $1 WHERE id = $2")
        .bind(gateway.map(|id| id.to_string()))
        .bind(project.to_string())
        .execute(tx)
        .await?;
    Ok(())
}
