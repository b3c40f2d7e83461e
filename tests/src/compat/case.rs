//! One recorded exchange.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// A recorded exchange, as its file has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    #[serde(rename = "case")]
    pub name: String,
    pub suite: String,
    pub seq: u64,
    pub poll: Option<Poll>,
    /// JSON pointers, `*` for any key or index, whose values are free.
    #[serde(default)]
    pub varies: Vec<String>,
    #[serde(default = "yes")]
    pub replayable: bool,
    pub request: Request,
    pub response: Response,
}

/// Repeat the request until the value at `path` is one of `values`.
#[derive(Debug, Clone, Deserialize)]
pub struct Poll {
    /// Where the value is in the answer's JSON, with dots between the keys.
    pub path: String,
    pub values: Vec<Value>,
    /// Seconds after which polling gives up.
    pub timeout: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Request {
    pub method: String,
    pub path: String,
    #[serde(default)]
    pub query: Value,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Not to be told from an absent one by `Option`: `null` is a body, too.
    #[serde(default, deserialize_with = "present")]
    pub json: Option<Value>,
    pub text: Option<String>,
    pub base64: Option<String>,
    /// Field name, file name, number of zero bytes.
    pub multipart_zeros: Option<(String, String, usize)>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Response {
    pub status: u16,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "present")]
    pub json: Option<Value>,
    pub text: Option<String>,
    pub base64: Option<String>,
}

fn yes() -> bool {
    true
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads the exchanges of several folders and merges them: suites by name, each in the order of `seq`.
/// Files that hold no exchange (fixtures, command lines) and shape examples are left out.
pub fn load(folders: &[PathBuf]) -> Result<BTreeMap<String, Vec<Case>>> {
    let mut suites: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for folder in folders {
        for file in json_files(folder)? {
            if let Some(case) = read(&file)?.filter(|case| case.replayable) {
                suites.entry(case.suite.clone()).or_default().push(case);
            }
        }
    }
    for cases in suites.values_mut() {
        cases.sort_by(|a, b| (a.seq, &a.name).cmp(&(b.seq, &b.name)));
        // The same exchange in two folders is one.
        cases.dedup_by(|a, b| a.seq == b.seq && a.name == b.name);
    }
    Ok(suites)
}

fn read(file: &Path) -> Result<Option<Case>> {
    let value: Value = serde_json::from_slice(&fs_err::read(file)?)
        .with_context(|| format!("{} is not JSON", file.display()))?;
    if value.get("suite").is_none() || value.get("request").is_none() {
        return Ok(None);
    }
    let case = serde_json::from_value(value)
        .with_context(|| format!("{} is no recorded exchange", file.display()))?;
    Ok(Some(case))
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "fixtures") {
                files.extend(json_files(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
