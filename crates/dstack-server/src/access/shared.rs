//! What servers that share a database remember of users and projects.
//!
//! The database tells every change of them to all servers, in the transaction that makes the change
//! ([`dstack_store::notices::ACCESS`]). A server remembers only while it surely hears that: every second it tells itself
//! something on the same way, and what comes back proves that all that was told before has come as well. So whatever a
//! server takes from memory was true at most [`TRUSTED_FOR`] ago, whatever happens to its connection; usually it hears of
//! a change within milliseconds.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::StoreError;
use dstack_store::notices::{ACCESS, ACCESS_CHANGED, Listener};
use dstack_system::{Random, task};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Access, TRUSTED_FOR};

/// Pause between two proofs.
const EVERY: Duration = Duration::from_secs(1);

/// Pause before a lost connection is made again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Hears of changes until the server stops; on SQLite, where nobody else makes any, not at all.
pub fn start(access: &Arc<Access>, random: &Random, stop: CancellationToken) {
    let (access, random) = (Arc::clone(access), random.clone());
    task::spawn("hear of users and projects", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = hear(&access, &random) => {}
        }
    });
}

async fn hear(access: &Access, random: &Random) {
    loop {
        match access.database.listen(ACCESS).await {
            Ok(None) => return,
            Ok(Some(listener)) => {
                let me = random.uuid().to_string();
                let lost = until_lost(access, listener, &me).await;
                access.deaf();
                tracing::warn!(
                    cause = lost.map(|error| error.to_string()),
                    "changes of users and projects are not heard: the database is asked at every call until they are"
                );
            }
            Err(error) => tracing::warn!(%error, "cannot listen to changes of users and projects"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Why nothing is heard any more, if that is known.
async fn until_lost(access: &Access, mut listener: Listener, me: &str) -> Option<StoreError> {
    loop {
        let told = Instant::now();
        if let Err(error) = access.database.tell(ACCESS, me).await {
            return Some(error);
        }
        // Until it has come back, which shows that the connection lives.
        let mut back = false;
        let mut until = told + TRUSTED_FOR;
        loop {
            match timeout_at(until, listener.next()).await {
                Ok(Ok(Some(text))) if text == ACCESS_CHANGED => access.changed(),
                Ok(Ok(Some(text))) if text == me => {
                    access.heard(told);
                    (back, until) = (true, told + EVERY);
                }
                // Of another server.
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => return Some(error),
                Err(_) if back => break,
                Err(_) => return None,
            }
        }
    }
}
