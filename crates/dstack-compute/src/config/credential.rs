//! A text that must not be printed.

use std::fmt;

use dstack_decode::schema::{Schema, Schemas};
use dstack_decode::{Cx, Decode, Value};
use dstack_system::Secret;
use serde::{Deserialize, Serialize};

/// A credential: reads and writes as a plain text, shows as `***`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Credential(Secret);

impl Credential {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Secret::new(text))
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Decode for Credential {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        String::decode(value, cx).map(Self::new)
    }
}

impl Schema for Credential {
    fn schema(schemas: &mut Schemas) -> Value {
        String::schema(schemas)
    }
}
