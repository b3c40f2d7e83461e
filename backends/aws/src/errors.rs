//! What errors of AWS mean. Their codes tell, and not the HTTP status: that nothing is free is a 500, and too many calls are a 503.

use std::fmt;
use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_http::ApiError;
use serde::Deserialize;
use serde_json::Value;

/// Longest text of AWS that is shown.
const SHOWN: usize = 400;

/// Our own code: there are no keys.
const NO_CREDENTIALS: &str = "NoCredentials";

/// Our own code: the role of the configuration may not be assumed.
const ROLE_REFUSED: &str = "RoleRefused";

/// Pause after too many calls: buckets of EC2 are filled again within seconds ("Throttle requests for the Amazon EC2 API").
const THROTTLED_PAUSE: Duration = Duration::from_secs(10);

/// What a region says where it is not enabled ("Error codes for the Amazon EC2 API", "Managing AWS Regions"): it does not know the keys.
const NOT_ENABLED: &[&str] = &[
    "AuthFailure",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "OptInRequired",
];

/// What a session that is over is refused with: by the query protocol, by JSON and by EC2.
const EXPIRED: &[&str] = &["ExpiredToken", "ExpiredTokenException", "RequestExpired"];

/// A call that has no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AwsError {
    /// As policies name it: `ec2:RunInstances`.
    call: String,
    /// As AWS names the error; empty: it does not.
    code: String,
    message: String,
    cause: Option<ApiError>,
}

/// Errors of the query protocol: `Response/Errors/Error` of EC2, `ErrorResponse/Error` of others.
#[derive(Debug, Default, Deserialize)]
struct ErrorAnswer {
    #[serde(rename = "Errors")]
    errors: Option<Box<Self>>,
    #[serde(rename = "Error")]
    error: Option<ErrorText>,
}

#[derive(Debug, Default, Deserialize)]
struct ErrorText {
    #[serde(rename = "Code", default)]
    code: String,
    #[serde(rename = "Message", default)]
    message: String,
}

impl AwsError {
    pub(crate) fn new(call: String, cause: ApiError) -> Self {
        let told = told(cause.body());
        Self {
            call,
            code: told.code,
            message: told.message,
            cause: Some(cause),
        }
    }

    /// There is nothing to sign with: the call was not made.
    pub(crate) fn without_keys(call: &str, details: &str) -> Self {
        Self {
            call: call.to_owned(),
            code: NO_CREDENTIALS.to_owned(),
            message: details.to_owned(),
            cause: None,
        }
    }

    /// This is why a role could not be assumed: the call was not made. What is said of the role is not said of the call, and may not be
    /// taken for that.
    pub(crate) fn of_role(&self, call: &str, arn: &str) -> Self {
        let (code, message) = match self.compute_error() {
            ComputeError::Credentials(_) | ComputeError::Refused(_) => (
                ROLE_REFUSED,
                format!(
                    "the role {arn} may not be assumed: its trust policy has to allow `sts:AssumeRole`, and so has a policy of who \
                     assumes it: {self}"
                ),
            ),
            other => (
                NO_CREDENTIALS,
                format!("the role {arn} cannot be assumed now: {}", other.details()),
            ),
        };
        Self {
            call: call.to_owned(),
            code: code.to_owned(),
            message,
            cause: None,
        }
    }

    /// The answer is not as AWS describes it.
    pub(crate) fn malformed(call: &str, details: &str) -> Self {
        let cause = ApiError::Malformed {
            api: call.to_owned(),
            details: details.to_owned(),
        };
        Self::new(call.to_owned(), cause)
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether the credentials are good, and may not do this.
    pub(crate) fn is_forbidden(&self) -> bool {
        kind_of(&self.code) == Kind::Forbidden
    }

    /// Whether a region is not open to the account: it is not enabled there, which the same keys are refused for, or a policy forbids it.
    pub(crate) fn is_closed_region(&self) -> bool {
        self.is_forbidden() || self.is(NOT_ENABLED)
    }

    /// Whether there were no keys to sign with.
    pub(crate) fn is_without_keys(&self) -> bool {
        self.is(&[NO_CREDENTIALS])
    }

    /// Whether the clock of this machine is wrong: signatures are good for some minutes. STS has the code of wrong keys for it.
    pub(crate) fn is_of_the_clock(&self) -> bool {
        let words = ["Signature expired", "Signature not yet current"];
        self.is(&["RequestExpired", "RequestTimeTooSkewed"])
            || words.iter().any(|words| self.message.contains(words))
    }

    /// Whether the session that the call was signed with is over, whatever it said of its end. The call was not carried out.
    pub(crate) fn is_of_an_expired_session(&self) -> bool {
        self.is(EXPIRED)
    }

    pub(crate) fn is(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code.as_str())
    }

