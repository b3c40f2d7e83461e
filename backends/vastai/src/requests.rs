//! What an offer is accepted with, and what the answers mean.

use dstack_backend::{compute_error, one_line};
use dstack_compute::{CONTAINER_SSH_PORT, ComputeError, ContainerRequest, RegistryLogin};
use dstack_http::ApiError;
use http::StatusCode;
use serde_json::{Value, json};

/// The registry of images that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Body of `createInstance`.
///
/// # Errors
/// Vast.ai cannot run it.
pub(crate) fn rent_request(want: &ContainerRequest, name: &str) -> Result<Value, ComputeError> {
    let workload = &want.workload;
    if workload.privileged {
        return Err(refused("Vast.ai does not run privileged containers"));
    }
    if !workload.volumes.is_empty() {
        return Err(refused(
            "network volumes are not supported on Vast.ai: its volumes stay on one host",
        ));
    }
    if let Some(folder) = workload.folders.iter().find(|folder| !folder.optional) {
        return Err(refused(format!(
            "Vast.ai does not mount folders of its hosts, and the job needs {}",
            folder.node_path
        )));
    }
    let login = match &workload.registry {
        Some(login) => Some(image_login(login, &workload.image)?),
        None => None,
    };
    // In the form of Docker's option, as a variable.
    let port = format!("-p {CONTAINER_SSH_PORT}:{CONTAINER_SSH_PORT}");
    Ok(json!({
        "client_id": "me",
        "image": workload.image,
        "price": bid(want)?,
        "disk": disk_gb(want),
        "label": name,
        "env": {port: "1"},
        "user": "root",
        // With `args`, this becomes the entrypoint.
        "runtype": "args",
        "onstart": "/bin/sh",
        "args": ["-c", workload.script],
        "image_login": login,
        "python_utf8": false,
        "lang_utf8": false,
        "use_jupyter_lab": false,
        "jupyter_dir": null,
        "create_from": null,
        "force": false,
    }))
}

/// Dollars an hour for a machine that may be outbid; `None`: it is on demand.
fn bid(want: &ContainerRequest) -> Result<Option<f64>, ComputeError> {
    if !want.offer.instance.resources.spot {
        return Ok(None);
    }
    let bid = want.offer.backend_data.get("min_bid").and_then(Value::as_f64);
    bid.map(Some)
        .ok_or_else(|| refused("the spot offer does not say what is to be bid: use another offer"))
}

/// At least what is asked for.
fn disk_gb(want: &ContainerRequest) -> i64 {
    let mib = want.offer.instance.resources.disk.size_mib;
    (mib + 1023).div_euclid(1024).max(1)
}

/// Options of `docker login`, in one text: what has blanks would become other options.
fn image_login(login: &RegistryLogin, image: &str) -> Result<String, ComputeError> {
    let (user, password) = (login.username.as_str(), login.password.expose());
    let is_word =
        |text: &str| !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_whitespace);
    if !is_word(user) || !is_word(password) {
        return Err(refused(
            "Vast.ai takes user name and password of `registry_auth` as words: without blanks, and not with a hyphen first",
        ));
    }
    Ok(format!("-u {user} -p {password} {}", registry_of(image)))
}

/// By Docker's rule: the first part is a host when it has a dot or a port, or is `localhost`.
fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => DEFAULT_REGISTRY,
    }
}

/// What became of an offer that was accepted.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// Id of the contract.
    Rented(i64),
    /// There is a contract although the call has failed, and why it did.
    Stopped(i64, String),
    /// There is none.
    Refused(ComputeError),
}

impl Outcome {
    /// Whether the offer is not what it was: it was taken, by us or others.
    pub(crate) fn has_changed(&self) -> bool {
        match self {
            Self::Rented(_) | Self::Stopped(..) => true,
            Self::Refused(error) => matches!(error, ComputeError::NoCapacity(_) | ComputeError::Refused(_)),
        }
    }
}

/// What the API says of an offer that it was asked for, read as far as it can be.
#[derive(Default)]
struct Said {
    success: Option<bool>,
    /// The contract, whatever it looks like. There may be one although the call has failed, such as a bid that is too low: it stands
    /// still, and costs money.
    contract: Option<Value>,
    /// A code such as `no_such_ask`.
    code: String,
    msg: String,
}

