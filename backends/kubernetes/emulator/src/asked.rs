use axum::http::Method;

/// A request that was answered, as roles see it: <https://kubernetes.io/docs/reference/access-authn-authz/authorization/>.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// `get`, `list`, `create`, `patch` or `delete`.
    pub verb: &'static str,
    /// Plural name of the kind of objects, such as `pods`.
    pub resource: String,
    /// In one namespace, and not in all.
    pub is_namespaced: bool,
    /// How many objects a list had.
    pub listed: usize,
}

pub(crate) fn verb(method: &Method, is_named: bool) -> &'static str {
    match (method.as_str(), is_named) {
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => "none",
    }
}
