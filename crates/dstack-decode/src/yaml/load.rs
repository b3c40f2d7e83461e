//! From YAML text to a JSON value, keeping where each node stands.

use std::rc::Rc;

use indexmap::IndexMap;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use super::scalar::{Scalar, resolve};
use crate::Loc;

/// More nodes than any configuration has; aliases can multiply a small text beyond all memory.
const MAX_NODES: usize = 200_000;
/// Deeper than any configuration is.
const MAX_DEPTH: usize = 128;

/// A place in a file, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the line, from 1.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// A text that is no YAML, or says what no configuration can say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// What is wrong.
    pub message: String,
    /// Where the reader stopped.
    pub position: Position,
}

/// A document and where its nodes stand.
#[derive(Debug, Clone)]
pub struct Document {
    /// The document as JSON; mappings keep the order of their keys.
    pub value: Value,
    /// Where keys and values stand in the text.
    pub spans: Spans,
}

/// Where the nodes of a document stand.
#[derive(Debug, Clone)]
pub struct Spans {
    root: Rc<Node>,
    repeated: Rc<[(String, Position)]>,
}

#[derive(Debug)]
struct Node {
    position: Position,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Rc<Node>>),
    Mapping(IndexMap<String, (Position, Rc<Node>)>),
}

impl Spans {
    /// Keys that a mapping has once more, and where: of equal keys the last one counts.
    pub fn repeated_keys(&self) -> &[(String, Position)] {
        &self.repeated
    }

    /// Where the value at `path` stands, or the nearest node around it.
    pub fn value(&self, path: &[Loc]) -> Position {
        self.walk(path).0
    }

    /// Where the key at the end of `path` stands, or the nearest node around it.
    pub fn key(&self, path: &[Loc]) -> Position {
        self.walk(path).1
    }

    /// Positions of the value and of its key.
    fn walk(&self, path: &[Loc]) -> (Position, Position) {
        let mut node = &self.root;
        let mut found = (node.position, node.position);
        for step in path {
            let next = match (step, &node.content) {
                (Loc::Member(_), _) => continue,
                (Loc::Key(key), Content::Mapping(entries)) => {
                    entries.get(key.as_ref()).map(|(key, node)| (*key, node))
                }
                (Loc::Index(index), Content::List(items)) => {
                    items.get(*index).map(|node| (node.position, node))
                }
                _ => None,
            };
            let Some((key, below)) = next else {
                break;
            };
            node = below;
            found = (node.position, key);
        }
        found
    }
}

/// Reads one document.
///
/// # Errors
/// The first problem.
pub fn load(text: &str) -> Result<Document, SyntaxError> {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| SyntaxError {
            message: format!("not valid YAML: {}", error.info()),
            position: Position {
                line: error.marker().line().max(1),
                column: error.marker().col().saturating_add(1),
            },
        })?;
        loader.event(event, span)?;
    }
    let root = loader.root.unwrap_or_else(|| {
        Rc::new(Node {
            position: Position { line: 1, column: 1 },
            content: Content::Scalar(Value::Null),
        })
    });
    Ok(Document {
        value: root.to_value(),
        spans: Spans {
            root,
            repeated: loader.repeated.into(),
        },
    })
}

