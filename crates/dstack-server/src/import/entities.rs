//! Users, projects, and what projects have besides runs.

use std::collections::HashMap;

use dstack_model::backends::BackendType;
use dstack_model::users::{GlobalRole, ProjectRole};
use dstack_store::legacy::{LegacyDatabase, NewRow};
use uuid::Uuid;

use super::ImportError;
use super::read::{Keys, Plan, id, needed, rows, time, uuid};

pub(super) async fn users(
    source: &LegacyDatabase,
    keys: &Keys<'_>,
    plan: &mut Plan,
) -> Result<(), ImportError> {
    let columns = [
        "id",
        "name",
        "created_at",
        "token",
        "token_hash",
        "global_role",
        "active",
        "deleted",
        "original_name",
        "ssh_private_key",
        "ssh_public_key",
        "email",
        "projects_quota",
    ];
    for row in rows(source, "users", &columns, "created_at").await? {
        let id = id("users", &row)?;
        let name = row.text("name");
        let role: GlobalRole = needed("users", &row, "global_role", row.member("global_role"))?;
        let token = keys.moved(plan, &format!("the token of {name}"), row.text("token"))?;
        let private = match row
            .get("ssh_private_key")
            .filter(|_| row.get("ssh_public_key").is_some())
        {
            Some(key) => Some(keys.sealed(key)?),
            None => None,
        };
        let new = NewRow::new("users", "id")
            .with("id", id)
            .with("name", name)
            .with("created_at", time("users", &row, "created_at")?)
            .with("global_role", role.as_str())
            .maybe("email", row.get("email"))
            .with("active", row.flag("active"))
            .with("token", token)
            .with("token_hash", row.text("token_hash"))
            .maybe(
                "ssh_public_key",
                row.get("ssh_public_key").filter(|_| private.is_some()),
            )
            .maybe("ssh_private_key", private)
            .with("projects_quota", row.parse::<i64>("projects_quota").unwrap_or(10))
            .with("deleted", row.flag("deleted"))
            .maybe("original_name", row.get("original_name"));
        if !row.flag("deleted") {
            plan.users.push((id.into(), name.to_owned()));
        }
        plan.add("users", id, new);
    }
    let columns = [
        "id",
        "created_at",
        "user_id",
        "name",
        "type",
        "fingerprint",
        "key",
    ];
    for row in rows(source, "user_public_keys", &columns, "created_at").await? {
        let (id, table) = (id("user_public_keys", &row)?, "user_public_keys");
        let user = uuid(table, &row, "user_id")?;
        let new = NewRow::new(table, "id")
            .with("id", id)
            .with("user_id", user)
            .with("created_at", time(table, &row, "created_at")?)
            .with("name", row.text("name"))
            .with("type", row.text("type"))
            .with("fingerprint", row.text("fingerprint"))
            .with("key", row.text("key"));
        plan.add("public keys", id, new);
    }
    Ok(())
}

pub(super) async fn projects(
    source: &LegacyDatabase,
    keys: &Keys<'_>,
    plan: &mut Plan,
) -> Result<(), ImportError> {
    let columns = [
        "id",
        "name",
        "created_at",
        "is_public",
        "templates_repo",
        "deleted",
        "original_name",
        "owner_id",
        "ssh_private_key",
        "ssh_public_key",
    ];
    for row in rows(source, "projects", &columns, "created_at").await? {
        let id = id("projects", &row)?;
        let owner = uuid("projects", &row, "owner_id")?;
        let new = NewRow::new("projects", "id")
            .with("id", id)
            .with("name", row.text("name"))
            .with("created_at", time("projects", &row, "created_at")?)
            .with("owner_id", owner)
            .with("is_public", row.flag("is_public"))
            .maybe("templates_repo", row.get("templates_repo"))
            .with("ssh_private_key", keys.sealed(row.text("ssh_private_key"))?)
            .with("ssh_public_key", row.text("ssh_public_key"))
            .with("deleted", row.flag("deleted"))
            .maybe("original_name", row.get("original_name"));
        if !row.flag("deleted") {
            plan.projects.push((id.into(), row.text("name").to_owned()));
        }
        plan.add("projects", id, new);
    }
    let columns = ["id", "project_id", "user_id", "project_role", "member_num"];
    // Members without a number come first.
    let mut without: HashMap<Uuid, i64> = HashMap::new();
    for row in rows(source, "members", &columns, "member_num, id").await? {
        let id = id("members", &row)?;
        let project = uuid("members", &row, "project_id")?;
        let user = uuid("members", &row, "user_id")?;
        let role: ProjectRole = needed("members", &row, "project_role", row.member("project_role"))?;
        let number = row.parse::<i64>("member_num").unwrap_or_else(|| {
            let count = without.entry(project).or_insert(-1_000_000);
            *count += 1;
            *count
        });
        let new = NewRow::new("members", "project_id, user_id")
            .with("project_id", project)
            .with("user_id", user)
            .with("project_role", role.as_str())
            .with("member_num", number);
        plan.add("members", id, new);
    }
    Ok(())
}

