//! Changes that servers of one database tell each other. What is lost on the way, clients find when they look by themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use dstack_model::changes::{Changed, Changes};
use dstack_model::decode::decode_lenient;
use dstack_store::notices::CHANGES;
use dstack_store::{Database, StoreError};
use dstack_system::{chain, task};
use tokio_util::sync::CancellationToken;

use super::Live;

/// Changes of one notice: PostgreSQL takes 8,000 bytes at most.
const TOLD_TOGETHER: usize = 32;

/// More notices than these at once say less than one: that anything may have changed.
const MAX_NOTICES: usize = 16;

/// What is told where anything may have changed.
const EVERYTHING: &str = "*";

/// Pause before the database is listened to again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// After so long without a word a server tells itself one, which must come back within as long: or else the connection is dead.
const SILENCE: Duration = Duration::from_secs(15);

/// What a server tells itself.
const NOTHING: &str = "-";

/// Tells other servers what this one has written; `None`: anything may have changed.
async fn tell(database: &Database, me: &str, changed: Option<BTreeSet<Changed>>) {
    for notice in notices(changed) {
        if let Err(error) = database.tell(CHANGES, &format!("{me} {notice}")).await {
            tracing::debug!(error = %chain(&error), "other servers are not told of changes");
        }
    }
}

fn notices(changed: Option<BTreeSet<Changed>>) -> Vec<String> {
    let everything = || vec![EVERYTHING.to_owned()];
    let Some(changed) = changed else {
        return everything();
    };
    let changed: Vec<Changed> = changed.into_iter().collect();
    if changed.len() > TOLD_TOGETHER * MAX_NOTICES {
        return everything();
    }
    let parts = changed.chunks(TOLD_TOGETHER).map(|part| {
        let changes = part.to_vec();
        serde_json::to_string(&Changes { changes })
    });
    parts.collect::<Result<_, _>>().unwrap_or_else(|_| everything())
}

/// Tells other servers, and hears what they tell, until this one stops. What is told here does not wait for the database.
pub(super) fn start(live: Live, database: Database, me: String, stop: CancellationToken) {
    let (tells, told, name, until) = (live.clone(), database.clone(), me.clone(), stop.clone());
    task::spawn_restarted("tell other servers of changes", move || {
        let (live, database, me, stop) = (tells.clone(), told.clone(), name.clone(), until.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // Apart: layers around it would each have room for all of it, and move it.
                () = Box::pin(tell_all(&live, &database, &me)) => {}
            }
        }
    });
    task::spawn_restarted("hear of changes", move || {
        let (live, database, me, stop) = (live.clone(), database.clone(), me.clone(), stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = Box::pin(hear(&live, &database, &me)) => {}
            }
        }
    });
}

async fn tell_all(live: &Live, database: &Database, me: &str) {
    loop {
        let changed = live.for_others().await;
        tell(database, me, changed).await;
    }
}

async fn hear(live: &Live, database: &Database, me: &str) {
    loop {
        if let Err(error) = hear_until_lost(live, database, me).await {
            tracing::debug!(error = %chain(&error), "changes that other servers make are not heard");
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn hear_until_lost(live: &Live, database: &Database, me: &str) -> Result<(), StoreError> {
    let Some(mut listener) = database.listen(CHANGES).await? else {
        return Ok(());
    };
    // What was told before we listened, or was lost on its way.
    live.hear(None);
    let mut is_awaited = false;
    loop {
        let Ok(told) = tokio::time::timeout(SILENCE, listener.next()).await else {
            if is_awaited {
                return Err(StoreError::Closed);
            }
            database.tell(CHANGES, &format!("{me} {NOTHING}")).await?;
            is_awaited = true;
            continue;
        };
        let Some(text) = told? else {
            return Err(StoreError::Closed);
        };
        is_awaited = false;
        match text.split_once(' ') {
            Some((sender, told)) if sender != me && told != NOTHING => live.hear(read(told)),
            _ => {}
        }
    }
}

/// What another server told; `None`: anything may have changed, as a newer one may tell what is unknown here.
fn read(text: &str) -> Option<BTreeSet<Changed>> {
    let value = serde_json::from_str(text).ok()?;
    let changes: Changes = decode_lenient(&value).ok()?;
    Some(changes.changes.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use dstack_model::changes::ChangedKind;
    use uuid::Uuid;

    use super::*;

    fn changed(count: u128) -> BTreeSet<Changed> {
        let one = |number| Changed {
            fleet_id: Some(Uuid::from_u128(3).into()),
            ..Changed::of(
                ChangedKind::Instance,
                Uuid::from_u128(u128::MAX).into(),
                Uuid::from_u128(number),
            )
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn what_is_told_is_heard_in_parts_that_the_database_takes() {
        for count in [1, 32, 33, 500] {
            let notices = notices(Some(changed(count)));
            assert!(notices.iter().all(|notice| notice.len() < 7_900));
            let heard: BTreeSet<Changed> = notices.iter().flat_map(|notice| read(notice).unwrap()).collect();
            assert_eq!(heard, changed(count));
        }
    }

    #[test]
    fn what_is_too_much_or_unknown_is_everything() {
        for everything in [None, Some(changed(2_000))] {
            let notices = notices(everything);
            assert_eq!(notices, ["*"]);
            assert_eq!(read(&notices[0]), None);
        }
        assert_eq!(
            read(r#"{"changes":[{"kind":"moon","id":null,"project_id":null,"fleet_id":null}]}"#),
            None
        );
    }
}
