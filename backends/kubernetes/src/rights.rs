//! What the user of a kubeconfig must be allowed to do: the roles of `docs/backends/kubernetes.md`.

/// A right to do something to a kind of objects.
#[derive(Debug)]
pub(crate) struct Right {
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// In all namespaces; else in that of the context.
    pub(crate) is_of_cluster: bool,
}

/// All without which jobs or volumes fail. Namespaces are made and seen where that is allowed.
pub(crate) const RIGHTS: [Right; 6] = [
    of_cluster("nodes", &["get", "list"]),
    of_cluster("pods", &["list"]),
    in_namespace("pods", &["get", "list", "create", "delete"]),
    in_namespace("services", &["get", "list", "create", "delete"]),
    in_namespace("persistentvolumeclaims", &["get", "list", "create", "delete"]),
    in_namespace("secrets", &["get", "list", "create", "patch", "delete"]),
];

const fn of_cluster(resource: &'static str, verbs: &'static [&'static str]) -> Right {
    Right {
        resource,
        verbs,
        is_of_cluster: true,
    }
}

const fn in_namespace(resource: &'static str, verbs: &'static [&'static str]) -> Right {
    Right {
        resource,
        verbs,
        is_of_cluster: false,
    }
}
