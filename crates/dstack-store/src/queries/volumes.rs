//! Network volumes.

use dstack_units::{ProjectId, VolumeId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::select::{Select, fetch_as, fetch_one};
use super::{Page, Reads};
use crate::encryption::RowKeys;
use crate::entity::select_with;
use crate::rows::{AttachmentRow, FleetRow, InstanceRow, VolumeRow};
use crate::sql::by_column;
use crate::{Entity, Result, Tx};

/// A volume with the names around it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedVolume {
    /// The volume.
    pub row: VolumeRow,
    /// Name of its project.
    pub project_name: String,
    /// Name of its user.
    pub user_name: String,
}

/// An attachment with the instance that has the volume.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedAttachment {
    /// The attachment.
    pub row: AttachmentRow,
    /// The instance.
    pub instance: InstanceRow,
    /// Name of the instance's fleet.
    pub fleet_name: Option<String>,
}

fn select() -> String {
    select_with::<VolumeRow>(
        "p.name, u.name",
        "JOIN projects p ON p.id = t.project_id JOIN users u ON u.id = t.user_id",
    )
}

fn read(row: &AnyRow, keys: &RowKeys) -> Result<ListedVolume> {
    let width = VolumeRow::COLUMNS.len();
    Ok(ListedVolume {
        row: VolumeRow::read(row, keys)?,
        project_name: row.try_get(width)?,
        user_name: row.try_get(width + 1)?,
    })
}

/// Network volumes: see [`crate::Database::volumes`].
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'a>(pub(crate) Reads<'a>);

impl Volumes<'_> {
    /// Of these projects, paged by creation.
    pub async fn list(
        self,
        projects: &[ProjectId],
        only_active: bool,
        page: &Page,
    ) -> Result<Vec<ListedVolume>> {
        let mut query = Select::new(select());
        let list = query.bind_list(projects.iter().copied());
        query.filter(format_args!("t.project_id IN {list}"));
        if only_active {
            query.filter("t.deleted = 0");
        }
        query.page("t.created_at", "t.id", page);
        let rows = query.fetch(self.0).await?;
        rows.iter().map(|row| read(row, self.0.keys())).collect()
    }

    /// Of a project, oldest first; those that are not deleted.
    pub async fn of_project(self, project: ProjectId) -> Result<Vec<ListedVolume>> {
        let sql = select() + " WHERE t.project_id = $1 AND t.deleted = 0 ORDER BY t.created_at, t.id";
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            read(row, self.0.keys())
        })
        .await
    }

    /// The one of this name that is not deleted.
    pub async fn by_name(self, project: ProjectId, name: &str) -> Result<Option<ListedVolume>> {
        let sql = select() + " WHERE t.project_id = $1 AND t.name = $2 AND t.deleted = 0";
        fetch_one(self.0, sql, &[&project.to_string(), name], |row| {
            read(row, self.0.keys())
        })
        .await
    }

    /// The attachments of volumes, oldest first; those that have failed are none.
    pub async fn attachments(self, volumes: &[VolumeId]) -> Result<Vec<ListedAttachment>> {
        let ids: Vec<String> = volumes.iter().map(ToString::to_string).collect();
        let order = "ORDER BY t.created_at, t.id";
        let mut rows: Vec<AttachmentRow> = by_column(self.0, "volume_id", &ids, order).await?;
        rows.retain(AttachmentRow::takes_volume);
        let ids: Vec<String> = rows.iter().map(|row| row.instance_id.to_string()).collect();
        let instances: Vec<InstanceRow> = by_column(self.0, "id", &ids, "").await?;
        let fleets = instances
            .iter()
            .filter_map(|row| row.fleet_id)
            .map(|id| id.to_string());
        let fleets: Vec<String> = fleets.collect();
        let fleets: Vec<FleetRow> = by_column(self.0, "id", &fleets, "").await?;
        let listed = rows.into_iter().filter_map(|row| {
            let instance = instances.iter().find(|other| other.id == row.instance_id)?;
            let fleet = fleets.iter().find(|fleet| Some(fleet.id) == instance.fleet_id);
            Some(ListedAttachment {
                row,
                instance: instance.clone(),
                fleet_name: fleet.map(|fleet| fleet.name.clone()),
            })
        });
        Ok(listed.collect())
    }

    /// One of any project, deleted or not.
    pub async fn by_id(self, id: VolumeId) -> Result<Option<ListedVolume>> {
        let sql = select() + " WHERE t.id = $1";
        fetch_one(self.0, sql, &[&id.to_string()], |row| read(row, self.0.keys())).await
    }
}

/// As [`Volumes::of_project`], within a transaction.
pub(crate) async fn of_project_in(tx: &mut Tx, keys: &RowKeys, project: ProjectId) -> Result<Vec<VolumeRow>> {
    let sql = select() + " WHERE t.project_id = $1 AND t.deleted = 0";
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(project.to_string())
        .fetch_all(tx)
        .await?;
    rows.iter().map(|row| VolumeRow::read(row, keys)).collect()
}