impl Node {
    fn to_value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(|item| item.to_value()).collect()),
            Content::Mapping(entries) => {
                let pairs = entries
                    .iter()
                    .map(|(key, (_, node))| (key.clone(), node.to_value()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// Nodes in it, itself included.
    fn count(&self) -> usize {
        let below: usize = match &self.content {
            Content::Scalar(_) => 0,
            Content::List(items) => items.iter().map(|item| item.count()).sum(),
            Content::Mapping(entries) => entries.values().map(|(_, node)| node.count()).sum(),
        };
        below.saturating_add(1)
    }
}

#[derive(Default)]
struct Loader {
    open: Vec<Open>,
    anchors: Vec<(usize, Option<Rc<Node>>)>,
    root: Option<Rc<Node>>,
    repeated: Vec<(String, Position)>,
    nodes: usize,
}

/// A list or mapping that is not yet closed.
struct Open {
    position: Position,
    anchor: usize,
    parts: Parts,
}

enum Parts {
    List(Vec<Rc<Node>>),
    Mapping {
        entries: IndexMap<String, (Position, Rc<Node>)>,
        merged: Vec<Rc<Node>>,
        key: Option<Key>,
    },
}

enum Key {
    Text(String, Position),
    Merge,
}

impl Loader {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let position = Position {
            line: span.start.line().max(1),
            column: span.start.col().saturating_add(1),
        };
        match event {
            Event::DocumentStart(_) if self.root.is_some() => Err(error(
                "a configuration is a single document, but another one starts here",
                position,
            )),
            Event::Scalar(text, style, anchor, tag) => {
                if let Some(Parts::Mapping { key: key @ None, .. }) =
                    self.open.last_mut().map(|open| &mut open.parts)
                {
                    *key = Some(read_key(&text, style, tag.as_deref(), position)?);
                    return Ok(());
                }
                let value = read_scalar(&text, style, tag.as_deref(), position)?;
                let node = Rc::new(Node {
                    position,
                    content: Content::Scalar(value),
                });
                self.anchor(anchor, Some(&node));
                self.put(node)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", position)?;
                self.open(anchor, position, Parts::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", position)?;
                let parts = Parts::Mapping {
                    entries: IndexMap::new(),
                    merged: Vec::new(),
                    key: None,
                };
                self.open(anchor, position, parts)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => {
                let found = self
                    .anchors
                    .iter()
                    .rev()
                    .find(|(id, _)| *id == anchor)
                    .map(|(_, node)| node.clone());
                match found {
                    Some(Some(node)) => {
                        self.nodes = self.nodes.saturating_add(node.count());
                        self.put(node)
                    }
                    _ => Err(error("an alias cannot stand inside of what it names", position)),
                }
            }
            _ => Ok(()),
        }
    }

    fn anchor(&mut self, id: usize, node: Option<&Rc<Node>>) {
        if id != 0 {
            self.anchors.push((id, node.cloned()));
        }
    }

    fn open(&mut self, anchor: usize, position: Position, parts: Parts) -> Result<(), SyntaxError> {
        if let Some(Parts::Mapping { key: None, .. }) = self.open.last().map(|open| &open.parts) {
            return Err(error("a key must be a text, not a list or mapping", position));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(error("nested too deeply", position));
        }
        self.anchor(anchor, None);
        self.open.push(Open {
            position,
            anchor,
            parts,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), SyntaxError> {
        let Some(Open {
            position,
            anchor,
            parts,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let content = match parts {
            Parts::List(items) => Content::List(items),
            Parts::Mapping { entries, merged, .. } => Content::Mapping(merge(entries, &merged)),
        };
        let node = Rc::new(Node { position, content });
        self.anchor(anchor, Some(&node));
        self.put(node)
    }

    /// Puts a finished node where it belongs.
    fn put(&mut self, node: Rc<Node>) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MAX_NODES {
            return Err(error("too many nodes", node.position));
        }
        match self.open.last_mut().map(|open| &mut open.parts) {
            None => self.root = Some(node),
            Some(Parts::List(items)) => items.push(node),
            Some(Parts::Mapping { entries, merged, key }) => match key.take() {
                Some(Key::Text(text, at)) => {
                    // Of equal keys the last one counts, at the first one's place.
                    if entries.insert(text.clone(), (at, node)).is_some() {
                        self.repeated.push((text, at));
                    }
                }
                Some(Key::Merge) => add_merged(merged, &node)?,
                None => return Err(error("a key must be a text, not an alias", node.position)),
            },
        }
        Ok(())
    }
}

fn error(message: impl Into<String>, position: Position) -> SyntaxError {
    SyntaxError {
        message: message.into(),
        position,
    }
}

fn add_merged(merged: &mut Vec<Rc<Node>>, node: &Rc<Node>) -> Result<(), SyntaxError> {
    let refused = |node: &Node| Err(error("`<<` takes a mapping or a list of mappings", node.position));
    match &node.content {
        Content::Mapping(_) => merged.push(Rc::clone(node)),
        Content::List(items) => {
            // The first mapping of the list wins, so it is laid on last.
            for item in items.iter().rev() {
                match item.content {
                    Content::Mapping(_) => merged.push(Rc::clone(item)),
                    _ => return refused(item),
                }
            }
        }
        Content::Scalar(_) => return refused(node),
    }
    Ok(())
}

type Entries = IndexMap<String, (Position, Rc<Node>)>;

/// Merged keys stand first; the mapping's own keys win.
fn merge(own: Entries, merged: &[Rc<Node>]) -> Entries {
    if merged.is_empty() {
        return own;
    }
    let mut all = Entries::new();
    for node in merged {
        if let Content::Mapping(entries) = &node.content {
            all.extend(
                entries
                    .iter()
                    .map(|(key, (at, node))| (key.clone(), (*at, Rc::clone(node)))),
            );
        }
    }
    all.extend(own);
    all
}

fn read_key(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    position: Position,
) -> Result<Key, SyntaxError> {
    if style != ScalarStyle::Plain || tag.is_some() {
        return Ok(Key::Text(text.to_owned(), position));
    }
    let quoted = |what: &str| {
        Err(error(
            format!("the key `{text}` is {what} in YAML: put it in quotes"),
            position,
        ))
    };
    match resolve(text) {
        Scalar::Merge => Ok(Key::Merge),
        Scalar::Text => Ok(Key::Text(text.to_owned(), position)),
        Scalar::Int(int) => Ok(Key::Text(int.to_string(), position)),
        Scalar::Float(float) => Ok(Key::Text(dstack_units::number::float_repr(float), position)),
        Scalar::Bool(_) => quoted("a boolean"),
        Scalar::Null => quoted("nothing"),
        Scalar::Timestamp => quoted("a date"),
    }
}

fn read_scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    position: Position,
) -> Result<Value, SyntaxError> {
    let meaning = match tag_name(tag) {
        None if style == ScalarStyle::Plain => resolve(text),
        None | Some("str") => Scalar::Text,
        Some("null") => Scalar::Null,
        Some(name @ ("bool" | "int" | "float")) => match (name, resolve(text)) {
            ("bool", meaning @ Scalar::Bool(_))
            | ("int", meaning @ Scalar::Int(_))
            | ("float", meaning @ (Scalar::Float(_) | Scalar::Int(_))) => meaning,
            _ => return Err(error(format!("`{text}` is no {name}"), position)),
        },
        Some(name) => return Err(error(format!("the tag `{name}` is not known here"), position)),
    };
    match meaning {
        Scalar::Null => Ok(Value::Null),
        Scalar::Bool(flag) => Ok(Value::Bool(flag)),
        Scalar::Text | Scalar::Merge => Ok(Value::String(text.to_owned())),
        Scalar::Int(int) => Ok(Value::Number(integer(int))),
        Scalar::Float(float) => match Number::from_f64(float) {
            Some(number) => Ok(Value::Number(number)),
            None => Err(error(format!("`{text}` is not a finite number"), position)),
        },
        Scalar::Timestamp => Err(error(
            format!("`{text}` is a date in YAML, which no configuration takes: put it in quotes"),
            position,
        )),
    }
}

/// As an integer if it fits, else as a float.
#[allow(clippy::cast_precision_loss)]
fn integer(int: i128) -> Number {
    if let Ok(small) = i64::try_from(int) {
        return Number::from(small);
    }
    match u64::try_from(int) {
        Ok(large) => Number::from(large),
        Err(_) => Number::from_f64(int as f64).unwrap_or_else(|| Number::from(i64::MAX)),
    }
}

/// The name of a tag: `str` of `!!str`; `None` without one.
fn tag_name(tag: Option<&Tag>) -> Option<&str> {
    match tag {
        None => None,
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Some("str"),
        Some(tag) if tag.is_yaml_core_schema() => Some(&tag.suffix),
        Some(tag) => Some(
            tag.suffix
                .strip_prefix("tag:yaml.org,2002:")
                .unwrap_or(&tag.suffix),
        ),
    }
}

fn check_tag(tag: Option<&Tag>, expected: &str, position: Position) -> Result<(), SyntaxError> {
    match tag_name(tag) {
        None => Ok(()),
        Some(name) if name == expected => Ok(()),
        Some(name) => Err(error(format!("the tag `{name}` is not known here"), position)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        load(text).unwrap().value
    }

    fn refusal(text: &str) -> String {
        let error = load(text).unwrap_err();
        format!(
            "{}:{}: {}",
            error.position.line, error.position.column, error.message
        )
    }

    #[test]
    fn documents() {
        assert_eq!(
            value("a: 1\nb: [yes, '1', ~]\n"),
            json!({"a": 1, "b": [true, "1", null]})
        );
        assert_eq!(value(""), Value::Null);
        assert_eq!(value("a: |\n  x\n  y\n"), json!({"a": "x\ny\n"}));
        assert_eq!(value("1: a\n2.50: b"), json!({"1": "a", "2.5": "b"}));
        assert_eq!(value("a: 1\na: 2"), json!({"a": 2}));
        assert_eq!(value("a: !!str 12"), json!({"a": "12"}));
    }

    #[test]
    fn anchors_and_merges() {
        assert_eq!(value("a: &x [1]\nb: *x"), json!({"a": [1], "b": [1]}));
        let text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nit:\n  <<: [*b, *o]\n  x: 9\n";
        assert_eq!(value(text)["it"], json!({"y": 2, "z": 4, "x": 9}));
        let keys: Vec<String> = value(text)["it"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["y", "z", "x"]);
    }

    #[test]
    fn refusals() {
        assert_eq!(
            refusal("a: 2026-01-31"),
            "1:4: `2026-01-31` is a date in YAML, which no configuration takes: put it in quotes"
        );
        assert_eq!(
            refusal("a: 1\non: 2"),
            "2:1: the key `on` is a boolean in YAML: put it in quotes"
        );
        assert_eq!(refusal("a: .inf"), "1:4: `.inf` is not a finite number");
        assert!(refusal("a: [1").contains("not valid YAML"));
        assert!(refusal("a: 1\n---\nb: 2").contains("single document"));
        assert!(refusal("a: !x 1").contains("tag"));
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(refusal(&deep).contains("nested too deeply"), "{}", refusal(&deep));
        assert!(refusal("a: &x [*x]").contains("alias"));
    }

    #[test]
    fn aliases_cannot_explode() {
        let mut text = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(refusal(&text).contains("too many nodes"));
    }

    #[test]
    fn positions() {
        let document = load("a:\n  - b: 1\n    c: x\n").unwrap();
        let path = [Loc::Key("a".into()), Loc::Index(0), Loc::Key("c".into())];
        assert_eq!(document.spans.value(&path), Position { line: 3, column: 8 });
        assert_eq!(document.spans.key(&path), Position { line: 3, column: 5 });
        let missing = [Loc::Key("a".into()), Loc::Index(7)];
        assert_eq!(document.spans.value(&missing), Position { line: 2, column: 3 });
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-c:\\-\\[\\]{}&*!<>|'\" \n0-9.]{0,40}") {
            let _ = load(&text);
        }
    }
}
