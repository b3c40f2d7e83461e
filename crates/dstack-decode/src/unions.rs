//! Values of one type among several.

use serde_json::Value;

use crate::{Cx, Problem};

/// A member of a union: its name in places, and how it is decoded.
pub type UnionMember<'a, T> = (&'static str, &'a dyn Fn(&mut Cx) -> Option<T>);

impl Cx {
    /// The first member of a union that the value fits; when none does, the problems of all.
    pub fn union<T>(&mut self, members: &[UnionMember<'_, T>]) -> Option<T> {
        let mut all = Vec::new();
        for (name, decode) in members {
            match self.attempt(|cx| cx.member(name, decode)) {
                Ok(decoded) => return Some(decoded),
                Err(problems) => all.extend(problems),
            }
        }
        self.keep(all)
    }

    /// Which member of a tagged union the object names.
    pub fn tag(
        &mut self,
        value: &Value,
        key: &'static str,
        tags: &'static [&'static str],
        shown: &'static [&'static str],
    ) -> Option<&'static str> {
        let Value::Object(map) = value else {
            return self.problem(
                "model_attributes_type",
                "Input should be a valid dictionary or object to extract fields from",
                value,
            );
        };
        let discriminator = format!("'{key}'");
        let Some(found) = map.get(key).filter(|tag| !tag.is_null()) else {
            let mut problem = Problem::new(
                "union_tag_not_found",
                format!("Unable to extract tag using discriminator {discriminator}"),
                value,
            );
            problem.ctx = Some(serde_json::json!({"discriminator": discriminator}));
            problem.expected = tags.iter().map(|tag| (*tag).to_owned()).collect();
            return self.report(problem);
        };
        if let Some(tag) = found
            .as_str()
            .and_then(|found| tags.iter().find(|tag| **tag == found))
        {
            return Some(tag);
        }
        let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
        let expected = shown.join(", ");
        let mut problem = Problem::new(
            "union_tag_invalid",
            format!(
                "Input tag '{text}' found using {discriminator} does not match any of the expected tags: {expected}"
            ),
            value,
        );
        problem.ctx =
            Some(serde_json::json!({"discriminator": discriminator, "tag": text, "expected_tags": expected}));
        problem.expected = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self.report(problem)
    }
}