impl Said {
    fn of(answer: &Value) -> Self {
        let field = |name: &str| answer.get(name).filter(|value| !value.is_null());
        let text = |name: &str| match field(name) {
            Some(Value::String(text)) => one_line(text),
            Some(other) => one_line(&other.to_string()),
            None => String::new(),
        };
        Self {
            success: field("success").and_then(Value::as_bool),
            contract: field("new_contract").cloned(),
            code: text("error"),
            msg: text("msg"),
        }
    }

    fn text(&self, error: Option<&ApiError>) -> String {
        match (self.msg.as_str(), self.code.as_str(), error) {
            ("", "", Some(error)) => error.to_string(),
            ("", "", None) => "Vast.ai refuses it and does not say why".to_owned(),
            ("", code, _) => code.to_owned(),
            (text, ..) => text.to_owned(),
        }
    }
}

pub(crate) fn outcome(answer: Result<Value, ApiError>) -> Outcome {
    let (told, error) = match answer {
        Ok(told) => (told, None),
        Err(error) => match serde_json::from_str(error.body()) {
            Ok(told) => (told, Some(error)),
            Err(_) if error.body().trim_start().starts_with('{') => {
                return unclear("Vast.ai has cut its answer off");
            }
            // What a gateway says, or nothing.
            Err(_) => (Value::Null, Some(error)),
        },
    };
    let said = Said::of(&told);
    let id = said
        .contract
        .as_ref()
        .map(|id| id.as_i64().or_else(|| id.as_str()?.parse().ok()));
    match (id, said.success, &error) {
        (Some(Some(id)), Some(true), None) => Outcome::Rented(id),
        (Some(Some(id)), ..) => Outcome::Stopped(id, said.text(error.as_ref())),
        (Some(None), ..) => unclear("Vast.ai says that it made an instance, and its id cannot be read"),
        (None, Some(false), _) | (None, _, Some(_)) => Outcome::Refused(not_rented(&said, error.as_ref())),
        (None, ..) => unclear("Vast.ai does not say which instance it made"),
    }
}

fn unclear(text: &str) -> Outcome {
    Outcome::Refused(ComputeError::Unclear(text.to_owned()))
}

fn not_rented(said: &Said, error: Option<&ApiError>) -> ComputeError {
    let text = said.text(error);
    let lower = format!("{} {text}", said.code).to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let status = error.and_then(ApiError::status);
    let is_general =
        |error: &&ApiError| !error.is_definite() || error.throttled().is_some() || error.status().is_none();
    match error.filter(is_general) {
        Some(error) => compute_error(error),
        None if status == Some(StatusCode::UNAUTHORIZED) || said.code == "auth_error" => {
            ComputeError::Credentials(text)
        }
        None if has(&["credit", "balance", "billing"]) => {
            ComputeError::NoQuota(format!("{text}. Add credits to the Vast.ai account"))
        }
        None if has(&[
            "no_such_ask",
            "no longer available",
            "not available",
            "invalid_price",
        ]) =>
        {
            ComputeError::NoCapacity(text)
        }
        None if matches!(status, Some(StatusCode::NOT_FOUND | StatusCode::GONE)) => {
            ComputeError::NoCapacity(text)
        }
        // A key that may not do this, unless it is the host that is refused.
        None if status == Some(StatusCode::FORBIDDEN) && said.code != "invalid_args" => {
            ComputeError::Credentials(text)
        }
        None => ComputeError::Refused(text),
    }
}

