//! Errors of calls to the server.

use dstack_api::ErrorCode;
use dstack_api::client::ClientError;

use super::{CliError, ErrorKind};

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let (kind, hint) = (kind(&error), hint(&error));
        let converted = Self::from_error(kind, error);
        match hint {
            Some(hint) => converted.hint(hint),
            None => converted,
        }
    }
}

fn kind(error: &ClientError) -> ErrorKind {
    match error {
        ClientError::Url { .. } => ErrorKind::ServerUrl,
        ClientError::Setup { .. } => ErrorKind::Internal,
        ClientError::Connect { .. } => ErrorKind::Unreachable,
        ClientError::Refused { code, msg, .. } => match code {
            ErrorCode::ResourceNotExists => ErrorKind::NotFound,
            ErrorCode::ResourceExists => ErrorKind::AlreadyExists,
            _ if is_upload_limit(msg) => ErrorKind::TooLarge,
            _ => ErrorKind::Refused,
        },
        ClientError::Validation { .. } => ErrorKind::InvalidRequest,
        ClientError::Denied { .. } => ErrorKind::Denied,
        ClientError::NotFound { .. } => ErrorKind::NoSuchRoute,
        ClientError::MethodNotAllowed { .. } | ClientError::Unreadable { .. } => ErrorKind::VersionMismatch,
        ClientError::Busy { .. } => ErrorKind::Busy,
        ClientError::TooLarge { .. } => ErrorKind::TooLarge,
        ClientError::Status { .. } => ErrorKind::ServerFailure,
        ClientError::NotDstack { .. } => ErrorKind::NotDstack,
    }
}

/// Servers refuse an upload that is too large as they refuse anything else; only the text tells.
fn is_upload_limit(message: &str) -> bool {
    message.contains("DSTACK_SERVER_CODE_UPLOAD_LIMIT")
}

fn hint(error: &ClientError) -> Option<String> {
    let hint = match error {
        ClientError::Connect { .. } => {
            "check that the server runs (`dstack server`) and that its URL is right (`dstack project list`)"
        }
        ClientError::Denied { reason, .. } => return Some(denied(reason.as_deref())),
        ClientError::NotFound { .. } => {
            "check the project's name and the server's URL (`dstack project list`)"
        }
        ClientError::Refused { msg, .. } if msg.contains("does not support exports") => {
            "a server of this version does with DSTACK_SERVER_EXPORTS_ENABLED=1 in its environment"
        }
        ClientError::Busy { .. } => "try again in a minute",
        ClientError::MethodNotAllowed { .. } => "the server may be older than this command line",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Whom to ask: a user is no member of the project, or their role is not enough.
fn denied(reason: Option<&str>) -> String {
    let ask = "your user may not be a member of the project, or its role not be enough: ask an admin of the project";
    match reason.filter(|reason| *reason != "Access denied") {
        Some("Invalid token") => {
            "the server does not know this token: `dstack project add` sets another one, `dstack login` gets one where the server has single sign-on".to_owned()
        }
        Some(reason) => format!("the server says: {reason}; {ask}"),
        None => ask.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_beyond_the_limit_is_too_large_though_it_is_refused_like_anything_else() {
        let refused = |msg: &str| ClientError::Refused {
            code: ErrorCode::Error,
            msg: msg.to_owned(),
            fields: None,
        };
        let text = "Repo diff size is 3.0MiB, which exceeds the limit of 2.0MiB. Use .gitignore to exclude large files from the \
                    repo. This limit can be modified by setting the DSTACK_SERVER_CODE_UPLOAD_LIMIT environment variable.";
        assert_eq!(kind(&refused(text)), ErrorKind::TooLarge);
        assert_eq!(kind(&refused("Fleets are in use.")), ErrorKind::Refused);
    }
}
