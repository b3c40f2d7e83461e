//! Runs, fleets and instances as the API lists them.

use std::collections::BTreeMap;

use dstack_model::instances::InstanceStatus;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::hosts::HostKey;
use dstack_units::{FleetId, InstanceId, ProjectId, RepoRowId, RunId, UserId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::Page;
use super::Reads;
use super::select::{Select, fetch_as, fetch_named, fetch_one, named};
use crate::encryption::RowKeys;
use crate::entity::{read_column, read_field, select_sql, select_with};
use crate::reads::Named;
use crate::rows::{FleetRow, InstanceRow, JobRow, RunRow};
use crate::{Entity, Result, Sealed, Tx};

/// Active runs are few: found by their own index first, filtered and sorted afterwards. Left to themselves, planners
/// walk through all runs of a project instead.
const ACTIVE_RUNS: &str = "WITH active AS MATERIALIZED (SELECT id, version, project_id, user_id, repo_id, submitted_at \
     FROM runs WHERE status NOT IN ('terminated', 'failed', 'done') AND deleted = 0) \
     SELECT r.id, r.version FROM active r";

/// Which runs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RunFilter {
    /// Of these projects; `None`: of all.
    pub projects: Option<Vec<ProjectId>>,
    /// Of this user.
    pub user: Option<UserId>,
    /// Of this repo.
    pub repo: Option<RepoRowId>,
    /// Neither finished nor deleted.
    pub only_active: bool,
    /// Not those of deleted projects.
    pub living_projects: bool,
}

/// A run's key: what it looks like cannot change while both stay the same.
pub type RunKey = (RunId, i64);

/// Runs, jobs, fleets and instances as the API lists them: see [`crate::Database::views`].
#[derive(Debug, Clone, Copy)]
pub struct Views<'a>(pub(crate) Reads<'a>);

impl Views<'_> {
    /// Keys of the runs to list, in order.
    pub async fn run_keys(self, filter: &RunFilter, page: &Page) -> Result<Vec<RunKey>> {
        select_keys(filter, page)
            .fetch(self.0)
            .await?
            .iter()
            .map(|row| Ok((read_column(row, 0, "runs", "id")?, row.try_get(1)?)))
            .collect()
    }

    /// The runs to list themselves, in order: for pages so short that one way to the database is worth more than what is read
    /// in vain.
    pub async fn run_page(self, filter: &RunFilter, page: &Page) -> Result<Vec<ListedRun>> {
        let mut query = select_keys(filter, page);
        query.enclose(&(listed_run_sql() + " JOIN ("), ") k ON k.id = t.id");
        let rows = query.fetch(self.0).await?;
        let mut runs: Vec<ListedRun> = rows
            .iter()
            .map(|row| read_listed_run(row, self.0.keys()))
            .collect::<Result<_>>()?;
        // By the database again, it might walk through all runs in this order instead of those of the page.
        runs.sort_by(|a, b| {
            let at = a.run.submitted_at.cmp(&b.run.submitted_at);
            let id = a.run.id.cmp(&b.run.id);
            match page.ascending {
                true => at.then(id.reverse()),
                false => at.reverse().then(id),
            }
        });
        Ok(runs)
    }
}

fn select_keys(filter: &RunFilter, page: &Page) -> Select {
    let mut query = Select::new(if filter.only_active {
        ACTIVE_RUNS
    } else {
        "SELECT r.id, r.version FROM runs r"
    });
    if let Some(projects) = &filter.projects {
        let list = query.bind_list(projects.iter().copied());
        query.filter(format_args!("r.project_id IN {list}"));
    }
    if let Some(user) = filter.user {
        let user = query.bind(user);
        query.filter(format_args!("r.user_id = {user}"));
    }
    if let Some(repo) = filter.repo {
        let repo = query.bind(repo);
        query.filter(format_args!("r.repo_id = {repo}"));
    }
    if filter.living_projects {
        query.filter("r.project_id NOT IN (SELECT p.id FROM projects p WHERE p.deleted = 1)");
    }
    query.page("r.submitted_at", "r.id", page);
    query
}

/// A run with the names around it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedRun {
    /// The run, without its jobs.
    pub run: RunRow,
    /// Name of its project.
    pub project_name: String,
    /// Name of its user.
    pub user_name: String,
    /// Name of its fleet.
    pub fleet_name: Option<String>,
}

fn listed_run_sql() -> String {
    select_with::<RunRow>(
        "p.name, u.name, f.name",
        "JOIN projects p ON p.id = t.project_id JOIN users u ON u.id = t.user_id LEFT JOIN fleets f ON f.id = t.fleet_id",
    )
}

