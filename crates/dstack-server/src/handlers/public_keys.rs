//! Public keys of the caller.

use dstack_api::{Nothing, routes};
use dstack_model::public_keys::PublicKeyInfo;
use dstack_model::requests::{AddPublicKeyRequest, DeletePublicKeysRequest};
use dstack_store::directory::users::{self, PublicKeyRow};

use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};
use crate::public_key::{self, ParsedKey};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::PublicKeysList, _, _>(list)
        .on::<routes::PublicKeysAdd, _, _>(add)
        .on::<routes::PublicKeysDelete, _, _>(delete)
}

fn info(row: PublicKeyRow) -> PublicKeyInfo {
    PublicKeyInfo {
        id: row.id,
        added_at: row.created_at,
        name: row.name,
        kind: row.r#type,
        fingerprint: row.fingerprint,
    }
}

async fn list(call: Call, _: Nothing) -> Result<Vec<PublicKeyInfo>> {
    let rows = users::public_keys(call.state.database.pool(), call.user()?.id).await?;
    Ok(rows.into_iter().map(info).collect())
}

async fn add(call: Call, request: AddPublicKeyRequest) -> Result<PublicKeyInfo> {
    let state = &call.state;
    let user = call.user()?;
    let ParsedKey {
        kind,
        line,
        comment,
        fingerprint,
        md5,
    } = public_key::parse(&request.key).map_err(ApiError::client)?;
    let row = PublicKeyRow {
        id: state.random.uuid().into(),
        user_id: user.id,
        created_at: state.clock.now(),
        name: request
            .name
            .filter(|name| !name.is_empty())
            .or(comment)
            .unwrap_or(md5),
        r#type: kind,
        fingerprint,
        key: line,
    };
    let event = audit::event(
        state,
        user,
        format!("Public key added. Fingerprint: {}", row.fingerprint),
        audit::user(user),
    );
    let stored = row.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::insert_public_key(tx, &stored).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(info(row))
}

async fn delete(call: Call, request: DeletePublicKeysRequest) -> Result<()> {
    let state = &call.state;
    let user = call.user()?;
    let rows = users::public_keys(state.database.pool(), user.id).await?;
    let doomed: Vec<_> = rows
        .into_iter()
        .filter(|row| request.ids.contains(&row.id))
        .map(|row| {
            let message = format!("Public key deleted. Fingerprint: {}", row.fingerprint);
            (row.id, audit::event(state, user, message, audit::user(user)))
        })
        .collect();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (id, event) in doomed {
                    users::delete_public_key(tx, id).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    Ok(())
}
