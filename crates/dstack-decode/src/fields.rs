//! Reading the fields of an object.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::{Cx, Loc, Mode, Problem};

/// A type that is read from some of an object's keys, and so can be flattened into another.
pub trait DecodeFields: Sized {
    /// Takes its keys; reports problems, but not of unknown keys.
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self>;
}

/// An object, and which of its keys are known.
#[derive(Debug)]
pub struct Fields<'v> {
    input: &'v Value,
    map: &'v Map<String, Value>,
    known: Vec<&'static str>,
    ignored: Vec<&'static str>,
}

impl<'v> Fields<'v> {
    /// `None` when the value is no object.
    pub fn of(input: &'v Value) -> Option<Self> {
        let map = input.as_object()?;
        Some(Self {
            input,
            map,
            known: Vec::new(),
            ignored: Vec::new(),
        })
    }

    /// The whole object.
    pub const fn map(&self) -> &'v Map<String, Value> {
        self.map
    }

    /// The value of a key, which is known from now on.
    pub fn get(&mut self, key: &'static str) -> Option<&'v Value> {
        self.known.push(key);
        self.map.get(key)
    }

    /// Accepts a key whose value does not matter.
    pub fn ignore(&mut self, key: &'static str) {
        self.ignored.push(key);
    }

    /// Reports that a key is missing.
    pub fn missing<T>(&self, key: &'static str, cx: &mut Cx) -> Option<T> {
        cx.at(key, |cx| cx.problem("missing", "Field required", self.input))
    }

    /// Reports the keys that are not known.
    fn refuse_unknown(&self, cx: &mut Cx) {
        for (key, value) in self.map {
            if cx.is_full() {
                return;
            }
            let key = key.as_str();
            if self.known.contains(&key) || self.ignored.contains(&key) {
                continue;
            }
            let mut problem = Problem::new("extra_forbidden", "Extra inputs are not permitted", value);
            problem.loc.push(Loc::Key(Cow::Owned(key.to_owned())));
            problem.expected = self.known.iter().map(|key| (*key).to_owned()).collect();
            cx.report::<()>(problem);
        }
    }
}

impl Cx {
    /// Decodes an object's fields and refuses the keys that none of them took.
    pub fn object<T: DecodeFields>(&mut self, value: &Value) -> Option<T> {
        let Some(mut fields) = Fields::of(value) else {
            return self.problem(
                "model_attributes_type",
                "Input should be a valid dictionary or object to extract fields from",
                value,
            );
        };
        let before = self.problem_count();
        let decoded = T::decode_fields(&mut fields, self);
        if self.mode() == Mode::Strict {
            fields.refuse_unknown(self);
        }
        decoded.filter(|_| self.problem_count() == before)
    }
}
