//! What is written down of something: its events, and the notes of the operation that made it.

use dstack_store::rows::{OperationKind, OperationRow};
use dstack_store::{EngineStore, EntityRef, Sealed};
use serde_json::{Value, json};

use crate::World;
use crate::scenario::ScenarioError;

impl World {
    /// What events say of something, oldest first.
    pub fn messages_about(&self, subject: EntityRef) -> Vec<String> {
        let id = subject.uuid().to_string();
        self.store.read(|tables| {
            let about_it = tables
                .events
                .iter()
                .filter(|event| event.targets.iter().any(|target| target.entity_id == id));
            about_it.map(|event| event.message.clone()).collect()
        })
    }

    /// The operation that makes something, or that has made it.
    pub fn creation_of(&self, subject: EntityRef) -> Option<OperationRow> {
        let is_its = |row: &&OperationRow| row.subject == subject && row.kind == OperationKind::Create;
        self.store
            .read(|tables| tables.operations.values().find(is_its).cloned())
    }

    /// Notes of a creation as a later version may have written them: of what that adds this one knows nothing. What its backend has
    /// noted is the same.
    ///
    /// # Errors
    /// There is no such creation, or it has changed meanwhile.
    pub async fn add_to_notes_of_creation(
        &self,
        subject: EntityRef,
        added: &str,
    ) -> Result<(), ScenarioError> {
        let add = |notes: &mut Value| {
            if let Some(fields) = notes.as_object_mut() {
                fields.insert(added.to_owned(), json!(1));
            }
        };
        self.change_notes_of_creation(subject, add).await
    }

    /// Changes what is noted of a creation.
    ///
    /// # Errors
    /// As [`World::add_to_notes_of_creation`].
    pub async fn change_notes_of_creation(
        &self,
        subject: EntityRef,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), ScenarioError> {
        let creation = self.creation_of(subject);
        let mut row = creation.ok_or_else(|| ScenarioError::Missing(format!("creation of {subject}")))?;
        let mut notes = row.notes.as_deref().cloned().unwrap_or_default();
        change(&mut notes);
        row.notes = Some(Sealed::new(notes));
        let mut changes = self.builder.changes(self.clock.now());
        changes.intend(row);
        Ok(self.store.commit(changes.into_commit()).await?)
    }
}