fn read_listed_run(row: &sqlx::any::AnyRow, keys: &RowKeys) -> Result<ListedRun> {
    let width = RunRow::COLUMNS.len();
    Ok(ListedRun {
        run: RunRow::read(row, keys)?,
        project_name: row.try_get(width)?,
        user_name: row.try_get(width + 1)?,
        fleet_name: row.try_get(width + 2)?,
    })
}

impl Views<'_> {
    /// Runs with these ids, in no order.
    pub async fn runs(self, ids: &[RunId]) -> Result<Vec<ListedRun>> {
        let mut query = Select::new(listed_run_sql());
        let list = query.bind_list(ids.iter().copied());
        query.filter(format_args!("t.id IN {list}"));
        query
            .fetch_as(self.0, |row| read_listed_run(row, self.0.keys()))
            .await
    }

    /// The runs of these names that are not deleted; see [`crate::Database::run_by_name`].
    pub(crate) async fn runs_named(self, names: &[Named]) -> Result<BTreeMap<Named, ListedRun>> {
        // The project is an expression so that no index of projects is taken: the one of names finds at most a few.
        let one = listed_run_sql() + " WHERE t.project_id || '' = $1 AND t.run_name = $2 AND t.deleted = 0";
        let found = fetch_named(self.0, named(&one, names), names, |row| {
            read_listed_run(row, self.0.keys())
        })
        .await?;
        let name = |listed: &ListedRun| (listed.run.project_id, listed.run.run_name.clone());
        Ok(found.into_iter().map(|listed| (name(&listed), listed)).collect())
    }

    /// The run with this id, deleted or not.
    pub async fn run_by_id(self, project: ProjectId, id: RunId) -> Result<Option<ListedRun>> {
        let sql = listed_run_sql() + " WHERE t.project_id = $1 AND t.id = $2";
        fetch_one(self.0, sql, &[&project.to_string(), &id.to_string()], |row| {
            read_listed_run(row, self.0.keys())
        })
        .await
    }

    /// Runs of these names that are not deleted.
    pub async fn runs_by_names(self, project: ProjectId, names: &[String]) -> Result<Vec<ListedRun>> {
        let mut query = Select::new(listed_run_sql());
        let project = query.bind(project);
        query.filter(format_args!("t.project_id = {project} AND t.deleted = 0"));
        let list = query.bind_list(names.iter().map(String::as_str));
        query.filter(format_args!("t.run_name IN {list}"));
        query.push(" ORDER BY t.submitted_at, t.id");
        query
            .fetch_as(self.0, |row| read_listed_run(row, self.0.keys()))
            .await
    }

    /// Runs of a project that are running and are services, oldest first.
    pub async fn running_services(self, project: ProjectId) -> Result<Vec<ListedRun>> {
        let sql = listed_run_sql()
            + " WHERE t.project_id = $1 AND t.status = 'running' AND t.deleted = 0 AND t.service_spec IS NOT NULL \
               ORDER BY t.submitted_at, t.id";
        fetch_as(self.0, sql, &[&project.to_string()], |row| {
            read_listed_run(row, self.0.keys())
        })
        .await
    }

    /// Submissions of these runs, by run, replica, job and submission.
    pub async fn jobs(self, runs: &[RunId]) -> Result<Vec<JobRow>> {
        let mut query = Select::new(select_sql::<JobRow>());
        let list = query.bind_list(runs.iter().copied());
        query.filter(format_args!("t.run_id IN {list}"));
        query.push(" ORDER BY t.run_id, t.replica_num, t.job_num, t.submission_num");
        query
            .fetch_as(self.0, |row| JobRow::read(row, self.0.keys()))
            .await
    }

    /// The last submission of a job of a run of this name or id.
    pub async fn job(
        self,
        project: ProjectId,
        run_name: &str,
        run: Option<RunId>,
        replica_num: i64,
        job_num: i64,
    ) -> Result<Option<JobRow>> {
        let mut query = Select::new(format!(
            "{} JOIN runs r ON r.id = t.run_id",
            select_sql::<JobRow>()
        ));
        let (project, name) = (query.bind(project), query.bind(run_name));
        query.filter(format_args!("t.project_id = {project} AND r.run_name = {name}"));
        match run {
            Some(run) => {
                let run = query.bind(run);
                query.filter(format_args!("r.id = {run}"));
            }
            None => query.filter("r.deleted = 0"),
        }
        let (replica_num, job_num) = (query.bind(replica_num), query.bind(job_num));
        query.filter(format_args!(
            "t.replica_num = {replica_num} AND t.job_num = {job_num}"
        ));
        query.push(" ORDER BY t.submission_num DESC LIMIT 1");
        query
            .fetch(self.0)
            .await?
            .first()
            .map(|row| JobRow::read(row, self.0.keys()))
            .transpose()
    }
}

/// A fleet with the names around it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedFleet {
    /// The fleet, without its instances.
    pub fleet: FleetRow,
    /// Name of its project.
    pub project_name: String,
}

