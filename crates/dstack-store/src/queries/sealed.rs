//! Everything that is stored encrypted.

use dstack_system::task;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row};

use super::Reads;
use crate::encryption::Encryption;
use crate::entities::with_entities;
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::{Entity, Result};

/// Columns outside of the engine's rows whose whole value is encrypted. Those of the engine's rows are known by their types
/// ([`Sealed`](crate::Sealed)).
const COLUMNS: &[(&str, &str)] = &[
    ("users", "token"),
    ("users", "ssh_private_key"),
    ("projects", "ssh_private_key"),
    ("backends", "auth"),
    ("backends", "source_auth"),
    ("secrets", "value"),
    ("repo_creds", "creds"),
];

/// Columns with JSON in which some texts are encrypted; the whole may be encrypted once more.
const DOCUMENTS: &[(&str, &str)] = &[
    ("fleets", "spec"),
    ("instances", "job_provisioning_data"),
    ("jobs", "job_provisioning_data"),
];

fn sealed_columns_of<E: Entity>() -> impl Iterator<Item = (&'static str, &'static str)> {
    E::sealed_columns().into_iter().map(|column| (E::TABLE, column))
}

macro_rules! generate_sealed_columns {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        /// All columns whose whole value is encrypted.
        fn columns() -> Vec<(&'static str, &'static str)> {
            let mut columns = COLUMNS.to_vec();
            $(columns.extend(sealed_columns_of::<$row>());)*
            columns.extend(sealed_columns_of::<OperationRow>());
            columns.retain(|column| !DOCUMENTS.contains(column));
            columns
        }
    };
}
with_entities!(generate_sealed_columns);

/// A column with values that cannot be decrypted: `table.column`, and how many.
pub type Unreadable = (String, usize);

/// Everything that is stored encrypted: see [`crate::Database::sealed_values`].
#[derive(Debug, Clone, Copy)]
pub struct SealedValues<'a>(pub(crate) Reads<'a>);

/// Most values of one read: a value may be as long as a configuration.
const PAGE_ROWS: usize = 500;

impl SealedValues<'_> {
    /// Which stored values these keys do not decrypt. All values of all time are read for that, page by page.
    pub async fn unreadable(self, encryption: &Encryption) -> Result<Vec<Unreadable>> {
        let mut found = Vec::new();
        for (table, column) in columns() {
            let condition = format!("{column} LIKE 'enc:%'");
            let opens: Opens = |value, encryption| encryption.decrypt_json(value).is_ok();
            let count = self.count((table, column), &condition, opens, encryption).await?;
            note(&mut found, table, column, count);
        }
        for (table, column) in DOCUMENTS {
            let condition = format!("({column} LIKE '%\"enc:%' OR {column} LIKE 'enc:%')");
            let count = self
                .count((table, column), &condition, is_readable, encryption)
                .await?;
            note(&mut found, table, column, count);
        }
        Ok(found)
    }

    /// How many of the values do not open.
    async fn count(
        self,
        (table, column): (&str, &str),
        condition: &str,
        opens: Opens,
        encryption: &Encryption,
    ) -> Result<usize> {
        let (mut lost, mut after) = (0, String::new());
        loop {
            let page = self.page((table, column), condition, &after).await?;
            let is_last = page.len() < PAGE_ROWS;
            if let Some((key, _)) = page.last() {
                after.clone_from(key);
            }
            let encryption = encryption.clone();
            lost += task::blocking("decrypt stored values", move || {
                page.iter()
                    .filter(|(_, value)| !opens(value, &encryption))
                    .count()
            })
            .await?;
            if is_last {
                return Ok(lost);
            }
        }
    }

    /// The next values after that key, each with its own.
    async fn page(
        self,
        (table, column): (&str, &str),
        condition: &str,
        after: &str,
    ) -> Result<Vec<(String, String)>> {
        let key = match table {
            "repo_creds" => "repo_id || user_id",
            _ => "id",
        };
        let sql = format!(
            "SELECT {key}, {column} FROM {table} WHERE {key} > $1 AND {column} IS NOT NULL AND {condition} \
             ORDER BY {key} LIMIT {PAGE_ROWS}"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(after.to_owned());
        let rows = query.fetch_all(self.0.pool()).await?;
        let read = |row: &AnyRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(read).collect()
    }
}

