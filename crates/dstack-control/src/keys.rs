//! SSH key pairs of users and projects, made when first needed: a server must not spend its start on prime numbers.

use std::collections::HashMap;
use std::sync::PoisonError;

use dstack_store::Database;
use dstack_store::encryption::Encryption;
use dstack_store::queries::projects::{self, ProjectRow};
use dstack_store::queries::users::{self, UserRow};
use dstack_system::{Random, Secret, task};
use tokio::sync::Mutex;

use crate::error::{ControlError, Result};

/// A key pair in OpenSSH's formats; the public key ends with a line end.
#[derive(Debug, Clone)]
pub struct KeyPair {
    /// Private key in OpenSSH's format.
    pub private: Secret,
    /// Public key, one line of `authorized_keys` with its line end.
    pub public: String,
}

/// Makes and reads key pairs.
#[derive(Debug)]
pub struct Keys {
    database: Database,
    encryption: Encryption,
    random: Random,
    // One pair at a time: whoever needs the same one waits for it instead of making another.
    making: Mutex<()>,
    /// Private keys by what is stored of them: they are asked for more often than anything else that is encrypted.
    opened: std::sync::Mutex<HashMap<String, Secret>>,
}

/// Keys kept open; when there are more, all are forgotten.
const OPENED: usize = 1000;

impl Keys {
    /// On this database.
    pub fn new(database: Database, encryption: Encryption, random: Random) -> Self {
        Self {
            database,
            encryption,
            random,
            making: Mutex::new(()),
            opened: std::sync::Mutex::default(),
        }
    }

    /// A new pair, made off the async threads.
    pub async fn generate(&self, comment: &str) -> Result<KeyPair> {
        let (random, comment) = (self.random.clone(), comment.to_owned());
        let pair = task::blocking("generate key pair", move || {
            dstack_ssh::keys::generate_rsa(&random, &comment)
        })
        .await
        .map_err(ControlError::internal)?
        .map_err(ControlError::internal)?;
        let mut public = pair.public.trim_end().to_owned();
        public.push('\n');
        Ok(KeyPair {
            private: pair.private,
            public,
        })
    }

    /// Encrypts the private part for storing.
    pub fn seal(&self, pair: &KeyPair) -> Result<String> {
        Ok(self.encryption.encrypt(pair.private.expose())?)
    }

    fn open(&self, private: Option<&String>, public: Option<&String>) -> Result<Option<KeyPair>> {
        match (private, public) {
            (Some(private), Some(public)) => Ok(Some(KeyPair {
                private: self.decrypt(private)?,
                public: public.clone(),
            })),
            _ => Ok(None),
        }
    }

    fn decrypt(&self, sealed: &str) -> Result<Secret> {
        let opened = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(private) = opened().get(sealed) {
            return Ok(private.clone());
        }
        let private = self.encryption.decrypt(sealed)?;
        let mut opened = opened();
        if opened.len() >= OPENED {
            opened.clear();
        }
        opened.insert(sealed.to_owned(), private.clone());
        Ok(private)
    }

    /// The user's pair; the second value tells whether it was made just now.
    pub async fn of_user(&self, user: &UserRow) -> Result<(KeyPair, bool)> {
        if let Some(pair) = self.open(user.ssh_private_key.as_ref(), user.ssh_public_key.as_ref())? {
            return Ok((pair, false));
        }
        let _making = self.making.lock().await;
        let fresh = self.database.users().by_id(user.id).await?;
        if let Some(user) = fresh
            && let Some(pair) = self.open(user.ssh_private_key.as_ref(), user.ssh_public_key.as_ref())?
        {
            return Ok((pair, true));
        }
        let pair = self.generate(&user.name).await?;
        let (id, private, public) = (user.id, self.seal(&pair)?, pair.public.clone());
        self.database
            .write(move |tx| {
                Box::pin(async move { users::set_ssh_keys(tx, id, &private, &public, true).await })
            })
            .await?;
        // Another server that shares the database may have been faster: what is stored is the user's.
        let stored = self.database.users().by_id(id).await?;
        let stored = stored.map(|row| self.open(row.ssh_private_key.as_ref(), row.ssh_public_key.as_ref()));
        Ok((stored.transpose()?.flatten().unwrap_or(pair), true))
    }

    /// The project's pair, with which the server logs in to hosts.
    pub async fn of_project(&self, project: &ProjectRow) -> Result<KeyPair> {
        if let Some(pair) = self.open(project.ssh_private_key.as_ref(), project.ssh_public_key.as_ref())? {
            return Ok(pair);
        }
        let _making = self.making.lock().await;
        let fresh = self.database.projects().by_id(project.id).await?;
        if let Some(project) = fresh
            && let Some(pair) =
                self.open(project.ssh_private_key.as_ref(), project.ssh_public_key.as_ref())?
        {
            return Ok(pair);
        }
        let pair = self.generate("dstack-project").await?;
        let (id, private, public) = (project.id, self.seal(&pair)?, pair.public.clone());
        self.database
            .write(move |tx| Box::pin(async move { projects::set_ssh_keys(tx, id, &private, &public).await }))
            .await?;
        // Another server that shares the database may have been faster: what is stored is the project's.
        let stored = self.database.projects().by_id(id).await?;
        let stored = stored.map(|row| self.open(row.ssh_private_key.as_ref(), row.ssh_public_key.as_ref()));
        Ok(stored.transpose()?.flatten().unwrap_or(pair))
    }
}
