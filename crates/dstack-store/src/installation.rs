use dstack_units::InstallationId;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::queries::select::Select;
use crate::{Database, Result, StoreError};

/// Row of the table `meta`.
const KEY: &str = "installation";

impl Database {
    /// The id of the installation that the database is of. `candidate` becomes it when it has none yet; of several servers that
    /// start at the same time, all get the same.
    ///
    /// # Errors
    /// The database cannot be written to.
    pub async fn installation(&self, candidate: InstallationId) -> Result<InstallationId> {
        let text: String = self
            .write(move |tx| {
                Box::pin(async move {
                    sqlx::query("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING")
                        .bind(KEY)
                        .bind(candidate.to_string())
                        .execute(&mut *tx)
                        .await?;
                    let row: (String,) = sqlx::query_as("SELECT value FROM meta WHERE key = $1")
                        .bind(KEY)
                        .fetch_one(&mut *tx)
                        .await?;
                    Ok(row.0)
                })
            })
            .await?;
        parse(&text)
    }

    /// The id of the installation that the database is of; `None`: no server has been started with it. Nothing is written.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn known_installation(&self) -> Result<Option<InstallationId>> {
        let mut query = Select::new("SELECT value FROM meta");
        let key = query.bind(KEY);
        query.filter(format_args!("key = {key}"));
        let read = |row: &AnyRow| parse(row.try_get(0)?);
        let found = self.asked(query.fetch_as(self.reads(), read)).await?;
        Ok(found.into_iter().next())
    }
}

fn parse(text: &str) -> Result<InstallationId> {
    text.parse().map_err(|error: uuid::Error| StoreError::Corrupt {
        entity: "meta",
        column: "value",
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_id_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db.sqlite");
        #[allow(clippy::disallowed_methods)] // nothing sealed
        let database = Database::open_file(&file).await.unwrap();
        let first: InstallationId = "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap();
        let second = "0f8fad5b-d9cb-469f-a165-70867728950f".parse().unwrap();
        assert_eq!(database.known_installation().await.unwrap(), None);
        assert_eq!(database.installation(first).await.unwrap(), first);
        assert_eq!(database.known_installation().await.unwrap(), Some(first));
        assert_eq!(database.installation(second).await.unwrap(), first);
    }
}
