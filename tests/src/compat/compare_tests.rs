//! The comparison finds what it must: cases altered on purpose.

use serde_json::{Value, json};

use super::*;

const A: &str = "11111111-1111-4111-8111-111111111111";
const B: &str = "22222222-2222-4222-8222-222222222222";

fn case(path: &str, status: u16, body: &Value, varies: &[&str]) -> Case {
    let value = json!({
        "case": "area/name", "suite": "api", "seq": 1, "varies": varies,
        "request": {"method": "POST", "path": path, "json": {"spec": {"env": {"X": null}, "name": "n"}}},
        "response": {"status": status, "headers": {"content-type": "application/json"}, "json": body},
    });
    serde_json::from_value(value).unwrap()
}

fn answer(status: u16, body: &Value) -> Answer {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Answer {
        status,
        headers,
        body: serde_json::to_vec(body).unwrap(),
    }
}

/// Where `actual` differs from `recorded`.
fn places(recorded: &Value, actual: &Value) -> Vec<String> {
    places_on("/api/runs/get", recorded, actual)
}

fn places_on(path: &str, recorded: &Value, actual: &Value) -> Vec<String> {
    let found = compare(
        &case(path, 200, recorded, &[]),
        &answer(200, actual),
        &mut Pairs::default(),
    );
    found.into_iter().map(|difference| difference.at).collect()
}

#[test]
fn equal_answers_have_no_differences() {
    let body = json!({"id": A, "n": 1.0, "list": [1, {"a": null}], "t": "2026-11-21T08:14:48Z"});
    let now = json!({"id": B, "n": 1, "list": [1, {"a": null}], "t": "2026-12-24T18:00:00.5Z"});
    assert_eq!(places(&body, &now), [""; 0]);
}

#[test]
fn each_alteration_is_found_at_its_place() {
    let body = json!({"id": A, "owner": A, "jobs": [{"status": "done", "code": 0}, {"status": "done"}]});
    let altered = [
        (json!({"id": A, "owner": B, "jobs": body["jobs"]}), "$.owner"),
        (json!({"id": null, "owner": A, "jobs": body["jobs"]}), "$.id"),
        (json!({"id": A, "jobs": body["jobs"]}), "$.owner"),
        (
            json!({"id": A, "owner": A, "jobs": body["jobs"], "more": 1}),
            "$.more",
        ),
        (
            json!({"id": A, "owner": A, "jobs": [{"status": "failed", "code": 0}, {"status": "done"}]}),
            "$.jobs[0].status",
        ),
        (
            json!({"id": A, "owner": A, "jobs": [{"status": "done", "code": "0"}, {"status": "done"}]}),
            "$.jobs[0].code",
        ),
        (
            json!({"id": A, "owner": A, "jobs": [{"status": "done", "code": 0}]}),
            "$.jobs",
        ),
    ];
    for (actual, place) in altered {
        assert_eq!(places(&body, &actual), [place], "{actual}");
    }
}

#[test]
fn status_and_headers_count() {
    let case = case("/api/x", 200, &json!(null), &[]);
    let mut other = answer(201, &json!(null));
    other.headers.clear();
    let found = compare(&case, &other, &mut Pairs::default());
    let places: Vec<_> = found.iter().map(|difference| difference.at.as_str()).collect();
    assert_eq!(places, ["status", "header content-type"]);
}

#[test]
fn a_crash_of_the_reference_asks_for_a_refusal() {
    let case = case("/api/x", 500, &json!(null), &[]);
    assert!(compare(&case, &answer(422, &json!({})), &mut Pairs::default()).is_empty());
    assert_eq!(
        compare(&case, &answer(500, &json!({})), &mut Pairs::default()).len(),
        1
    );
    assert_eq!(
        compare(&case, &answer(200, &json!({})), &mut Pairs::default()).len(),
        1
    );
}

#[test]
fn of_a_failed_validation_the_fields_count_and_not_the_words() {
    let detail = |locs: Value| {
        let details = locs.as_array().unwrap().iter();
        json!({"detail": details.map(|loc| json!({"loc": loc, "msg": loc.to_string()})).collect::<Vec<_>>()})
    };
    let recorded = detail(json!([
        [
            "body",
            "spec",
            "env",
            "dict[str,union[str,EnvSentinel]]",
            "X",
            "str"
        ],
        [
            "body",
            "spec",
            "env",
            "dict[str,union[str,EnvSentinel]]",
            "X",
            "EnvSentinel"
        ],
        ["body", "spec", "port", "constrained-int"],
    ]));
    let case = case("/api/x", 422, &recorded, &[]);
    let count = |locs: Value| compare(&case, &answer(422, &detail(locs)), &mut Pairs::default()).len();
    assert_eq!(
        count(json!([["body", "spec", "port"], ["body", "spec", "env", "X"]])),
        0
    );
    assert_eq!(count(json!([["body", "spec", "port"]])), 1);
    assert_eq!(
        count(json!([["body", "spec", "port"], ["body", "spec", "env", "Y"]])),
        1
    );
}

#[test]
fn free_values_are_free_and_remembered() {
    let case = case(
        "/api/x",
        200,
        &json!({"jobs": [{"name": "old", "n": 1}]}),
        &["/jobs/*/name"],
    );
    let mut pairs = Pairs::default();
    assert!(
        compare(
            &case,
            &answer(200, &json!({"jobs": [{"name": "new", "n": 1}]})),
            &mut pairs
        )
        .is_empty()
    );
    assert_eq!(pairs.translate("old"), "new");
    assert_eq!(
        compare(
            &case,
            &answer(200, &json!({"jobs": [{"name": "new", "n": 2}]})),
            &mut pairs
        )
        .len(),
        1
    );
}

#[test]
fn only_lists_the_reference_does_not_sort_come_in_any_order() {
    let recorded = json!([{"id": A, "name": "a"}, {"id": B, "name": "b"}]);
    let turned = json!([{"id": B, "name": "b"}, {"id": A, "name": "a"}]);
    assert!(places_on("/api/project/main/repos/list", &recorded, &turned).is_empty());
    assert_eq!(
        places_on("/api/project/main/fleets/list", &recorded, &turned),
        ["$[0].name", "$[1].name"]
    );
    let other = json!([{"id": B, "name": "b"}, {"id": A, "name": "c"}]);
    assert_eq!(
        places_on("/api/project/main/repos/list", &recorded, &other),
        ["$[0].name"]
    );
}

#[test]
fn events_of_one_moment_come_in_any_order() {
    let event = |moment: &str, text: &str| json!({"recorded_at": format!("2026-11-21T08:14:{moment}Z"), "message": text});
    let recorded = json!([event("03", "c"), event("02", "b"), event("02", "a")]);
    let turned = json!([event("03", "c"), event("02", "a"), event("02", "b")]);
    assert!(places_on("/api/events/list", &recorded, &turned).is_empty());
    let wrong = json!([event("03", "b"), event("02", "c"), event("02", "a")]);
    assert!(!places_on("/api/events/list", &recorded, &wrong).is_empty());
}