    /// What it means to the control plane.
    pub(crate) fn compute_error(&self) -> ComputeError {
        let text = self.to_string();
        match kind_of(&self.code) {
            Kind::NoCapacity => ComputeError::NoCapacity(text),
            Kind::NoQuota => ComputeError::NoQuota(text),
            Kind::Throttled => ComputeError::Throttled {
                after: THROTTLED_PAUSE,
                details: text,
            },
            Kind::Forbidden => ComputeError::Credentials(self.missing_permission()),
            Kind::BadCredentials => ComputeError::Credentials(text),
            Kind::InUse => ComputeError::InUse(text),
            Kind::Unclear => ComputeError::Unclear(text),
            Kind::NotNow => ComputeError::NoKeysNow(text),
            Kind::Other => match &self.cause {
                None => ComputeError::Refused(text),
                Some(cause) => match dstack_backend::compute_error(cause) {
                    ComputeError::Refused(_) => ComputeError::Refused(text),
                    ComputeError::Credentials(_) => ComputeError::Credentials(text),
                    other => other,
                },
            },
        }
    }

    fn missing_permission(&self) -> String {
        let permission = named_permission(&self.message).unwrap_or(&self.call);
        format!(
            "AWS does not allow `{permission}`: add it to the policy of these credentials ({}, {})",
            self.code, self.call
        )
    }
}

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) if self.code.is_empty() => write!(f, "{}: {cause}", self.call),
            _ => write!(f, "{} ({}, {})", cut(&self.message), self.code, self.call),
        }
    }
}

fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(SHOWN);
    text.get(..end).unwrap_or_default()
}

/// Reads what AWS says of an error.
fn told(body: &str) -> ErrorText {
    let body = body.trim();
    if body.starts_with('{') {
        let value: Value = serde_json::from_str(body).unwrap_or_default();
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| value.get(name)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        // The code stands behind a namespace in some services.
        let code = text(&["__type"]);
        return ErrorText {
            code: code.rsplit('#').next().unwrap_or_default().to_owned(),
            message: text(&["message", "Message"]),
        };
    }
    let answer: ErrorAnswer = quick_xml::de::from_str(body).unwrap_or_default();
    let inner = answer.errors.and_then(|errors| errors.error);
    answer.error.or(inner).unwrap_or_default()
}

/// What an error is about ("Error codes for the Amazon EC2 API").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    NoCapacity,
    NoQuota,
    Throttled,
    /// The credentials are good, and may not do this.
    Forbidden,
    /// The credentials are not good.
    BadCredentials,
    InUse,
    Unclear,
    /// The call was not carried out; others can be, soon.
    NotNow,
    Other,
}

fn kind_of(code: &str) -> Kind {
    match code {
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientVolumeCapacity"
        | "InsufficientAddressCapacity"
        | "InsufficientFreeAddressesInSubnet"
        | "ReservationCapacityExceeded"
        | "SpotMaxPriceTooLow"
        // The zone does not have the type.
        | "Unsupported" => Kind::NoCapacity,
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "EC2ThrottledException"
        | "RequestThrottled"
        | "SlowDown" => Kind::Throttled,
        "MaxSpotInstanceCountExceeded" | "PendingVerification" | "TooManyLoadBalancers" | "TooManyTargetGroups" => {
            Kind::NoQuota
        }
        code if code.ends_with("LimitExceeded") => Kind::NoQuota,
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" => Kind::Forbidden,
        "AuthFailure"
        | "InvalidClientTokenId"
        | "UnrecognizedClientException"
        | "SignatureDoesNotMatch"
        | "InvalidSignatureException"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "OptInRequired"
        | "Blocked"
        | ROLE_REFUSED => Kind::BadCredentials,
        "VolumeInUse"
        | "InvalidPlacementGroup.InUse"
        | "InvalidIPAddress.InUse"
        | "DependencyViolation" => Kind::InUse,
        "InternalError" | "HealthUnavailable" | "InternalFailure" | "ServiceUnavailable" | "Unavailable" => Kind::Unclear,
        // Keys of the server's machine cannot be had now, or have just expired: the next call gets others.
        NO_CREDENTIALS | "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" => Kind::NotNow,
        _ => Kind::Other,
    }
}

