//! A connection of one task's own, for statements that find their rows by keys: what it prepares stays prepared, and nobody
//! asks after every use whether it still lives, as pools do.

use std::time::Duration;

use dstack_system::Secret;
use sqlx::{AnyConnection, Connection};
use tokio::time::{Instant, timeout};

use crate::database::{
    PING_TIMEOUT, TRUSTED_FOR, Trust, TxFuture, contained, in_time, prepare_keyed_session,
};
use crate::{Result, Tx};

/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Statements that stay prepared: there is one for each table and number of rows.
const PREPARED: usize = 500;

fn with_room_for_statements(url: &Secret) -> Secret {
    let url = url.expose();
    let before = if url.contains('?') { '&' } else { '?' };
    Secret::new(format!("{url}{before}statement-cache-capacity={PREPARED}"))
}

/// How much is written in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A single statement, which is a transaction by itself: nothing needs to say where that begins and ends.
    OneStatement,
    /// Any number of them.
    Several,
}

/// Made when first used, and again after a failure.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    url: Secret,
    trust: Trust,
    patience: Option<Duration>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    connection: AnyConnection,
    made: Instant,
    used: Instant,
}

impl OwnConnection {
    /// To this PostgreSQL, which may take so long for a transaction.
    pub(crate) fn new(url: &Secret, trust: Trust, patience: Option<Duration>) -> Self {
        Self {
            url: with_room_for_statements(url),
            trust,
            patience,
            open: None,
        }
    }

    /// Runs `work` in one transaction: all of it is durable when this returns `Ok`, nothing of it otherwise.
    pub(crate) async fn write<T>(
        &mut self,
        extent: Extent,
        work: impl for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, T>,
    ) -> Result<T> {
        let patience = self.patience;
        let transaction = async {
            // Taken out: given up half-way, it is dropped and with it whatever it was doing.
            let mut open = self.living().await?;
            let written = match extent {
                Extent::OneStatement => contained(work(&mut open.connection)).await,
                Extent::Several => in_transaction(&mut open.connection, work).await?,
            };
            Ok((open, written))
        };
        let done = match in_time(patience, transaction).await {
            Ok((mut open, written)) => {
                open.used = Instant::now();
                self.open = Some(open);
                written
            }
            Err(error) => Err(error),
        };
        if self.trust.note(&done) {
            self.open = None;
        }
        done
    }

    async fn living(&mut self) -> Result<Open> {
        if let Some(mut open) = self.open.take() {
            let doubted = open.used.elapsed() > TRUSTED_FOR || self.trust.doubts(open.made.elapsed());
            if !doubted || matches!(timeout(PING_TIMEOUT, open.connection.ping()).await, Ok(Ok(()))) {
                return Ok(open);
            }
        }
        let connect = async {
            let mut connection = AnyConnection::connect(self.url.expose()).await?;
            prepare_keyed_session(&mut connection, self.patience).await?;
            Ok::<_, sqlx::Error>(connection)
        };
        let connection = timeout(CONNECT, connect)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        let now = Instant::now();
        Ok(Open {
            connection,
            made: now,
            used: now,
        })
    }
}

/// Does the work in one transaction, and ends that. An error of its own, besides that of the work: nobody knows in which state the
/// connection is.
pub(crate) async fn in_transaction<T>(
    connection: &mut AnyConnection,
    work: impl for<'c> FnOnce(&'c mut Tx) -> TxFuture<'c, T>,
) -> Result<Result<T>> {
    let mut tx = connection.begin().await?;
    match contained(work(&mut tx)).await {
        Ok(value) => {
            tx.commit().await?;
            Ok(Ok(value))
        }
        Err(error) => {
            // Now: the next transaction may be long in coming, and locks are held until then.
            tx.rollback().await?;
            Ok(Err(error))
        }
    }
}
