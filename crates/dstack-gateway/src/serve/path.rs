//! Paths as checks see them: a path that a service may take for another one is checked as that.

use percent_encoding::percent_decode_str;

/// The path without escapes, empty and dotted segments.
pub(super) fn normal(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_slash = true;
    for segment in decoded.split('/') {
        ends_in_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let slash = if ends_in_slash && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{slash}", segments.join("/"))
}

/// What routers of models are asked for.
pub(super) fn is_of_router(normal: &str) -> bool {
    matches!(normal, "/generate" | "/chat/completions") || normal.starts_with("/v1/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_mean_the_same_are_the_same() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("//a///b/", "/a/b/"),
            ("/v1/../admin", "/admin"),
            ("/v1/%2e%2E/admin", "/admin"),
            ("/v1%2f..%2fadmin", "/admin"),
            ("/../../x/.", "/x/"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn only_paths_of_models_are_a_routers() {
        let of = |path: &str| is_of_router(&normal(path));
        assert!(of("/generate") && of("/chat/completions") && of("/v1/models") && of("//v1/x"));
        assert!(!of("/v1") && !of("/generate/x") && !of("/v1/../workers") && !of("/workers"));
    }
}
