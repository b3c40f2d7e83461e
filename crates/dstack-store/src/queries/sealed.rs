//! Everything that is stored encrypted.

use sqlx::{AssertSqlSafe, Row};

use super::Reads;
use crate::encryption::Encryption;
use crate::entities::with_entities;
use crate::rows::{FleetRow, GatewayRow, InstanceRow, JobRow, OperationRow, RunRow, VolumeRow};
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

impl SealedValues<'_> {
    /// Which stored values these keys do not decrypt.
    pub async fn unreadable(self, encryption: &Encryption) -> Result<Vec<Unreadable>> {
        let mut found = Vec::new();
        for (table, column) in columns() {
            let values = self
                .values(table, column, &format!(" AND {column} LIKE 'enc:%'"))
                .await?;
            let lost = values
                .iter()
                .filter(|value| encryption.decrypt_json(value).is_err());
            note(&mut found, table, column, lost.count());
        }
        for (table, column) in DOCUMENTS {
            let condition = format!(" AND ({column} LIKE '%\"enc:%' OR {column} LIKE 'enc:%')");
            let documents = self.values(table, column, &condition).await?;
            let lost = documents
                .iter()
                .filter(|document| !is_readable(document, encryption));
            note(&mut found, table, column, lost.count());
        }
        Ok(found)
    }
}

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

impl SealedValues<'_> {
    async fn values(self, table: &str, column: &str, condition: &str) -> Result<Vec<String>> {
        let sql = format!("SELECT {column} FROM {table} WHERE {column} IS NOT NULL{condition}");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.0.pool()).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
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
mod tests {
    use dstack_system::Random;

    use super::*;
    use crate::encryption::Key;

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
