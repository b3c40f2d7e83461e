//! The table of the host agent's routes: the agent serves what is in it, and nothing else.

use http::Method;

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Name and version of the agent: whether it answers at all.
    Healthcheck,
    /// Lets the agent end.
    Shutdown,
    /// Health of the GPUs.
    InstanceHealth,
    /// GPU vendor and driver.
    InstanceInfo,
    /// Binaries of the agents on the host.
    Components,
    /// Replaces one of them.
    InstallComponent,
    /// Ids and states of all tasks.
    Tasks,
    /// Starts a task.
    Submit,
    /// What the machine has.
    Host,
    /// Changes of all tasks as they happen.
    Stream,
    /// State of one task, with how it ended.
    Task,
    /// Ends a task.
    Terminate,
    /// Forgets a task.
    Remove,
    /// Prometheus text of a task's GPUs.
    Metrics,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `GET`, which stands for `HEAD` as well, or `POST`.
    pub method: Method,
    /// Path; a part `{id}` stands for the id of a task.
    pub path: &'static str,
    /// What it is about.
    pub endpoint: Endpoint,
    /// The longest answer that is read, in bytes: an agent is not to grow the server that asks it.
    pub max_answer: usize,
}

const KIB: usize = 1024;
/// A name, or a line of an error.
const LINE: usize = 4 * KIB;
/// A task with the message of its end, or what a machine has.
const ONE: usize = 256 * KIB;
/// All tasks, or the metrics of one.
const MANY: usize = 8 * KIB * KIB;

const fn route(method: Method, path: &'static str, endpoint: Endpoint, max_answer: usize) -> Route {
    Route {
        method,
        path,
        endpoint,
        max_answer,
    }
}

/// Every route that the agent serves; a request for any other is answered 404, or 405 where only the method is wrong.
pub const ROUTES: &[Route] = &[
    route(Method::GET, "/api/healthcheck", Endpoint::Healthcheck, LINE),
    route(Method::POST, "/api/shutdown", Endpoint::Shutdown, LINE),
    route(
        Method::GET,
        "/api/instance/health",
        Endpoint::InstanceHealth,
        64 * KIB,
    ),
    route(Method::GET, "/api/instance/info", Endpoint::InstanceInfo, LINE),
    route(Method::GET, "/api/components", Endpoint::Components, 64 * KIB),
    route(
        Method::POST,
        "/api/components/install",
        Endpoint::InstallComponent,
        LINE,
    ),
    route(Method::GET, "/api/tasks", Endpoint::Tasks, MANY),
    route(Method::POST, "/api/tasks", Endpoint::Submit, ONE),
    route(Method::GET, "/api/host", Endpoint::Host, ONE),
    route(Method::GET, "/api/stream", Endpoint::Stream, LINE),
    route(Method::GET, "/api/tasks/{id}", Endpoint::Task, ONE),
    route(
        Method::POST,
        "/api/tasks/{id}/terminate",
        Endpoint::Terminate,
        ONE,
    ),
    route(Method::POST, "/api/tasks/{id}/remove", Endpoint::Remove, LINE),
    route(Method::GET, "/metrics/tasks/{id}", Endpoint::Metrics, MANY),
];

impl Route {
    /// The id of the task that a path of this route names, empty for routes without one; `None`: another route's path.
    fn id_in<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (mut wanted, mut parts) = (self.path.trim_start_matches('/').split('/'), path.split('/'));
        let mut id = "";
        loop {
            match (wanted.next(), parts.next()) {
                (Some("{id}"), Some(part)) if !part.is_empty() => id = part,
                (Some(wanted), Some(part)) if wanted == part => {}
                (None, None) => return Some(id),
                _ => return None,
            }
        }
    }
}

/// The route of a request.
pub fn route_of(method: &Method, path: &str) -> Option<&'static Route> {
    let path = path.trim_start_matches('/');
    let mut routes = ROUTES.iter();
    routes.find(|route| route.method == *method && route.id_in(path).is_some())
}

/// What a request is about, and the id of the task it names, else an empty one.
///
/// # Errors
/// There is no such route: the methods that the path takes, as the header `Allow` lists them; empty: none.
pub fn find<'a>(method: &Method, path: &'a str) -> Result<(Endpoint, &'a str), &'static str> {
    let path = path.trim_start_matches('/');
    let wanted = match *method {
        Method::HEAD => Method::GET,
        _ => method.clone(),
    };
    let (mut gets, mut posts) = (false, false);
    for route in ROUTES {
        let Some(id) = route.id_in(path) else { continue };
        if route.method == wanted {
            return Ok((route.endpoint, id));
        }
        gets |= route.method == Method::GET;
        posts |= route.method == Method::POST;
    }
    Err(match (gets, posts) {
        (true, true) => "GET, HEAD, POST",
        (true, false) => "GET, HEAD",
        (false, true) => "POST",
        (false, false) => "",
    })
}

#[cfg(test)]
mod tests {
    use super::super::paths;
    use super::*;

    #[test]
    fn paths_find_their_routes() {
        let get = |path| find(&Method::GET, path);
        let post = |path| find(&Method::POST, path);
        assert_eq!(get("/api/tasks/1"), Ok((Endpoint::Task, "1")));
        assert_eq!(
            find(&Method::HEAD, "/api/healthcheck"),
            Ok((Endpoint::Healthcheck, ""))
        );
        assert_eq!(post("/api/tasks/1/remove"), Ok((Endpoint::Remove, "1")));
        assert_eq!(get("/metrics/tasks/1"), Ok((Endpoint::Metrics, "1")));
        assert_eq!(get("/api/tasks/1/remove"), Err("POST"));
        assert_eq!(find(&Method::DELETE, "/api/tasks"), Err("GET, HEAD, POST"));
        for path in ["/", "/api", "/api/tasks/", "/api/tasks/1/2/3", "/api/submit"] {
            assert_eq!(get(path), Err(""), "{path}");
        }
    }

    #[test]
    fn the_client_calls_routes_of_the_table() {
        for (method, path, endpoint) in [
            (Method::GET, paths::HEALTHCHECK.to_owned(), Endpoint::Healthcheck),
            (Method::POST, paths::SHUTDOWN.to_owned(), Endpoint::Shutdown),
            (
                Method::GET,
                paths::INSTANCE_HEALTH.to_owned(),
                Endpoint::InstanceHealth,
            ),
            (
                Method::GET,
                paths::INSTANCE_INFO.to_owned(),
                Endpoint::InstanceInfo,
            ),
            (Method::GET, paths::COMPONENTS.to_owned(), Endpoint::Components),
            (
                Method::POST,
                paths::COMPONENTS_INSTALL.to_owned(),
                Endpoint::InstallComponent,
            ),
            (Method::GET, paths::TASKS.to_owned(), Endpoint::Tasks),
            (Method::POST, paths::TASKS.to_owned(), Endpoint::Submit),
            (Method::GET, paths::HOST.to_owned(), Endpoint::Host),
            (Method::GET, paths::STREAM.to_owned(), Endpoint::Stream),
            (Method::GET, paths::task("1"), Endpoint::Task),
            (Method::POST, paths::terminate("1"), Endpoint::Terminate),
            (Method::POST, paths::remove("1"), Endpoint::Remove),
            (Method::GET, paths::metrics("1"), Endpoint::Metrics),
        ] {
            assert_eq!(
                find(&method, &path).map(|(found, _)| found),
                Ok(endpoint),
                "{path}"
            );
            let limit = route_of(&method, &path).unwrap().max_answer;
            assert!((1..=8 << 20).contains(&limit), "{path}");
        }
    }
}