fn listed_fleet_sql() -> String {
    select_with::<FleetRow>("p.name", "JOIN projects p ON p.id = t.project_id")
}

fn read_listed_fleet(row: &sqlx::any::AnyRow, keys: &RowKeys) -> Result<ListedFleet> {
    Ok(ListedFleet {
        fleet: FleetRow::read(row, keys)?,
        project_name: row.try_get(FleetRow::COLUMNS.len())?,
    })
}

/// Which fleets to list.
#[derive(Debug, Clone, Default)]
pub struct FleetFilter {
    /// Of these projects; `None`: of all.
    pub projects: Option<Vec<ProjectId>>,
    /// And those that these projects import.
    pub imported: bool,
    /// Not deleted ones.
    pub only_active: bool,
}

impl Views<'_> {
    /// Returns a page of the fleets that the filter finds, without their instances.
    pub async fn fleets(self, filter: &FleetFilter, page: &Page) -> Result<Vec<ListedFleet>> {
        let mut query = Select::new(listed_fleet_sql());
        if let Some(projects) = &filter.projects {
            of_projects(&mut query, projects, filter.imported.then_some("t.id"));
        }
        if filter.only_active {
            query.filter("t.deleted = 0");
        }
        query.page("t.created_at", "t.id", page);
        query
            .fetch_as(self.0, |row| read_listed_fleet(row, self.0.keys()))
            .await
    }
}

/// Only what is in these projects, or in a fleet that they import if there is a column for its id.
fn of_projects(query: &mut Select, projects: &[ProjectId], fleet: Option<&str>) {
    let own = query.bind_list(projects.iter().copied());
    let Some(fleet) = fleet else {
        query.filter(format_args!("t.project_id IN {own}"));
        return;
    };
    let importing = query.bind_list(projects.iter().copied());
    query.filter(format_args!(
        "t.project_id IN {own} OR {fleet} IN (SELECT x.fleet_id FROM exported_fleets x \
         JOIN imports i ON i.export_id = x.export_id WHERE i.project_id IN {importing})"
    ));
}

impl Views<'_> {
    /// The fleet of this name that is not deleted.
    pub async fn fleet_by_name(self, project: ProjectId, name: &str) -> Result<Option<ListedFleet>> {
        let sql = listed_fleet_sql() + " WHERE t.project_id = $1 AND t.name = $2 AND t.deleted = 0";
        fetch_one(self.0, sql, &[&project.to_string(), name], |row| {
            read_listed_fleet(row, self.0.keys())
        })
        .await
    }

    /// The fleet with this id, deleted or not.
    pub async fn fleet_by_id(self, project: ProjectId, id: FleetId) -> Result<Option<ListedFleet>> {
        let sql = listed_fleet_sql() + " WHERE t.project_id = $1 AND t.id = $2";
        fetch_one(self.0, sql, &[&project.to_string(), &id.to_string()], |row| {
            read_listed_fleet(row, self.0.keys())
        })
        .await
    }

    /// Fleets of these names that are not deleted.
    pub async fn fleets_by_names(self, project: ProjectId, names: &[String]) -> Result<Vec<ListedFleet>> {
        let mut query = Select::new(listed_fleet_sql());
        let project = query.bind(project);
        query.filter(format_args!("t.project_id = {project} AND t.deleted = 0"));
        let list = query.bind_list(names.iter().map(String::as_str));
        query.filter(format_args!("t.name IN {list}"));
        query.push(" ORDER BY t.created_at, t.id");
        query
            .fetch_as(self.0, |row| read_listed_fleet(row, self.0.keys()))
            .await
    }
}

/// An instance with the names around it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedInstance {
    /// The instance as it is stored.
    pub instance: InstanceRow,
    /// Name of its project.
    pub project_name: String,
    /// Name of its fleet.
    pub fleet_name: Option<String>,
    /// Name of a job on it.
    pub job_name: Option<String>,
}

fn listed_instance_sql() -> String {
    select_with::<InstanceRow>(
        "p.name, f.name, (SELECT MIN(j.job_name) FROM jobs j WHERE j.instance_id = t.id)",
        "JOIN projects p ON p.id = t.project_id LEFT JOIN fleets f ON f.id = t.fleet_id",
    )
}

fn read_listed_instance(row: &sqlx::any::AnyRow, keys: &RowKeys) -> Result<ListedInstance> {
    let width = InstanceRow::COLUMNS.len();
    Ok(ListedInstance {
        instance: InstanceRow::read(row, keys)?,
        project_name: row.try_get(width)?,
        fleet_name: row.try_get(width + 1)?,
        job_name: row.try_get(width + 2)?,
    })
}

