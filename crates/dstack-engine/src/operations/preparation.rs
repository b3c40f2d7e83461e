//! What stands in the notes of a preparation: how far it is, what was told of it, and what it has brought.

use dstack_store::Sealed;
use dstack_store::rows::OperationRow;
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::containers::ReadyContainer;
use crate::hosts::ReadyHost;

/// So many different texts are told of one preparation: what is in the way may change at each attempt, for days.
const MAX_TOLD: usize = 8;

/// The notes of a preparation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", content = "of", rename_all = "kebab-case")]
pub enum Notes {
    /// It is under way, or was when it was given up.
    Underway(Underway),
    /// The agent of a host answers.
    Host(Box<ReadyHost>),
    /// The runner of a container answers.
    Container(ReadyContainer),
}

/// How far a preparation is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Underway {
    /// The last step that succeeded; `None`: there is none, or it begins anew.
    pub last: Option<LastStep>,
    /// What was told of it as events.
    #[serde(default)]
    pub told: Vec<String>,
}

/// A step of a preparation that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastStep {
    /// What it brought: handed over to the next one.
    pub progress: Value,
    /// When that was.
    pub at: Time,
}

impl Notes {
    /// Of an operation; `None`: it has none, or another version wrote them down.
    pub fn read(operation: &OperationRow) -> Option<Self> {
        let notes = operation.notes.as_deref()?;
        let tagged = serde_json::from_value(notes.clone()).ok();
        tagged.or_else(|| Untagged::read(notes))
    }

    /// As they are stored.
    pub fn sealed(&self) -> Sealed<Value> {
        Sealed::new(serde_json::to_value(self).unwrap_or_default())
    }
}

impl Underway {
    /// Of a preparation that is under way. What cannot be read is begun anew: every step may be made again.
    pub fn read(operation: &OperationRow) -> Self {
        match Notes::read(operation) {
            Some(Notes::Underway(underway)) => underway,
            _ => Self::default(),
        }
    }

    /// Whether a text is to be told: it was not told before, nor were many others.
    pub fn tells(&mut self, text: &str) -> bool {
        let is_new =
            !text.is_empty() && self.told.len() < MAX_TOLD && self.told.iter().all(|told| told != text);
        if is_new {
            self.told.push(text.to_owned());
        }
        is_new
    }
}

/// Notes of versions before there was a tag, told apart by what they have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Untagged {
    Underway(LastStep),
    Host(Box<ReadyHost>),
    Container(ReadyContainer),
}

impl Untagged {
    fn read(notes: &Value) -> Option<Notes> {
        let untagged = serde_json::from_value(notes.clone()).ok()?;
        Some(match untagged {
            Self::Underway(last) => Notes::Underway(Underway {
                last: Some(last),
                told: Vec::new(),
            }),
            Self::Host(ready) => Notes::Host(ready),
            Self::Container(ready) => Notes::Container(ready),
        })
    }
}

#[cfg(test)]
mod tests {
    use dstack_store::EntityRef;
    use dstack_store::rows::OperationKind;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn read(notes: Option<Value>) -> Option<Notes> {
        let now = Time::from_millis(0);
        let subject = EntityRef::Instance(Uuid::from_u128(1).into());
        let intended =
            OperationRow::intended(Uuid::from_u128(2).into(), subject, OperationKind::Prepare, now);
        Notes::read(&OperationRow {
            notes: notes.map(Sealed::new),
            ..intended
        })
    }

    fn reach() -> Value {
        json!({"jumps": [], "host": {"host": "h", "port": 22, "user": "u", "keys": [], "host_keys": ["SHA256:x"]}})
    }

    /// What versions before wrote down is read for what it is, and written down with its tag.
    #[test]
    fn notes_without_a_tag_are_read_as_what_they_are() {
        let report = json!({"host_info": {}, "runtime": "docker", "version": "1", "arch": "amd64"});
        let host = json!({"reach": reach(), "shim_port": 10_998, "report": report});
        let container = json!({"reach": reach(), "runner_port": 10_999, "job": Uuid::from_u128(3)});
        let underway = json!({"progress": {"next": "push"}, "at": Time::from_millis(5)});
        for (notes, tag) in [(host, "host"), (container, "container"), (underway, "underway")] {
            let found = read(Some(notes.clone())).unwrap_or_else(|| panic!("{notes}"));
            let stored = serde_json::to_value(&found).unwrap();
            assert_eq!(stored["is"], tag);
            assert_eq!(read(Some(stored)), Some(found));
        }
        assert_eq!(read(None), None);
        for other in [json!(null), json!({}), json!({"done": 1})] {
            assert_eq!(read(Some(other.clone())), None, "{other}");
        }
    }

    #[test]
    fn a_text_is_told_once_and_not_too_many() {
        let mut underway = Underway::default();
        assert!(underway.tells("a") && underway.tells("b"));
        assert!(!underway.tells("a") && !underway.tells("b") && !underway.tells(""));
        let told = (0..100)
            .filter(|number| underway.tells(&number.to_string()))
            .count();
        assert_eq!(told, MAX_TOLD - 2);
    }
}
