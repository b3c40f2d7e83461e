//! Texts with placeholders, and what is read from answers.
//!
//! Three environments of one template language differ in what becomes of nothing: in a text it is an error, as a path that lacks an id
//! is that of a whole collection; in values it is nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_decode::schema::{Schema, Schemas};
use dstack_decode::{Cx, Decode};
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, UndefinedBehavior, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

/// Steps of one template or expression: more than any needs, and no time for anybody who waits.
const FUEL: u64 = 100_000;

/// Letters that stand for themselves in a part of a path.
const PLAIN_IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

static TEXTS: LazyLock<Environment<'static>> = LazyLock::new(|| environment(UndefinedBehavior::SemiStrict));

static VALUES: LazyLock<Environment<'static>> = LazyLock::new(|| environment(UndefinedBehavior::Chainable));

static PATHS: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut paths = environment(UndefinedBehavior::SemiStrict);
    paths.set_formatter(|out, _, value| path_part(out, value));
    paths
});

fn environment(undefined: UndefinedBehavior) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(undefined);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("base64", |text: Cow<'_, str>| STANDARD.encode(text.as_bytes()));
    environment
}

/// A value as one part of a path: no value leads anywhere else.
fn path_part(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    let text = value.to_string();
    if value.is_undefined() || value.is_none() || matches!(text.as_str(), "" | "." | "..") {
        let text = "a part of the path would be nothing, `.` or `..`";
        return Err(Error::new(ErrorKind::UndefinedError, text));
    }
    let encoded = utf8_percent_encode(&text, PLAIN_IN_PATHS);
    fmt::Write::write_fmt(out, format_args!("{encoded}")).map_err(Error::from)
}

/// Values by the names that templates have for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope(BTreeMap<Cow<'static, str>, Value>);

impl Scope {
    pub(crate) fn with(&self, name: impl Into<Cow<'static, str>>, value: impl Serialize) -> Self {
        let mut values = self.0.clone();
        values.insert(name.into(), Value::from_serialize(value));
        Self(values)
    }

    fn values(&self) -> Value {
        self.0
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// A piece of an answer, and what else can be read together with it.
#[derive(Debug, Clone)]
pub(crate) struct Item<'a> {
    json: &'a Json,
    scope: Scope,
}

impl<'a> Item<'a> {
    pub(crate) fn new(json: &'a Json, scope: &Scope) -> Self {
        Self {
            json,
            scope: scope.with("item", json),
        }
    }

    pub(crate) fn with(&self, name: &'static str, value: impl Serialize) -> Self {
        Self {
            json: self.json,
            scope: self.scope.with(name, value),
        }
    }

    pub(crate) const fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// A text with placeholders: `Bearer {{ key }}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// What is written when everything is filled in.
    ///
    /// # Errors
    /// Something that is written is not there.
    pub(crate) fn text(&self, scope: &Scope) -> Result<String, String> {
        render(&TEXTS, &self.0, scope)
    }

