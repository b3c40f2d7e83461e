//! The list of models.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::json::json_response;
use crate::body::ProxyBody;
use crate::routes::Routes;

/// The models of a project by name, as OpenAI's API lists them. Of several services with one name the newest gives the time.
pub fn list(routes: &Routes, project: &str) -> Response<ProxyBody> {
    json_response(StatusCode::OK, &models(routes, project))
}

fn models(routes: &Routes, project: &str) -> Value {
    let mut newest = BTreeMap::<&str, i64>::new();
    for service in routes.of_project(project) {
        if let Some(model) = &service.model {
            let created = newest.entry(&model.name).or_insert(service.created);
            *created = service.created.max(*created);
        }
    }
    let model = |(name, created): (&str, i64)| json!({"object": "model", "id": name, "created": created, "owned_by": project});
    let data: Vec<Value> = newest.into_iter().map(model).collect();
    json!({"object": "list", "data": data})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::fake::{openai_service, plain_service};

    #[test]
    fn each_name_is_there_once_with_the_time_of_the_newest_service() {
        let services = [
            ("b", "old", 5),
            ("a", "other", 7),
            ("b", "new", 9),
            ("b", "between", 6),
        ];
        let mut routes = services
            .into_iter()
            .fold(Routes::default(), |routes, (model, run, created)| {
                let mut service = openai_service(run, model, 1);
                service.created = created;
                routes.with(service)
            });
        routes = routes.with(plain_service("web"));
        let model = |id: &str, created: i64| json!({"object": "model", "id": id, "created": created, "owned_by": "main"});
        let expected = json!({"object": "list", "data": [model("a", 7), model("b", 9)]});
        assert_eq!(models(&routes, "main"), expected);
        assert_eq!(models(&routes, "other"), json!({"object": "list", "data": []}));
    }
}
