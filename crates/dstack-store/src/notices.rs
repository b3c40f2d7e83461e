//! What servers that share a PostgreSQL tell each other (`LISTEN`, `NOTIFY`). On SQLite there is nobody.

use sqlx::postgres::PgListener;

use crate::database::{Database, Dialect};
use crate::{Result, StoreError};

/// On which the database itself tells every change of users, their tokens, projects and members, with the transaction that
/// makes it: the text is [`ACCESS_CHANGED`]. See `migrations/0008_postgres.sql`.
pub const ACCESS: &str = "dstack_access";

/// What is told on [`ACCESS`] of every change.
pub const ACCESS_CHANGED: &str = "changed";

/// On which servers tell each other of services whose requests go elsewhere: the text is who tells it, and the id of the run. After
/// that come numbers where it tells of requests instead that came through it.
pub const SERVICES: &str = "dstack_services";

/// On which servers tell each other what pages have to read again: the text is who tells it, and what changed as JSON.
pub const CHANGES: &str = "dstack_changes";

/// Hears what is told on one channel, in the order of the transactions that told it.
#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    /// What is told next; `None`: the connection was lost, and with it what was told meanwhile. May be given up while it
    /// waits: nothing is missed by that.
    pub async fn next(&mut self) -> Result<Option<String>> {
        let notice = self.0.try_recv().await?;
        Ok(notice.map(|notice| notice.payload().to_owned()))
    }
}

impl Database {
    /// Tells all who listen, this server among them.
    pub async fn tell(&self, channel: &str, text: &str) -> Result<()> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(());
        }
        self.asked(async {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(channel.to_owned())
                .bind(text.to_owned())
                .execute(self.pool())
                .await?;
            Ok(())
        })
        .await
    }

    /// Hears everything told from now on; `None` where there can be no others.
    pub async fn listen(&self, channel: &str) -> Result<Option<Listener>> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(None);
        }
        let connect = async {
            let mut listener = PgListener::connect(self.url()).await?;
            listener.listen(channel).await?;
            Ok::<_, StoreError>(listener)
        };
        self.asked(connect).await.map(|listener| Some(Listener(listener)))
    }
}
