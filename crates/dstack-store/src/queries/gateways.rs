//! Gateways and their replicas.

use dstack_units::{GatewayId, InstanceId, ProjectId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::Reads;
use super::select::{Select, fetch_as, fetch_one};
use crate::encryption::RowKeys;
use crate::entity::select_with;
use crate::rows::{GatewayReplicaRow, GatewayRow};
use crate::{Entity, Result, Tx};

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

    /// By id.
    pub async fn by_id(self, id: GatewayId) -> Result<Option<GatewayRow>> {
        let found = self
            .one(select() + " WHERE t.id = $1", &[&id.to_string()])
            .await?;
        Ok(found.map(|found| found.row))
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
    pub async fn replicas(self, gateways: &[GatewayId]) -> Result<Vec<GatewayReplicaRow>> {
        if gateways.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = Select::new(select_with::<GatewayReplicaRow>("t.id", ""));
        let list = query.bind_list(gateways.iter().copied());
        query.filter(format_args!("t.gateway_id IN {list} AND t.deleted = 0"));
        query.push(" ORDER BY t.gateway_id, t.replica_num");
        let read = |row: &AnyRow| GatewayReplicaRow::read(row, self.0.keys());
        query.fetch_as(self.0, read).await
    }

    /// All replicas of gateways that serve.
    pub async fn running(self) -> Result<Vec<GatewayReplicaRow>> {
        let mut query = Select::new(select_with::<GatewayReplicaRow>("t.id", ""));
        query.filter("t.status = 'running'");
        let read = |row: &AnyRow| GatewayReplicaRow::read(row, self.0.keys());
        query.fetch_as(self.0, read).await
    }

    /// Which of these hosts have a replica of a gateway.
    pub async fn hosts_taken(self, hosts: &[InstanceId]) -> Result<Vec<InstanceId>> {
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = Select::new("SELECT t.instance_id FROM gateway_replicas t");
        let list = query.bind_list(hosts.iter().copied());
        query.filter(format_args!(
            "t.instance_id IN {list} AND t.status NOT IN ('terminated')"
        ));
        let read = |row: &AnyRow| crate::entity::read_column(row, 0, "gateway_replicas", "instance_id");
        query.fetch_as(self.0, read).await
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
