//! What is stored.

use std::sync::Arc;

use dstack_control::keys::Keys;
use dstack_logs::LogStore;
use dstack_store::encryption::Encryption;
use dstack_store::{Database, SqlStore};
use dstack_system::Random;
use dstack_system::clock::SharedClock;

use crate::blobs::{Blobs, Bucket};
use crate::live::Live;

/// What is stored, and how new things are dated, named and encrypted.
#[derive(Debug)]
pub struct Data {
    /// Users, projects, runs and everything else that is stored as rows.
    pub database: Database,
    /// Encrypts the secrets among them.
    pub encryption: Encryption,
    /// SSH key pairs of users and projects, made when they are first needed.
    pub keys: Arc<Keys>,
    /// Uploaded code and files: in the database, or in a bucket.
    pub blobs: Blobs,
    /// Output of jobs.
    pub logs: Arc<dyn LogStore>,
    /// Tells clients what is written.
    pub live: Live,
    /// Dates rows and events, and ends tokens.
    pub clock: SharedClock,
    /// Makes ids, tokens and names.
    pub random: Random,
}

impl Data {
    /// In this database; uploads are in the bucket, if there is one.
    pub fn new(
        database: Database,
        encryption: Encryption,
        bucket: Option<Bucket>,
        logs: Arc<dyn LogStore>,
        clock: SharedClock,
        random: Random,
    ) -> Self {
        Self {
            keys: Arc::new(Keys::new(database.clone(), encryption.clone(), random.clone())),
            blobs: Blobs::new(database.clone(), bucket),
            live: Live::of(&database, &random),
            database,
            encryption,
            logs,
            clock,
            random,
        }
    }

    /// The database as the engine sees it.
    pub fn store(&self) -> SqlStore {
        SqlStore::new(self.database.clone())
    }
}
