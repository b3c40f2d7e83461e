use dstack_compute::ComputeError;
use serde_json::{Map, Value as Json};

use crate::backend::Machines;
use crate::manifest::Lookup;
use crate::template::{Item, Scope};

impl Machines {
    /// All values that are looked up before a machine is asked for, as `found`. Each may use those before it.
    ///
    /// # Errors
    /// One cannot be asked for, or is not there.
    pub(crate) async fn look_up(&self, scope: &Scope) -> Result<Scope, ComputeError> {
        let mut found = Map::new();
        for lookup in &self.rules().before {
            let scope = scope.with("found", &found);
            if let Some(value) = self.look_up_one(lookup, &scope).await? {
                found.insert(lookup.name.clone(), value);
            }
        }
        Ok(scope.with("found", found))
    }

    async fn look_up_one(&self, lookup: &Lookup, scope: &Scope) -> Result<Option<Json>, ComputeError> {
        let is_wanted = |when: &crate::Reader| when.is_true(&Item::new(&Json::Null, scope));
        if !lookup.when.as_ref().is_none_or(is_wanted) {
            return Ok(None);
        }
        let mut entries = self.client.list(&lookup.list, scope).await?;
        if let Some(filter) = &lookup.filter {
            entries.retain(|entry| filter.is_true(&Item::new(entry, scope)));
        }
        let first = entries.first().cloned().unwrap_or_default();
        let item = Item::new(&first, scope).with("items", &entries);
        match lookup.value.find(&item) {
            Some(value) => Ok(Some(value)),
            None => Err(self.lacks(lookup, scope)),
        }
    }

    fn lacks(&self, lookup: &Lookup, scope: &Scope) -> ComputeError {
        let told = lookup
            .missing
            .as_ref()
            .and_then(|missing| missing.text(scope).ok());
        ComputeError::Configuration(told.unwrap_or_else(|| {
            format!(
                "{} has no `{}` for this machine: {} finds nothing",
                self.title(),
                lookup.name,
                lookup.value
            )
        }))
    }
}
