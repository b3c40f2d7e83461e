//! `~/.dstack/config.yml`, the file of the command line: projects, their servers and tokens. The command line and the server,
//! which adds itself at its start, read and write it in this form.

use std::fmt;

use serde_json::Value;

use crate::yaml::{self, SyntaxError};

/// A project of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientProject {
    /// The name, which is that on the server.
    pub name: String,
    /// The URL of the server.
    pub url: String,
    /// The user's token.
    pub token: String,
    /// Whether it is the default one.
    pub default: bool,
}

/// The token is not printed.
impl fmt::Debug for ClientProject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientProject")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}

/// Why the file cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum ClientConfigError {
    /// It is no YAML: with line and column.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// It does not hold what it should.
    #[error("{0}")]
    Content(String),
}

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientConfig {
    projects: Vec<ClientProject>,
}

impl ClientConfig {
    /// Parses the file.
    ///
    /// # Errors
    /// It cannot be understood.
    pub fn parse(text: &str) -> Result<Self, ClientConfigError> {
        let document = yaml::load(text)?;
        let projects = projects(&document.value).map_err(ClientConfigError::Content)?;
        Ok(Self { projects })
    }

    /// Returns the file's text, as dstack 0.22.5 writes it: other keys than those of [`ClientProject`] are not kept.
    pub fn to_yaml(&self) -> String {
        if self.projects.is_empty() {
            return "projects: []\n".to_owned();
        }
        let entries = self.projects.iter().map(|project| {
            format!(
                "- default: {}\n  name: {}\n  token: {}\n  url: {}\n",
                project.default,
                scalar(&project.name),
                scalar(&project.token),
                scalar(&project.url)
            )
        });
        format!("projects:\n{}", entries.collect::<String>())
    }

    /// Returns all projects, in the file's order.
    pub fn projects(&self) -> &[ClientProject] {
        &self.projects
    }

    /// Returns the project of this name.
    pub fn project(&self, name: &str) -> Option<&ClientProject> {
        self.projects.iter().find(|project| project.name == name)
    }

    /// Returns the first project marked as default.
    pub fn default_project(&self) -> Option<&ClientProject> {
        self.projects.iter().find(|project| project.default)
    }

    /// Adds or updates a project. The first one becomes the default; a default stays one.
    pub fn set(&mut self, name: &str, url: &str, token: &str, default: bool) {
        if default {
            for project in &mut self.projects {
                project.default = false;
            }
        }
        let is_first = self.projects.is_empty();
        if let Some(project) = self.projects.iter_mut().find(|project| project.name == name) {
            url.clone_into(&mut project.url);
            token.clone_into(&mut project.token);
            project.default |= default;
            return;
        }
        self.projects.push(ClientProject {
            name: name.to_owned(),
            url: url.to_owned(),
            token: token.to_owned(),
            default: default || is_first,
        });
    }

    /// Removes a project; unknown names are left alone.
    pub fn remove(&mut self, name: &str) {
        self.projects.retain(|project| project.name != name);
    }
}

fn projects(value: &Value) -> Result<Vec<ClientProject>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    if !value.is_object() {
        return Err("it holds no `projects`".to_owned());
    }
    let list = match value.get("projects") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("`projects` is not a list".to_owned()),
    };
    list.iter().map(project).collect()
}

fn project(value: &Value) -> Result<ClientProject, String> {
    let text = |key: &str| match value.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => Err(format!("a project lacks `{key}`")),
    };
    Ok(ClientProject {
        name: text("name")?,
        url: text("url")?,
        token: text("token")?,
        default: value.get("default").and_then(Value::as_bool).unwrap_or(false),
    })
}

/// Returns a text as a YAML scalar: plain where that is safe, otherwise in double quotes.
fn scalar(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:@+".contains(c);
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(safe)
        && !text.ends_with(':')
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_default() {
        let mut config = ClientConfig::default();
        config.set("main", "http://127.0.0.1:3000", "t1", false);
        config.set("other", "http://127.0.0.1:3000", "t2", false);
        assert_eq!(config.default_project().unwrap().name, "main");
        config.set("other", "http://127.0.0.1:3001", "t3", true);
        config.set("other", "http://127.0.0.1:3002", "t4", false);
        assert_eq!(config.default_project().unwrap().url, "http://127.0.0.1:3002");
        let defaults = config.projects().iter().filter(|project| project.default);
        assert_eq!(defaults.count(), 1);
    }

    #[test]
    fn written_as_the_reference_writes_it_and_read_back() {
        let mut config = ClientConfig::default();
        config.set("main", "http://127.0.0.1:3000", "d3a8-x", true);
        config.set("2nd", "https://x.example/", "1234", false);
        let text = config.to_yaml();
        assert_eq!(
            text,
            "projects:\n- default: true\n  name: main\n  token: d3a8-x\n  url: http://127.0.0.1:3000\n\
             - default: false\n  name: \"2nd\"\n  token: \"1234\"\n  url: https://x.example/\n"
        );
        assert_eq!(ClientConfig::parse(&text).unwrap(), config);
        assert_eq!(ClientConfig::default().to_yaml(), "projects: []\n");
    }

    #[test]
    fn what_cannot_be_understood_is_an_error_and_not_empty() {
        for text in ["projects: 5", "projects:\n- name: x\n", "a: [b", "- a", "text"] {
            ClientConfig::parse(text).unwrap_err();
        }
        for text in ["", "# nothing yet\n", "repos: []\n", "projects:\n"] {
            assert_eq!(
                ClientConfig::parse(text).unwrap(),
                ClientConfig::default(),
                "{text}"
            );
        }
    }

    #[test]
    fn tokens_are_not_printed() {
        let mut config = ClientConfig::default();
        config.set("main", "http://h", "t0ken", true);
        let text = format!("{config:?}");
        assert!(text.contains("main") && !text.contains("t0ken"), "{text}");
    }
}
