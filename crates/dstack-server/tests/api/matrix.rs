//! Who may call what: every route of the table, by every kind of caller.

use dstack_api::{Body as Kind, Guard, Method, ROUTES, RouteInfo};
use serde_json::json;

use super::{ADMIN, Server, request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Anonymous,
    WrongToken,
    Stranger,
    User,
    Manager,
    ProjectAdmin,
    GlobalAdmin,
}

const CALLERS: [Caller; 7] = [
    Caller::Anonymous,
    Caller::WrongToken,
    Caller::Stranger,
    Caller::User,
    Caller::Manager,
    Caller::ProjectAdmin,
    Caller::GlobalAdmin,
];

/// Whether the guard lets the caller through, in a private project, as the reference's dependency classes do.
fn passes(guard: Guard, caller: Caller) -> bool {
    use Caller as C;
    match guard {
        Guard::Anyone => true,
        Guard::SshProxyToken | Guard::MetricsToken => false,
        _ if matches!(caller, C::Anonymous | C::WrongToken) => false,
        Guard::User | Guard::Importer | Guard::ImporterOrPublic => true,
        Guard::GlobalAdmin => caller == C::GlobalAdmin,
        Guard::Member | Guard::MemberOrPublic | Guard::MemberSelf => caller != C::Stranger,
        Guard::Manager | Guard::ManagerOrPublic => {
            matches!(caller, C::Manager | C::ProjectAdmin | C::GlobalAdmin)
        }
        Guard::Admin => matches!(caller, C::ProjectAdmin | C::GlobalAdmin),
    }
}

pub(super) fn path_of(route: &RouteInfo) -> String {
    route
        .path
        .replace("{project_name}", "team")
        .replace("{backend_name}", "aws")
        .replace("{provider}", "okta")
        .replace("{run_name}", "x")
}

#[tokio::test]
async fn every_route_lets_through_whom_its_guard_names_and_nobody_else() {
    let server = Server::new().await;
    let served = handlers_of(&server);
    for name in ["stranger", "user", "manager", "padmin"] {
        server.user(name).await;
    }
    server
        .post(ADMIN, "/api/projects/create", json!({"project_name": "team"}))
        .await
        .ok();
    let members = json!({"members": [
        {"username": "user", "project_role": "user"},
        {"username": "manager", "project_role": "manager"},
        {"username": "padmin", "project_role": "admin"},
    ]});
    server
        .post(ADMIN, "/api/projects/team/add_members", members)
        .await
        .ok();
    for route in ROUTES.iter().filter(|route| served.contains(&route.name)) {
        for caller in CALLERS {
            let token = match caller {
                Caller::Anonymous => None,
                Caller::WrongToken => Some("nobody's"),
                Caller::Stranger => Some("stranger-token"),
                Caller::User => Some("user-token"),
                Caller::Manager => Some("manager-token"),
                Caller::ProjectAdmin => Some("padmin-token"),
                Caller::GlobalAdmin => Some(ADMIN),
            };
            // A body that no route accepts: whoever passes the guard gets 422, and nothing is changed.
            let body = json!({"no such field": 1});
            let method = if route.method == Method::Get {
                "GET"
            } else {
                "POST"
            };
            let answer = server
                .send(request(method, &path_of(route), token, Some(&body)))
                .await;
            let what = format!("{caller:?} {} -> {} {}", route.path, answer.status, answer.body);
            if passes(route.guard, caller) {
                if matches!(route.body, Kind::Json | Kind::OptionalJson) {
                    assert_eq!(answer.status, 422, "{what}");
                } else if !matches!(route.guard, Guard::Importer | Guard::ImporterOrPublic) {
                    let unwrapped = answer.body.get("msg").is_some();
                    assert!(
                        !matches!(answer.status, 401 | 405) && (answer.status != 403 || unwrapped),
                        "{what}"
                    );
                }
            } else if caller == Caller::Anonymous
                && !matches!(route.guard, Guard::SshProxyToken | Guard::MetricsToken)
            {
                assert_eq!(
                    (answer.status, &answer.body),
                    (401, &json!({"detail": "Not authenticated"})),
                    "{what}"
                );
            } else {
                assert_eq!(answer.status, 403, "{what}");
                assert!(answer.body["detail"]["msg"].is_string(), "{what}");
            }
        }
    }
}

fn handlers_of(server: &Server) -> Vec<&'static str> {
    dstack_server::handlers::api(std::sync::Arc::clone(&server.state)).names()
}

#[tokio::test]
async fn no_route_is_forgotten() {
    let server = Server::new().await;
    let served = handlers_of(&server);
    let missing: Vec<&str> = ROUTES
        .iter()
        .map(|route| route.name)
        .filter(|name| !served.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
