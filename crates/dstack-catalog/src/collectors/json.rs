//! Lenient access to JSON answers: what is absent or of another type is `None`.

use serde_json::Value;

pub(super) trait Json {
    fn at(&self, name: &str) -> &Value;
    fn list(&self, name: &str) -> &[Value];

    fn text(&self, name: &str) -> Option<&str> {
        self.at(name).as_str()
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.at(name).as_f64()
    }

    /// A whole number; a fraction is cut off.
    fn int(&self, name: &str) -> Option<i64> {
        let value = self.at(name);
        value
            .as_i64()
            .or_else(|| value.as_f64().map(|number| number as i64))
    }

    fn flag(&self, name: &str) -> bool {
        self.at(name).as_bool().unwrap_or(false)
    }
}

static NULL: Value = Value::Null;

impl Json for Value {
    fn at(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&NULL)
    }

    fn list(&self, name: &str) -> &[Value] {
        self.at(name).as_array().map_or(&[], Vec::as_slice)
    }
}