/// Backends, secrets, repos.
pub(super) async fn contents(
    source: &LegacyDatabase,
    keys: &Keys<'_>,
    plan: &mut Plan,
) -> Result<(), ImportError> {
    let columns = [
        "id",
        "project_id",
        "type",
        "config",
        "auth",
        "source_config",
        "source_auth",
    ];
    let found = rows(source, "backends", &columns, "id").await?;
    for (place, row) in (0_i64..).zip(found) {
        let id = id("backends", &row)?;
        let project = uuid("backends", &row, "project_id")?;
        let Some(kind) = row.member::<BackendType>("type") else {
            plan.leave(
                "backends",
                row.text("type"),
                "this version does not know the type",
            );
            continue;
        };
        let (config, auth) = keys.backend(plan, kind, row.text("config"), Some(row.text("auth")))?;
        let (source_config, source_auth) = match row.get("source_config") {
            Some(config) => {
                let (config, auth) = keys.backend(plan, kind, config, row.get("source_auth"))?;
                (Some(config), auth)
            }
            None => (None, None),
        };
        let new = NewRow::new("backends", "id")
            .with("id", id)
            .with("project_id", project)
            .with("type", kind.to_string())
            .with("config", config)
            .with("auth", auth.unwrap_or_default())
            .maybe("source_config", source_config)
            .maybe("source_auth", source_auth)
            // They have no time there: the order is what counts.
            .with("created_at", place);
        plan.add("backends", id, new);
    }
    let columns = ["id", "project_id", "created_at", "updated_at", "name", "value"];
    for row in rows(source, "secrets", &columns, "created_at").await? {
        let id = id("secrets", &row)?;
        let project = uuid("secrets", &row, "project_id")?;
        let value = keys.moved(
            plan,
            &format!("the secret {}", row.text("name")),
            row.text("value"),
        )?;
        let new = NewRow::new("secrets", "id")
            .with("id", id)
            .with("project_id", project)
            .with("created_at", time("secrets", &row, "created_at")?)
            .with("updated_at", time("secrets", &row, "updated_at")?)
            .with("name", row.text("name"))
            .with("value", value);
        plan.add("secrets", id, new);
    }
    repos(source, keys, plan).await
}

async fn repos(source: &LegacyDatabase, keys: &Keys<'_>, plan: &mut Plan) -> Result<(), ImportError> {
    let columns = ["id", "project_id", "name", "type", "info"];
    for row in rows(source, "repos", &columns, "id").await? {
        let id = id("repos", &row)?;
        let project = uuid("repos", &row, "project_id")?;
        let new = NewRow::new("repos", "id")
            .with("id", id)
            .with("project_id", project)
            .with("name", row.text("name"))
            .with("type", row.text("type").to_lowercase())
            .with("info", row.text("info"));
        plan.add("repos", id, new);
    }
    for row in rows(source, "repo_creds", &["id", "repo_id", "user_id", "creds"], "id").await? {
        let id = id("repo_creds", &row)?;
        let repo = uuid("repo_creds", &row, "repo_id")?;
        let user = uuid("repo_creds", &row, "user_id")?;
        let creds = keys.moved(plan, "credentials of a repo", row.text("creds"))?;
        let new = NewRow::new("repo_creds", "repo_id, user_id")
            .with("repo_id", repo)
            .with("user_id", user)
            .with("creds", creds);
        plan.add("repo credentials", id, new);
    }
    Ok(())
}

/// What is there and is not taken over at all.
pub(super) async fn not_taken(source: &LegacyDatabase, plan: &mut Plan) -> Result<(), ImportError> {
    for row in rows(source, "volumes", &["id", "name", "deleted"], "created_at").await? {
        if !row.flag("deleted") {
            let why = "apply its configuration again, with `volume_id` for one that exists in the cloud";
            plan.leave("volumes", row.text("name"), why);
        }
    }
    for (table, kind, why) in [
        (
            "gateways",
            "gateways",
            "delete it there and apply its configuration again",
        ),
        ("exports", "exports", "create it again once its fleets are here"),
    ] {
        for row in rows(source, table, &["id", "name"], "created_at").await? {
            plan.leave(kind, row.text("name"), why);
        }
    }
    Ok(())
}