    /// The same as a path, of which each placeholder is a part.
    ///
    /// # Errors
    /// Something that is written is not there, or would be no part of a path.
    pub(crate) fn path(&self, scope: &Scope) -> Result<String, String> {
        render(&PATHS, &self.0, scope)
    }
}

fn render(environment: &Environment<'static>, source: &str, scope: &Scope) -> Result<String, String> {
    let template = environment.template_from_str(source);
    let rendered = template.and_then(|template| template.render(scope.values()));
    rendered.map_err(|error| format!("`{source}`: {}", told(&error)))
}

impl Decode for Template {
    fn decode(value: &Json, cx: &mut Cx) -> Option<Self> {
        let source = String::decode(value, cx)?;
        match syntax_error(&source) {
            Some(error) => cx.value_error(error, value),
            None => Some(Self(source)),
        }
    }
}

impl Schema for Template {
    fn schema(_: &mut Schemas) -> Json {
        json!({"type": ["string", "number"]})
    }
}

/// JSON whose texts have placeholders. A text that is one placeholder is replaced by the value itself, and a field whose value is
/// nothing then is left out.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonTemplate(Json);

impl JsonTemplate {
    /// The JSON when everything is filled in.
    ///
    /// # Errors
    /// Something that is written is not there.
    pub(crate) fn json(&self, scope: &Scope) -> Result<Json, String> {
        filled(&self.0, scope)
    }
}

fn filled(json: &Json, scope: &Scope) -> Result<Json, String> {
    match json {
        Json::String(text) => match sole_expression(text) {
            Some(expression) => {
                let value = evaluate(expression, scope)?;
                serde_json::to_value(value).map_err(|error| format!("`{text}`: {error}"))
            }
            None => render(&TEXTS, text, scope).map(Json::String),
        },
        Json::Array(items) => items.iter().map(|item| filled(item, scope)).collect(),
        Json::Object(fields) => {
            let mut all = Map::new();
            for (name, field) in fields {
                let value = filled(field, scope)?;
                if field.is_null() || !value.is_null() {
                    all.insert(name.clone(), value);
                }
            }
            Ok(Json::Object(all))
        }
        other => Ok(other.clone()),
    }
}

impl Decode for JsonTemplate {
    fn decode(value: &Json, cx: &mut Cx) -> Option<Self> {
        is_right(value, cx).then(|| Self(value.clone()))
    }
}

impl Schema for JsonTemplate {
    fn schema(_: &mut Schemas) -> Json {
        json!({})
    }
}

/// Whether all texts are templates; each that is not is reported.
fn is_right(value: &Json, cx: &mut Cx) -> bool {
    match value {
        Json::String(text) => match syntax_error(text) {
            None => true,
            Some(error) => cx.value_error::<()>(error, value).is_some(),
        },
        Json::Array(items) => {
            let each = items.iter().enumerate();
            each.fold(true, |right, (index, item)| {
                cx.index(index, |cx| is_right(item, cx).then_some(())).is_some() && right
            })
        }
        Json::Object(fields) => fields.iter().fold(true, |right, (name, field)| {
            cx.at(name.clone(), |cx| is_right(field, cx).then_some(()))
                .is_some()
                && right
        }),
        _ => true,
    }
}

/// How a value is read from an answer: a JSON pointer (RFC 6901), or an expression over `item`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reader {
    /// Such as `/data/0/id`; empty: the whole.
    Pointer(String),
    /// The inner part of `{{ item.size / 1024 }}`.
    Expression(String),
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(pointer) if pointer.is_empty() => f.write_str("the whole answer"),
            Self::Pointer(pointer) => write!(f, "`{pointer}`"),
            Self::Expression(expression) => write!(f, "`{{{{ {expression} }}}}`"),
        }
    }
}

impl Reader {
    /// The value; `None`: there is none, or it is null.
    pub(crate) fn find(&self, item: &Item<'_>) -> Option<Json> {
        self.read(item).ok().filter(|value| !value.is_null())
    }

    /// The value, null as well.
    ///
    /// # Errors
    /// There is none: which was looked for.
    pub(crate) fn read(&self, item: &Item<'_>) -> Result<Json, String> {
        match self {
            Self::Pointer(pointer) => {
                let found = item.json.pointer(pointer).cloned();
                found.ok_or_else(|| format!("{self} finds nothing"))
            }
            Self::Expression(expression) => {
                let value = evaluate(expression, &item.scope)?;
                match value.kind() {
                    ValueKind::Undefined => Err(format!("{self} finds nothing")),
                    _ => serde_json::to_value(value).map_err(|error| format!("{self}: {error}")),
                }
            }
        }
    }

    /// The value as a text; nothing that is empty.
    pub(crate) fn text(&self, item: &Item<'_>) -> Option<String> {
        text_of(&self.find(item)?).filter(|text| !text.is_empty())
    }

