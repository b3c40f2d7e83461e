//! Environment variables: read here only.

/// The value of a variable; `None` when it is unset, empty or not UTF-8.
#[allow(clippy::disallowed_methods)] // the one place
pub fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a flag is on: set to any non-empty value (dstack 0.22.5's rule for flags).
pub fn flag(name: &str) -> bool {
    var(name).is_some()
}

/// All variables, for passing on to a child process.
#[allow(clippy::disallowed_methods)] // the one place
pub fn all() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect()
}

/// The home directory of the current user: `HOME`, which every shell sets.
pub fn home() -> Option<std::path::PathBuf> {
    var("HOME").map(Into::into)
}
