//! Public keys of the caller.

use dstack_api::{Nothing, routes};
use dstack_model::public_keys::PublicKeyInfo;
use dstack_model::requests::{AddPublicKeyRequest, DeletePublicKeysRequest};
use dstack_store::queries::users::PublicKeyRow;

use crate::api::{Api, Call};
use crate::error::Result;

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
    let rows = call
        .state
        .data
        .database
        .users()
        .public_keys(call.user()?.id)
        .await?;
    Ok(rows.into_iter().map(info).collect())
}

async fn add(call: Call, request: AddPublicKeyRequest) -> Result<PublicKeyInfo> {
    let verbs = &call.state.control.verbs.users;
    let row = verbs
        .add_public_key(call.user()?, &request.key, request.name)
        .await?;
    Ok(info(row))
}

async fn delete(call: Call, request: DeletePublicKeysRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.users;
    Ok(verbs.delete_public_keys(call.user()?, &request.ids).await?)
}
