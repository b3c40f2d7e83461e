//! Network volumes.

use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData, VolumeStatus};
use dstack_units::{ProjectId, Time, UserId, VolumeId};
use sqlx::{AnyPool, Row};

use super::select::{Select, fetch_as, fetch_one};
use super::{Page, record};
use crate::{Column, Json, Result, StoreError, Tx};

crate::text_columns!(VolumeStatus);

record! {
    /// A volume.
    VolumeRow in "volumes" {
        /// Id.
        id: VolumeId,
        /// Project.
        project_id: ProjectId,
        /// Who created it.
        user_id: UserId,
        /// Unique among the project's volumes that are not deleted.
        name: String,
        /// When it was created.
        created_at: Time,
        /// State.
        status: VolumeStatus,
        /// Why it is in this state.
        status_message: Option<String>,
        /// What was asked for.
        configuration: Json<AnyVolumeConfiguration>,
        /// What the cloud made of it.
        provisioning_data: Option<Json<VolumeProvisioningData>>,
        /// Whether it is deleted once it is not used any more.
        auto_cleanup_enabled: bool,
        /// Whether its deletion was asked for.
        to_be_deleted: bool,
        /// Whether it is gone.
        deleted: bool,
        /// When it was deleted.
        deleted_at: Option<Time>,
        /// When a job used it last.
        last_job_processed_at: Option<Time>,
        /// When it was looked at last.
        last_processed_at: Time,
        /// Changes with every update.
        version: i64,
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
    format!(
        "SELECT {}, p.name, u.name FROM volumes v JOIN projects p ON p.id = v.project_id JOIN users u ON u.id = v.user_id",
        VolumeRow::columns("v")
    )
}

fn read(row: &sqlx::any::AnyRow) -> Result<ListedVolume> {
    Ok(ListedVolume {
        row: VolumeRow::read_at(row, 0)?,
        project_name: row.try_get(VolumeRow::WIDTH)?,
        user_name: row.try_get(VolumeRow::WIDTH + 1)?,
    })
}

/// Of these projects, paged by creation.
pub async fn list(
    pool: &AnyPool,
    projects: &[ProjectId],
    only_active: bool,
    page: &Page,
) -> Result<Vec<ListedVolume>> {
    let mut query = Select::new(select());
    let list = query.bind_list(projects.iter().copied());
    query.filter(format_args!("v.project_id IN {list}"));
    if only_active {
        query.filter("v.deleted = 0");
    }
    query.page("v.created_at", "v.id", page);
    query.fetch(pool).await?.iter().map(read).collect()
}

/// Of a project, oldest first; those that are not deleted.
pub async fn of_project(pool: &AnyPool, project: ProjectId) -> Result<Vec<ListedVolume>> {
    let sql = select() + " WHERE v.project_id = $1 AND v.deleted = 0 ORDER BY v.created_at, v.id";
    fetch_as(pool, sql, &[&project.to_string()], read).await
}

/// The one of this name that is not deleted.
pub async fn by_name(pool: &AnyPool, project: ProjectId, name: &str) -> Result<Option<ListedVolume>> {
    let sql = select() + " WHERE v.project_id = $1 AND v.name = $2 AND v.deleted = 0";
    fetch_one(pool, sql, &[&project.to_string(), name], read).await
}

/// Those that wait for their cloud: to be made, or to be deleted.
pub async fn waiting(pool: &AnyPool) -> Result<Vec<ListedVolume>> {
    let sql = select()
        + " WHERE v.deleted = 0 AND (v.to_be_deleted = 1 OR v.status = 'submitted') ORDER BY v.last_processed_at, v.id";
    fetch_as(pool, sql, &[], read).await
}

/// Adds a volume.
///
/// # Errors
/// A unique violation when the project has one of that name.
pub async fn insert(tx: &mut Tx, row: &VolumeRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO volumes (id, project_id, user_id, name, created_at, status, status_message, configuration, \
         provisioning_data, auto_cleanup_enabled, to_be_deleted, deleted, deleted_at, last_job_processed_at, \
         last_processed_at, version) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 1)",
    )
    .bind(row.id.to_string())
    .bind(row.project_id.to_string())
    .bind(row.user_id.to_string())
    .bind(row.name.clone())
    .bind(row.created_at.as_micros())
    .bind(row.status.to_raw())
    .bind(row.status_message.clone())
    .bind(row.configuration.to_raw())
    .bind(row.provisioning_data.to_raw())
    .bind(row.auto_cleanup_enabled.to_raw())
    .bind(row.to_be_deleted.to_raw())
    .bind(row.deleted.to_raw())
    .bind(row.deleted_at.to_raw())
    .bind(row.last_job_processed_at.to_raw())
    .bind(row.last_processed_at.as_micros())
    .execute(tx)
    .await?;
    Ok(())
}

/// Changes what can change of a volume.
///
/// # Errors
/// A conflict when it was changed since it was read.
pub async fn update(tx: &mut Tx, row: &VolumeRow) -> Result<()> {
    let done = sqlx::query(
        "UPDATE volumes SET status = $1, status_message = $2, provisioning_data = $3, to_be_deleted = $4, deleted = $5, \
         deleted_at = $6, last_job_processed_at = $7, last_processed_at = $8, version = version + 1 \
         WHERE id = $9 AND version = $10",
    )
    .bind(row.status.to_raw())
    .bind(row.status_message.clone())
    .bind(row.provisioning_data.to_raw())
    .bind(row.to_be_deleted.to_raw())
    .bind(row.deleted.to_raw())
    .bind(row.deleted_at.to_raw())
    .bind(row.last_job_processed_at.to_raw())
    .bind(row.last_processed_at.as_micros())
    .bind(row.id.to_string())
    .bind(row.version)
    .execute(tx)
    .await?;
    match done.rows_affected() {
        0 => Err(StoreError::Conflict {
            entity: "volumes",
            id: row.id.to_string(),
        }),
        _ => Ok(()),
    }
}