/// `iam:PassRole` of `... is not authorized to perform: iam:PassRole on resource: ...`.
fn named_permission(message: &str) -> Option<&str> {
    let rest = message.split_once("not authorized to perform: ")?.1;
    let permission = rest.split_whitespace().next()?;
    permission.contains(':').then_some(permission)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn answered(status: u16, body: &str) -> AwsError {
        let cause = ApiError::Status {
            api: "ec2.us-east-1.amazonaws.com".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        };
        AwsError::new("ec2:RunInstances".to_owned(), cause)
    }

    fn ec2(status: u16, code: &str, message: &str) -> ComputeError {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
             <Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
        );
        answered(status, &body).compute_error()
    }

    #[test]
    fn codes_tell_what_an_error_is_about() {
        for (status, code, expected) in [
            (
                500,
                "InsufficientInstanceCapacity",
                "no capacity: m (InsufficientInstanceCapacity, ec2:RunInstances)",
            ),
            (
                400,
                "Unsupported",
                "no capacity: m (Unsupported, ec2:RunInstances)",
            ),
            (
                400,
                "InstanceLimitExceeded",
                "over the quota: m (InstanceLimitExceeded, ec2:RunInstances)",
            ),
            (
                400,
                "VcpuLimitExceeded",
                "over the quota: m (VcpuLimitExceeded, ec2:RunInstances)",
            ),
            (
                400,
                "MaxSpotInstanceCountExceeded",
                "over the quota: m (MaxSpotInstanceCountExceeded, ec2:RunInstances)",
            ),
            (
                400,
                "AddressLimitExceeded",
                "over the quota: m (AddressLimitExceeded, ec2:RunInstances)",
            ),
            (
                503,
                "RequestLimitExceeded",
                "the cloud wants fewer calls: m (RequestLimitExceeded, ec2:RunInstances)",
            ),
            (
                401,
                "AuthFailure",
                "the cloud refuses the credentials: m (AuthFailure, ec2:RunInstances)",
            ),
            (
                400,
                "InvalidParameterValue",
                "m (InvalidParameterValue, ec2:RunInstances)",
            ),
            (
                400,
                "VolumeInUse",
                "still in use: m (VolumeInUse, ec2:RunInstances)",
            ),
        ] {
            let error = ec2(status, code, "m");
            assert_eq!(error.to_string(), expected);
            assert!(error.is_definite(), "{code}");
        }
        for (status, code) in [
            (500, "InternalError"),
            (503, "Unavailable"),
            (500, "NewInThisYear"),
        ] {
            let error = ec2(status, code, "m");
            assert!(matches!(error, ComputeError::Unclear(_)), "{code}: {error:?}");
        }
    }

    #[test]
    fn the_missing_permission_is_named() {
        for (message, permission) in [
            (
                "You are not authorized to perform this operation. Encoded authorization failure message: xyz",
                "ec2:RunInstances",
            ),
            (
                "User: arn:aws:iam::1:user/d is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/r",
                "iam:PassRole",
            ),
        ] {
            let error = ec2(403, "UnauthorizedOperation", message);
            let expected = format!(
                "AWS does not allow `{permission}`: add it to the policy of these credentials (UnauthorizedOperation, ec2:RunInstances)"
            );
            assert_eq!(error, ComputeError::Credentials(expected));
        }
    }

    #[test]
    fn errors_of_other_services_are_read_as_well() {
        let sts = "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>\
            <Code>InvalidClientTokenId</Code><Message>m</Message></Error><RequestId>r</RequestId></ErrorResponse>";
        assert_eq!(answered(403, sts).code(), "InvalidClientTokenId");
        let quotas = r#"{"__type":"com.amazonaws.servicequotas#NoSuchResourceException","Message":"m"}"#;
        assert_eq!(answered(400, quotas).code(), "NoSuchResourceException");
        assert_eq!(answered(400, quotas).message(), "m");
        let proxy = answered(502, "<html>bad gateway</html>");
        assert_eq!(proxy.code(), "");
        assert!(matches!(proxy.compute_error(), ComputeError::Unclear(_)));
    }

    /// A role that is refused is no region that is closed and no permission that is missing: nothing is concluded of what is there.
    #[test]
    fn what_is_said_of_a_role_is_not_said_of_the_call() {
        let sts = |status: u16, code: &str| {
            let body = format!(
                "<ErrorResponse><Error><Code>{code}</Code><Message>m</Message></Error></ErrorResponse>"
            );
            answered(status, &body).of_role("ec2:DescribeInstances", "arn:aws:iam::1:role/r")
        };
        for code in ["AccessDenied", "InvalidClientTokenId", "ValidationError"] {
            let error = sts(403, code);
            assert!(!error.is_forbidden() && !error.is_closed_region(), "{error:?}");
            let told = error.compute_error();
            assert!(
                matches!(&told, ComputeError::Credentials(text) if text.contains("arn:aws:iam::1:role/r")
                && text.contains("trust policy") && text.contains(code)),
                "{told:?}"
            );
        }
        for (status, code) in [
            (500, "InternalFailure"),
            (400, "Throttling"),
            (400, "ExpiredToken"),
        ] {
            let told = sts(status, code).compute_error();
            assert!(matches!(told, ComputeError::NoKeysNow(_)), "{code}: {told:?}");
        }
    }

    /// Keys of the server's machine may be away for a moment: nothing that is being made is given up for that.
    #[test]
    fn keys_that_cannot_be_had_now_pass() {
        let without = AwsError::without_keys("ec2:RunInstances", "no AWS credentials");
        for error in [without.compute_error(), ec2(400, "RequestExpired", "m")] {
            assert!(error.is_transient() && error.is_definite(), "{error:?}");
        }
    }

    #[test]
    fn a_wrong_clock_is_told_from_a_wrong_key() {
        let sts = |message: &str| {
            let body = format!(
                "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>{message}</Message></Error></ErrorResponse>"
            );
            answered(403, &body).is_of_the_clock()
        };
        assert!(sts(
            "Signature expired: 20260101T000000Z is now earlier than 20260101T001500Z"
        ));
        assert!(!sts("The request signature we calculated does not match"));
    }
}
