//! What an offer is accepted with, and what the answers mean.

use dstack_backend::compute_error;
use dstack_compute::{CONTAINER_SSH_PORT, ComputeError, ContainerRequest, RegistryLogin};
use dstack_http::ApiError;
use http::StatusCode;
use serde_json::{Value, json};

use crate::client::Rented;

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

pub(crate) fn outcome(answer: Result<Rented, ApiError>) -> Outcome {
    let (told, error) = match answer {
        Ok(told) => (told, None),
        // What a gateway says, or nothing.
        Err(error) => match serde_json::from_str(error.body()) {
            Ok(told) => (told, Some(error)),
            Err(_) => return Outcome::Refused(not_rented(&Rented::default(), Some(&error))),
        },
    };
    match (told.new_contract, told.success && error.is_none()) {
        (Some(id), true) => Outcome::Rented(id),
        (Some(id), false) => Outcome::Stopped(id, text_of(&told)),
        (None, true) => Outcome::Refused(ComputeError::Unclear(
            "Vast.ai says that it made an instance, and names none".to_owned(),
        )),
        (None, false) => Outcome::Refused(not_rented(&told, error.as_ref())),
    }
}

fn not_rented(told: &Rented, error: Option<&ApiError>) -> ComputeError {
    let text = text_of(told);
    let lower = format!("{} {text}", told.error).to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let status = error.and_then(ApiError::status);
    match error.filter(|error| !error.is_definite() || error.throttled().is_some()) {
        Some(error) => compute_error(error),
        None if status == Some(StatusCode::UNAUTHORIZED) || told.error == "auth_error" => {
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
        None if status == Some(StatusCode::FORBIDDEN) && told.error != "invalid_args" => {
            ComputeError::Credentials(text)
        }
        None => ComputeError::Refused(text),
    }
}

fn text_of(told: &Rented) -> String {
    match (told.msg.trim(), told.error.as_str()) {
        ("", "") => "Vast.ai refuses it and does not say why".to_owned(),
        ("", code) => code.to_owned(),
        (text, _) => text.to_owned(),
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
        let told = |body: Value| outcome(Ok(serde_json::from_value(body).unwrap()));
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
    fn a_login_is_of_words() {
        let login = |user: &str, password: &str| RegistryLogin {
            username: user.to_owned(),
            password: password.into(),
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