fn refused(text: impl Into<String>) -> ComputeError {
    ComputeError::Refused(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Outcome {
        outcome(Err(ApiError::Status {
            api: "console.vast.ai".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        }))
    }

    fn failed(status: u16, error: &str, msg: &str) -> ComputeError {
        match answered(
            status,
            &json!({"success": false, "error": error, "msg": msg}).to_string(),
        ) {
            Outcome::Refused(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let gone = "error 410/3907: no_such_ask Instance type 31234567 is no longer available.";
        assert_eq!(
            failed(410, "no_such_ask", gone),
            ComputeError::NoCapacity(gone.to_owned())
        );
        let not_there = "error 404/3603: no_such_ask Instance type by id 1234567 is not available.";
        assert!(matches!(
            failed(404, "invalid_args", not_there),
            ComputeError::NoCapacity(_)
        ));
        assert!(matches!(
            failed(400, "invalid_price", ""),
            ComputeError::NoCapacity(_)
        ));
        assert!(matches!(
            failed(400, "invalid_args", "Invalid args"),
            ComputeError::Refused(_)
        ));
        assert!(matches!(
            failed(
                400,
                "insufficient_credit",
                "Your account lacks credit; see the billing page."
            ),
            ComputeError::NoQuota(_)
        ));
        assert!(matches!(
            failed(403, "invalid_args", "Offer 1 is not your own."),
            ComputeError::Refused(_)
        ));
        assert!(matches!(
            failed(401, "auth_error", "Invalid user key"),
            ComputeError::Credentials(_)
        ));
        assert!(matches!(
            failed(429, "rate_limit_exceeded", "API requests too frequent"),
            ComputeError::Throttled { .. }
        ));
        // It may have been made all the same.
        assert!(matches!(
            failed(500, "no_such_ask", gone),
            ComputeError::Unclear(_)
        ));
        for body in ["API requests too frequent", "{\"detail\": \"slower\"}"] {
            let told = answered(429, body);
            assert!(
                matches!(told, Outcome::Refused(ComputeError::Throttled { .. })),
                "{told:?}"
            );
        }
        assert!(matches!(
            answered(502, "<html>"),
            Outcome::Refused(ComputeError::Unclear(_))
        ));
    }

    #[test]
    fn a_contract_may_be_there_although_the_call_has_failed() {
        let low = json!({"success": false, "error": "invalid_price", "msg": "bid is below the current minimum",
            "new_contract": 27_000_002});
        assert_eq!(
            answered(400, &low.to_string()),
            Outcome::Stopped(27_000_002, "bid is below the current minimum".to_owned())
        );
        let told = |body: Value| outcome(Ok(body));
        assert_eq!(
            told(json!({"success": true, "new_contract": 7})),
            Outcome::Rented(7)
        );
        assert!(matches!(
            told(json!({"success": false, "new_contract": 7})),
            Outcome::Stopped(7, _)
        ));
        assert!(matches!(
            told(json!({"success": true})),
            Outcome::Refused(ComputeError::Unclear(_))
        ));
        assert!(matches!(
            told(json!({"success": false, "error": "no_such_ask"})),
            Outcome::Refused(ComputeError::NoCapacity(_))
        ));
    }

    #[test]
    fn a_contract_is_seen_in_odd_answers() {
        for (body, id) in [
            (
                json!({"success": false, "error": null, "msg": "low", "new_contract": 27}),
                27,
            ),
            (
                json!({"success": "no", "error": {"code": 1}, "msg": ["low"], "new_contract": "27"}),
                27,
            ),
        ] {
            for told in [answered(400, &body.to_string()), outcome(Ok(body.clone()))] {
                assert!(
                    matches!(&told, Outcome::Stopped(told, _) if *told == id),
                    "{told:?}"
                );
            }
        }
        for told in [
            answered(400, "{\"success\": false, \"new_contract\": {\"id\": 27}}"),
            answered(400, "{\"success\": false, \"new_contr"),
            outcome(Ok(json!(null))),
            outcome(Ok(json!({"contract": 27}))),
        ] {
            assert!(
                matches!(told, Outcome::Refused(ComputeError::Unclear(_))),
                "{told:?}"
            );
        }
        assert!(matches!(
            outcome(Err(ApiError::NotSent {
                api: String::new(),
                details: String::new()
            })),
            Outcome::Refused(ComputeError::Unreachable(_))
        ));
    }

    #[test]
    fn what_others_wrote_is_one_line() {
        let ComputeError::Refused(text) = failed(400, "invalid_args", &"long\n".repeat(1000)) else {
            panic!("it is refused");
        };
        assert!(text.len() <= 600 && !text.contains('\n'), "{text}");
        let ComputeError::Refused(text) = failed(400, "", "") else {
            panic!("it is refused");
        };
        assert!(text.contains("400"), "{text}");
    }

    #[test]
    fn a_login_is_of_words() {
        let login = |user: &str, password: &str| RegistryLogin {
            username: user.to_owned(),
            password: password.into(),
            is_servers: false,
        };
        for (image, registry) in [
            ("ubuntu", "docker.io"),
            ("team/image:1", "docker.io"),
            ("ghcr.io/team/image:1", "ghcr.io"),
            ("localhost/image", "localhost"),
            ("registry:5000/image", "registry:5000"),
        ] {
            let text = image_login(&login("u", "p"), image).unwrap();
            assert_eq!(text, format!("-u u -p p {registry}"));
        }
        for (user, password) in [("u v", "p"), ("u", "p q"), ("u", "p\n"), ("", "p"), ("u", "-p")] {
            let error = image_login(&login(user, password), "ubuntu").unwrap_err();
            assert!(matches!(error, ComputeError::Refused(_)), "{user} {password}");
        }
    }
}
