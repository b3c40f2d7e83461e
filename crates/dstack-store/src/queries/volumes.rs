//! Network volumes.

use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData, VolumeStatus};
use dstack_units::{ProjectId, Time, UserId, VolumeId};
use sqlx::Row;

use super::select::{Select, fetch_as, fetch_one};
use super::{Page, Reads};
use crate::encryption::RowKeys;
use crate::entity::{entity, select_with};
use crate::sql::put_row;
use crate::{Entity, Json, Result, Tx};

crate::text_columns!(VolumeStatus);

entity! {
    /// A volume.
    VolumeRow in "volumes" {
        /// Id.
        key id: VolumeId,
        /// Project.
        pub project_id: ProjectId,
        /// Who created it.
        pub user_id: UserId,
        /// Unique among the project's volumes that are not deleted.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// State.
        pub status: VolumeStatus,
        /// Why it is in this state.
        pub status_message: Option<String>,
        /// What was asked for.
        pub configuration: Json<AnyVolumeConfiguration>,
        /// What the cloud made of it.
        pub provisioning_data: Option<Json<VolumeProvisioningData>>,
        /// Whether it is deleted once it is not used any more.
        pub auto_cleanup_enabled: bool,
        /// Whether its deletion was asked for.
        pub to_be_deleted: bool,
        /// Whether it is gone.
        pub deleted: bool,
        /// When it was deleted.
        pub deleted_at: Option<Time>,
        /// When a job used it last.
        pub last_job_processed_at: Option<Time>,
        /// When it was looked at last.
        pub last_processed_at: Time,
    }
}

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

fn select() -> String {
    select_with::<VolumeRow>(
        "p.name, u.name",
        "JOIN projects p ON p.id = t.project_id JOIN users u ON u.id = t.user_id",
    )
}

fn read(row: &sqlx::any::AnyRow) -> Result<ListedVolume> {
    let width = VolumeRow::COLUMNS.len();
    Ok(ListedVolume {
        row: VolumeRow::read(row, &RowKeys::none())?,
        project_name: row.try_get(width)?,
        user_name: row.try_get(width + 1)?,
    })
}

/// Of these projects, paged by creation.
pub async fn list(
    reads: Reads<'_>,
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
    query.fetch(reads).await?.iter().map(read).collect()
}

/// Of a project, oldest first; those that are not deleted.
pub async fn of_project(reads: Reads<'_>, project: ProjectId) -> Result<Vec<ListedVolume>> {
    let sql = select() + " WHERE t.project_id = $1 AND t.deleted = 0 ORDER BY t.created_at, t.id";
    fetch_as(reads, sql, &[&project.to_string()], read).await
}

/// As [`of_project`], within a transaction.
pub(crate) async fn of_project_in(tx: &mut Tx, project: ProjectId) -> Result<Vec<VolumeRow>> {
    let sql = select() + " WHERE t.project_id = $1 AND t.deleted = 0";
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(project.to_string())
        .fetch_all(tx)
        .await?;
    rows.iter()
        .map(|row| VolumeRow::read(row, &RowKeys::none()))
        .collect()
}

impl VolumeRow {
    /// Whether it is in a cloud that only this type of backend can delete it from.
    pub(crate) fn needs(&self, backend: &str) -> bool {
        let made = self.provisioning_data.as_ref();
        made.is_some_and(|data| data.backend.unwrap_or(self.configuration.backend()).as_str() == backend)
    }
}

/// The one of this name that is not deleted.
pub async fn by_name(reads: Reads<'_>, project: ProjectId, name: &str) -> Result<Option<ListedVolume>> {
    let sql = select() + " WHERE t.project_id = $1 AND t.name = $2 AND t.deleted = 0";
    fetch_one(reads, sql, &[&project.to_string(), name], read).await
}

/// Those that wait for their cloud: to be made, or to be deleted.
pub async fn waiting(reads: Reads<'_>) -> Result<Vec<ListedVolume>> {
    let sql = select()
        + " WHERE t.deleted = 0 AND (t.to_be_deleted = 1 OR t.status = 'submitted') ORDER BY t.last_processed_at, t.id";
    fetch_as(reads, sql, &[], read).await
}

/// Adds a volume, or changes one.
///
/// # Errors
/// A unique violation when the project has one of that name; a conflict when it was changed since it was read.
pub async fn put(tx: &mut Tx, row: &VolumeRow) -> Result<()> {
    put_row(tx, row).await
}
