//! Mount points, and users of containers, as text.

use crate::error::ParseError;
use crate::number::parse_int;

/// Path at which gateways answer 200 by HTTP under whatever host name, for load balancers that ask whether they live.
pub const GATEWAY_HEALTH_PATH: &str = "/.well-known/dstack-gateway";

/// Splits `source:destination`.
///
/// # Errors
/// Not exactly one colon.
pub fn split_mount_point(text: &str) -> Result<(&str, &str), ParseError> {
    match text.split_once(':') {
        Some((source, destination)) if !destination.contains(':') => Ok((source, destination)),
        _ => Err(ParseError::new(format!("invalid mount point format: {text}"))),
    }
}

/// An absolute path without `..`, with doubled and trailing slashes and `.` removed (as Python's `PurePosixPath` prints it).
///
/// # Errors
/// Empty, relative, or with `..`.
pub fn normal_absolute(path: &str) -> Result<String, ParseError> {
    if path.is_empty() {
        return Err(ParseError::new("empty path"));
    }
    if !path.starts_with('/') {
        return Err(ParseError::new(format!("path must be absolute: {path}")));
    }
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.contains(&"..") {
        return Err(ParseError::new(format!(".. are not allowed: {path}")));
    }
    // POSIX: exactly two leading slashes may mean something else, so they stay.
    let root = if path.starts_with("//") && !path.starts_with("///") {
        "//"
    } else {
        "/"
    };
    Ok(format!("{root}{}", parts.join("/")))
}

/// Whether a path is one of Windows: a drive letter with a slash (`C:\x`, `c:/x`), or a share (`\\host\share\x`).
pub fn is_absolute_windows(path: &str) -> bool {
    let mut chars = path.chars();
    let (first, second, third) = (chars.next(), chars.next(), chars.next());
    let is_slash = |c: Option<char>| matches!(c, Some('/' | '\\'));
    if first.is_some_and(|c| c.is_ascii_alphabetic()) && second == Some(':') && is_slash(third) {
        return true;
    }
    if !(is_slash(first) && is_slash(second)) || third.is_none() || is_slash(third) {
        return false;
    }
    let mut parts = path.get(2..).unwrap_or("").split(['/', '\\']);
    parts.next().is_some_and(|host| !host.is_empty()) && parts.next().is_some_and(|share| !share.is_empty())
}

/// A container's user: `user[:group]`, names or ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserText {
    /// Id of the user, when it is a number.
    pub uid: Option<i64>,
    /// Id of the group, when it is a number.
    pub gid: Option<i64>,
    /// Name of the user, when it is no number.
    pub username: Option<String>,
    /// Name of the group, when it is no number.
    pub groupname: Option<String>,
}

/// Parses `user[:group]`.
///
/// # Errors
/// More than two parts, an empty part, a negative id, whitespace or control characters.
pub fn parse_user(text: &str) -> Result<UserText, ParseError> {
    let refused = |why: String| ParseError::new(format!("invalid user format: {why}"));
    let (user, group) = match text.split_once(':') {
        Some((_, group)) if group.contains(':') => return Err(refused("too many parts".to_owned())),
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let named = |name: &str| {
        // A newline in a name is a line of its own where the name is written to a file.
        if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(refused(format!("whitespace or control characters in {name:?}")));
        }
        Ok(name.to_owned())
    };
    let mut parsed = UserText::default();
    if user.is_empty() {
        return Err(refused("empty user name or id".to_owned()));
    }
    match parse_int(user, false) {
        Some(uid) if uid < 0 => return Err(refused(format!("negative uid {uid}"))),
        Some(uid) => parsed.uid = Some(uid),
        None => parsed.username = Some(named(user)?),
    }
    match group {
        None => {}
        Some("") => return Err(refused("empty group name or id".to_owned())),
        Some(group) => match parse_int(group, false) {
            Some(gid) if gid < 0 => return Err(refused(format!("negative gid {gid}"))),
            Some(gid) => parsed.gid = Some(gid),
            None => parsed.groupname = Some(named(group)?),
        },
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mount_points() {
        assert_eq!(split_mount_point("vol:/data").unwrap(), ("vol", "/data"));
        assert_eq!(
            split_mount_point("a:b:c").unwrap_err().message(),
            "invalid mount point format: a:b:c"
        );
        assert_eq!(normal_absolute("/a//b/./c/").unwrap(), "/a/b/c");
        assert_eq!(normal_absolute("/").unwrap(), "/");
        assert_eq!(normal_absolute("//a").unwrap(), "//a");
        assert_eq!(
            normal_absolute("relative").unwrap_err().message(),
            "path must be absolute: relative"
        );
        assert_eq!(
            normal_absolute("/a/../b").unwrap_err().message(),
            ".. are not allowed: /a/../b"
        );
    }

    #[test]
    fn windows_paths() {
        assert!(
            is_absolute_windows(r"C:\x") && is_absolute_windows("c:/x") && is_absolute_windows(r"\\h\s\x")
        );
        assert!(
            !is_absolute_windows("/abs/unix")
                && !is_absolute_windows(r"rel\x")
                && !is_absolute_windows("C:x")
        );
    }

    #[test]
    fn users() {
        let user = parse_user("1000:docker").unwrap();
        assert_eq!(
            (user.uid, user.groupname.as_deref()),
            (Some(1000), Some("docker"))
        );
        for (text, message) in [
            ("a:b:c", "invalid user format: too many parts"),
            ("", "invalid user format: empty user name or id"),
            ("a:", "invalid user format: empty group name or id"),
            ("-1", "invalid user format: negative uid -1"),
            (
                "x\n  ProxyCommand sh",
                r#"invalid user format: whitespace or control characters in "x\n  ProxyCommand sh""#,
            ),
            (
                "app:my group",
                r#"invalid user format: whitespace or control characters in "my group""#,
            ),
        ] {
            assert_eq!(parse_user(text).unwrap_err().message(), message);
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = split_mount_point(&text);
            let _ = normal_absolute(&text);
            let _ = is_absolute_windows(&text);
            let _ = parse_user(&text);
        }
    }
}