    /// The value as a number, which may stand in a text.
    pub(crate) fn number(&self, item: &Item<'_>) -> Option<f64> {
        let number = match self.find(item)? {
            Json::Number(number) => number.as_f64(),
            Json::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.filter(|number| number.is_finite())
    }

    /// Whether it is there and neither false, 0 nor empty.
    pub(crate) fn is_true(&self, item: &Item<'_>) -> bool {
        self.find(item)
            .is_some_and(|value| Value::from_serialize(value).is_true())
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::Pointer(String::new())
    }
}

/// Texts, numbers and switches as texts.
pub(crate) fn text_of(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

impl Decode for Reader {
    fn decode(value: &Json, cx: &mut Cx) -> Option<Self> {
        let source = String::decode(value, cx)?;
        if source.is_empty() || source.starts_with('/') {
            return Some(Self::Pointer(source));
        }
        let Some(expression) = sole_expression(&source) else {
            let text = "it is neither a JSON pointer, which begins with `/`, nor one expression in `{{ }}`";
            return cx.value_error(text, value);
        };
        match VALUES.compile_expression(expression) {
            Ok(_) => Some(Self::Expression(expression.to_owned())),
            Err(error) => cx.value_error(told(&error), value),
        }
    }
}

impl Schema for Reader {
    fn schema(_: &mut Schemas) -> Json {
        json!({"type": "string", "pattern": r"^(/.*|\s*\{\{.*\}\}\s*)?$"})
    }
}

fn evaluate(expression: &str, scope: &Scope) -> Result<Value, String> {
    let compiled = VALUES.compile_expression(expression);
    let value = compiled.and_then(|compiled| compiled.eval(scope.values()));
    value.map_err(|error| format!("`{{{{ {expression} }}}}`: {}", told(&error)))
}

/// The inner part of a text that is one placeholder and nothing else.
fn sole_expression(text: &str) -> Option<&str> {
    let inner = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let is_sole = !inner.contains("{{") && !inner.contains("}}");
    is_sole.then_some(inner.trim())
}

/// What is wrong with a template; `None`: nothing.
fn syntax_error(source: &str) -> Option<String> {
    TEXTS.template_from_str(source).err().map(|error| told(&error))
}

/// What the template language says, without where, which is told by the place in the file.
fn told(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// The names that a text of a manifest uses and does not define, each with the field that it asks for: `offer.type`.
pub(crate) fn names_in(source: &str) -> HashSet<String> {
    match TEXTS.template_from_str(source) {
        Ok(template) => template.undeclared_variables(true),
        Err(_) => HashSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use dstack_decode::decode_strict;

    use super::*;

    fn scope() -> Scope {
        let offer = json!({"type": "a b/c", "gpus": 0, "keys": ["k1", "k2"]});
        Scope::default().with("offer", offer).with("nothing", Json::Null)
    }

    fn template(source: &str) -> Template {
        decode_strict(&json!(source)).unwrap()
    }

    #[test]
    fn what_is_not_there_is_an_error_in_texts_and_left_out_of_bodies() {
        assert_eq!(template("x-{{ offer.gpus }}").text(&scope()).unwrap(), "x-0");
        for missing in ["x-{{ other }}", "x-{{ offer.other }}", "{{ offer.a.b }}"] {
            template(missing).text(&scope()).unwrap_err();
        }
        let body = json!({"keys": "{{ offer.keys }}", "none": "{{ offer.other }}", "null": null, "on": true,
            "deep": [{"text": "{{ offer.gpus }} GPUs", "none": "{{ nothing }}"}]});
        let body: JsonTemplate = decode_strict(&body).unwrap();
        assert_eq!(
            body.json(&scope()).unwrap(),
            json!({"keys": ["k1", "k2"], "null": null, "on": true, "deep": [{"text": "0 GPUs"}]})
        );
    }

    #[test]
    fn a_value_is_one_part_of_a_path() {
        let path = |id: Json| template("v2/{{ id }}/x").path(&Scope::default().with("id", id));
        assert_eq!(path(json!("a b/c?d")).unwrap(), "v2/a%20b%2Fc%3Fd/x");
        assert_eq!(path(json!(17)).unwrap(), "v2/17/x");
        for odd in [json!(""), json!(".."), json!("."), Json::Null] {
            path(odd).unwrap_err();
        }
    }

    #[test]
    fn values_are_read_by_pointers_and_expressions() {
        let item = json!({"a": {"b/c": [1, 2.5, "3"]}, "null": null, "text": "", "memory": 2048,
            "nets": [{"kind": "private", "ip": "10.0.0.1"}, {"kind": "public", "ip": "192.0.2.1"}], "model": "nvidia_rtx6000_ada"});
        let item = Item::new(&item, &scope());
        let read = |source: &str| decode_strict::<Reader>(&json!(source)).unwrap().find(&item);
        for (source, value) in [
            ("/a/b~1c/1", json!(2.5)),
            ("/null", Json::Null),
            ("/other/x", Json::Null),
            ("{{ item.memory / 1024 }}", json!(2.0)),
            ("{{ item.other.deep.x }}", Json::Null),
            (
                "{{ (item.nets | selectattr('kind', 'equalto', 'public') | first).ip }}",
                json!("192.0.2.1"),
            ),
            (
                "{{ (item.model | split('_') | list)[1:] | join }}",
                json!("rtx6000ada"),
            ),
            ("{{ offer.gpus }}", json!(0)),
        ] {
            assert_eq!(
                read(source),
                Some(value).filter(|value| !value.is_null()),
                "{source}"
            );
        }
        let reader: Reader = decode_strict(&json!("/a/b~1c/2")).unwrap();
        assert_eq!(
            (reader.number(&item), reader.text(&item).unwrap()),
            (Some(3.0), "3".to_owned())
        );
        let reader: Reader = decode_strict(&json!("/a/x")).unwrap();
        assert_eq!(reader.read(&item).unwrap_err(), "`/a/x` finds nothing");
        assert!(!reader.is_true(&item));
    }

    #[test]
    fn what_is_no_template_is_refused_where_it_stands() {
        for wrong in ["data/0", "{{ a }}{{ b }}", "{{ item. }}"] {
            decode_strict::<Reader>(&json!(wrong)).unwrap_err();
        }
        let problems = decode_strict::<JsonTemplate>(&json!({"a": [1, "{{ x"]})).unwrap_err();
        assert_eq!(problems[0].path(), "a[1]");
    }
}
