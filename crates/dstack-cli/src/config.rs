//! `~/.dstack/config.yml`: projects, their servers and tokens.

use std::path::{Path, PathBuf};

use dstack_system::Secret;
use serde_json::Value;

use crate::error::{CliError, ErrorKind};
use crate::fs;
use crate::yaml;

/// A project of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectConfig {
    /// The name, which is that on the server.
    pub name: String,
    /// The URL of the server.
    pub url: String,
    /// The user's token.
    pub token: Secret,
    /// Whether it is the default one.
    pub default: bool,
}

/// The file as far as it is valid.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    projects: Vec<ProjectConfig>,
}

impl Config {
    /// Reads the file. A missing one is empty; so is one with invalid content, whose problem is handed back.
    ///
    /// # Errors
    /// It exists but cannot be read.
    pub fn load(path: &Path) -> Result<(Self, Option<CliError>), CliError> {
        let empty = |projects| Self {
            path: path.to_owned(),
            projects,
        };
        let Some(text) = fs::read_if_exists(path)? else {
            return Ok((empty(Vec::new()), None));
        };
        let parsed = yaml::parse(&text)
            .and_then(|value| projects(&value).map_err(|text| CliError::new(ErrorKind::ClientConfig, text)));
        match parsed {
            Ok(projects) => Ok((empty(projects), None)),
            Err(error) => {
                let message = format!(
                    "{} is ignored: {}",
                    path.display(),
                    error.message().unwrap_or_default()
                );
                Ok((
                    empty(Vec::new()),
                    Some(
                        CliError::new(ErrorKind::ClientConfig, message)
                            .hint("repair or delete the file, then `dstack project add`"),
                    ),
                ))
            }
        }
    }

    /// All projects, in the file's order.
    pub fn projects(&self) -> &[ProjectConfig] {
        &self.projects
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The project of this name.
    pub fn project(&self, name: &str) -> Option<&ProjectConfig> {
        self.projects.iter().find(|project| project.name == name)
    }

    /// The first project marked as default.
    pub fn default_project(&self) -> Option<&ProjectConfig> {
        self.projects.iter().find(|project| project.default)
    }

    /// Adds or updates a project. The first one becomes the default; a default stays one.
    pub fn set(&mut self, name: &str, url: &str, token: Secret, default: bool) {
        if default {
            for project in &mut self.projects {
                project.default = false;
            }
        }
        let first = self.projects.is_empty();
        if let Some(project) = self.projects.iter_mut().find(|project| project.name == name) {
            url.clone_into(&mut project.url);
            project.token = token;
            project.default |= default;
            return;
        }
        self.projects.push(ProjectConfig {
            name: name.to_owned(),
            url: url.to_owned(),
            token,
            default: default || first,
        });
    }

    /// Removes a project.
    pub fn remove(&mut self, name: &str) {
        self.projects.retain(|project| project.name != name);
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The home directory cannot be written.
    pub fn save(&self) -> Result<(), CliError> {
        fs::replace(&self.path, self.to_yaml().as_bytes(), fs::Access::Private)
    }

    fn to_yaml(&self) -> String {
        if self.projects.is_empty() {
            return "projects: []\n".to_owned();
        }
        let entries: String = self
            .projects
            .iter()
            .map(|project| {
                format!(
                    "- default: {}\n  name: {}\n  token: {}\n  url: {}\n",
                    project.default,
                    scalar(&project.name),
                    scalar(project.token.expose()),
                    scalar(&project.url)
                )
            })
            .collect();
        format!("projects:\n{entries}")
    }
}

fn projects(value: &Value) -> Result<Vec<ProjectConfig>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let list = match value.get("projects") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("`projects` is not a list".to_owned()),
    };
    list.iter().map(project).collect()
}

fn project(value: &Value) -> Result<ProjectConfig, String> {
    let text = |key: &str| match value.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => Err(format!("a project lacks `{key}`")),
    };
    Ok(ProjectConfig {
        name: text("name")?,
        url: text("url")?,
        token: Secret::new(text("token")?),
        default: value.get("default").and_then(Value::as_bool).unwrap_or(false),
    })
}

/// A text as a YAML scalar: plain where that is safe, otherwise in double quotes.
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

    fn empty(folder: &Path) -> Config {
        Config::load(&folder.join(".dstack/config.yml")).unwrap().0
    }

    #[test]
    fn exactly_one_default() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = empty(folder.path());
        config.set("main", "http://127.0.0.1:3000", "t1".into(), false);
        config.set("other", "http://127.0.0.1:3000", "t2".into(), false);
        assert_eq!(config.default_project().unwrap().name, "main");
        config.set("other", "http://127.0.0.1:3001", "t3".into(), true);
        config.set("other", "http://127.0.0.1:3002", "t4".into(), false);
        assert_eq!(config.default_project().unwrap().url, "http://127.0.0.1:3002");
        assert_eq!(
            config.projects().iter().filter(|project| project.default).count(),
            1
        );
    }

    #[test]
    fn written_as_the_reference_writes_it_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = empty(folder.path());
        config.set("main", "http://127.0.0.1:3000", "d3a8-x".into(), true);
        config.set("2nd", "https://x.example/", "1234".into(), false);
        config.save().unwrap();
        let text = fs_err::read_to_string(config.path()).unwrap();
        assert_eq!(
            text,
            "projects:\n- default: true\n  name: main\n  token: d3a8-x\n  url: http://127.0.0.1:3000\n\
             - default: false\n  name: \"2nd\"\n  token: \"1234\"\n  url: https://x.example/\n"
        );
        let (again, problem) = Config::load(config.path()).unwrap();
        assert_eq!(again.projects(), config.projects());
        assert!(problem.is_none());
    }

    #[test]
    fn invalid_content_counts_as_empty_and_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yml");
        for text in ["projects: 5", "projects:\n- name: x\n", "a: [b"] {
            fs::replace(&path, text.as_bytes(), fs::Access::Private).unwrap();
            let (config, problem) = Config::load(&path).unwrap();
            assert!(config.projects().is_empty() && problem.is_some(), "{text}");
        }
        fs::replace(&path, b"repos: []\n", fs::Access::Private).unwrap();
        assert!(Config::load(&path).unwrap().1.is_none());
    }
}