/// Whether these keys open the value.
type Opens = fn(&str, &Encryption) -> bool;

/// Whether these keys open the document, if it is encrypted, and every text in it that is.
fn is_readable(document: &str, encryption: &Encryption) -> bool {
    let opened = match document.starts_with("enc:") {
        true => encryption.decrypt_json(document),
        false => Ok(document.into()),
    };
    opened.is_ok_and(|opened| sealed_texts(opened.expose()).all(|text| encryption.decrypt(text).is_ok()))
}

fn note(found: &mut Vec<Unreadable>, table: &str, column: &str, count: usize) {
    if count > 0 {
        found.push((format!("{table}.{column}"), count));
    }
}

/// Encrypted texts in JSON: neither `enc:` nor base64 need escapes.
fn sealed_texts(document: &str) -> impl Iterator<Item = &str> {
    document
        .split("\"enc:aes:")
        .skip(1)
        .zip(document.match_indices("\"enc:aes:"))
        .filter_map(|(rest, (start, _))| {
            let length = "enc:aes:".len() + rest.find('"')?;
            document.get(start + 1..start + 1 + length)
        })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // databases without keys
mod tests {
    use dstack_system::Random;

    use super::*;
    use crate::encryption::Key;
    use crate::{Database, raw};

    #[tokio::test]
    async fn values_are_counted_over_all_pages() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("x.db").display());
        let database = Database::open(&url).await.unwrap();
        let key = Key::Aes {
            name: "k".into(),
            secret: [1; 32],
        };
        let keys = Encryption::new(vec![key], Random::seeded(1));
        let good = keys.encrypt("token").unwrap();
        let users = 2 * PAGE_ROWS + 1;
        for n in 0..users {
            let token = if n % 2 == 0 { "enc:aes:gone:AAA=" } else { &good };
            let insert = format!(
                "INSERT INTO users (id, name, created_at, global_role, active, token, token_hash, projects_quota) \
                 VALUES ('{n}', '{n}', 0, 'user', 1, '{token}', '{n}', 1)"
            );
            raw::execute(&database, &insert).await.unwrap();
        }
        let lost = database.sealed_values().unreadable(&keys).await.unwrap();
        assert_eq!(lost, [("users.token".to_owned(), PAGE_ROWS + 1)]);
        let reads = database.sealed_values();
        let page = reads.page(("users", "token"), "1 = 1", "").await.unwrap();
        assert_eq!(page.len(), PAGE_ROWS);
    }

    #[test]
    fn a_key_is_needed_for_what_is_inside_as_well() {
        let keys = |bytes: &[u8]| {
            let key = |byte: &u8| Key::Aes {
                name: "k".into(),
                secret: [*byte; 32],
            };
            Encryption::new(bytes.iter().map(key).collect(), Random::seeded(1))
        };
        let inside = format!(r#"{{"private":"{}"}}"#, keys(&[1]).encrypt("key").unwrap());
        let whole = keys(&[2]).encrypt(&inside).unwrap();
        assert!(is_readable(&whole, &keys(&[2, 1])) && is_readable(&inside, &keys(&[1])));
        assert!(!is_readable(&whole, &keys(&[2])) && !is_readable(&whole, &keys(&[1])));
        assert!(is_readable("{}", &keys(&[])));
    }

    #[test]
    fn sealed_texts_are_found_in_json() {
        let document = r#"{"a":"enc:aes:k:AAA=","b":["x","enc:aes:k:BBB="],"c":"no enc:aes:k:C"}"#;
        let found: Vec<&str> = sealed_texts(document).collect();
        assert_eq!(found, ["enc:aes:k:AAA=", "enc:aes:k:BBB="]);
    }
}