/// Which instances to list.
#[derive(Debug, Clone, Default)]
pub struct InstanceFilter {
    /// Of these projects; `None`: of all.
    pub projects: Option<Vec<ProjectId>>,
    /// And those of the fleets that these projects import.
    pub imported: bool,
    /// Of these fleets.
    pub fleets: Option<Vec<FleetId>>,
    /// In one of these statuses, and not gone.
    pub statuses: Option<&'static [InstanceStatus]>,
}

impl Views<'_> {
    /// Returns a page of the instances that the filter finds.
    pub async fn instances(self, filter: &InstanceFilter, page: &Page) -> Result<Vec<ListedInstance>> {
        let mut query = Select::new(listed_instance_sql());
        if let Some(projects) = &filter.projects {
            of_projects(&mut query, projects, filter.imported.then_some("t.fleet_id"));
        }
        if let Some(fleets) = &filter.fleets {
            let list = query.bind_list(fleets.iter().copied());
            query.filter(format_args!("t.fleet_id IN {list}"));
        }
        if let Some(statuses) = filter.statuses {
            let list = query.bind_list(statuses.iter().map(|status| status.as_str()));
            query.filter(format_args!("t.deleted = 0 AND t.status IN {list}"));
        }
        query.page("t.created_at", "t.id", page);
        query
            .fetch_as(self.0, |row| read_listed_instance(row, self.0.keys()))
            .await
    }

    /// Instances of these fleets by number; those that are gone only where the fleet itself is.
    pub async fn instances_of_fleets(self, fleets: &[FleetId]) -> Result<Vec<ListedInstance>> {
        let mut query = Select::new(listed_instance_sql());
        let list = query.bind_list(fleets.iter().copied());
        query.filter(format_args!("t.fleet_id IN {list}"));
        query.filter("t.deleted = 0");
        query.push(" ORDER BY t.instance_num, t.id");
        query
            .fetch_as(self.0, |row| read_listed_instance(row, self.0.keys()))
            .await
    }

    /// An instance of the project.
    pub async fn instance_by_id(self, project: ProjectId, id: InstanceId) -> Result<Option<ListedInstance>> {
        let sql = listed_instance_sql() + " WHERE t.project_id = $1 AND t.id = $2";
        fetch_one(self.0, sql, &[&project.to_string(), &id.to_string()], |row| {
            read_listed_instance(row, self.0.keys())
        })
        .await
    }

    /// Names of a project's fleets that are not deleted.
    pub async fn fleet_names(self, project: ProjectId) -> Result<Vec<String>> {
        let sql = "SELECT name FROM fleets WHERE project_id = $1 AND deleted = 0".to_owned();
        fetch_as(self.0, sql, &[&project.to_string()], |row| Ok(row.try_get(0)?)).await
    }

    /// Names of the project's runs that are not deleted and begin with `prefix`, to choose a free one.
    pub async fn run_names(self, project: ProjectId, prefix: &str) -> Result<Vec<String>> {
        let sql =
            "SELECT run_name FROM runs WHERE project_id = $1 AND deleted = 0 AND run_name LIKE $2".to_owned();
        fetch_as(
            self.0,
            sql,
            &[&project.to_string(), &format!("{prefix}%")],
            |row| Ok(row.try_get(0)?),
        )
        .await
    }

    /// Hosts of SSH fleets that are in use, each with its fleet; this machine's own fleet does not count.
    pub async fn remote_hosts(self) -> Result<Vec<(Option<FleetId>, HostKey)>> {
        let found = fetch_as(self.0, REMOTE_HOSTS.to_owned(), &[], |row| {
            remote_host(row, self.0.keys())
        })
        .await?;
        Ok(found.into_iter().flatten().collect())
    }
}

const REMOTE_HOSTS: &str = "SELECT i.fleet_id, i.job_provisioning_data FROM instances i JOIN fleets f ON f.id = i.fleet_id \
     WHERE i.backend = 'remote' AND i.deleted = 0 AND i.status <> 'terminated' AND f.local = 0 \
     AND i.job_provisioning_data IS NOT NULL";

fn remote_host(row: &AnyRow, keys: &RowKeys) -> Result<Option<(Option<FleetId>, HostKey)>> {
    let place: Sealed<JobProvisioningData> = read_field(row, keys, 1, "instances", "job_provisioning_data")?;
    let fleet = read_column(row, 0, "instances", "fleet_id")?;
    Ok(HostKey::of_place(&place).map(|host| (fleet, host)))
}

/// As [`Views::remote_hosts`], within a transaction.
pub(crate) async fn remote_hosts_in(tx: &mut Tx, keys: &RowKeys) -> Result<Vec<(Option<FleetId>, HostKey)>> {
    let rows = sqlx::query(REMOTE_HOSTS).fetch_all(tx).await?;
    let found = rows.iter().filter_map(|row| remote_host(row, keys).transpose());
    found.collect()
}
