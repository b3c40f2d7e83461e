//! How values are shown.

pub mod date;
pub mod resources;

use dstack_units::Seconds;

/// `$` and up to four decimals, without trailing zeros.
pub fn price(dollars: f64) -> String {
    format!("${}", amount(dollars))
}

/// Up to four decimals, without trailing zeros.
pub fn amount(value: f64) -> String {
    trim_zeros(&format!("{value:.4}")).to_owned()
}

/// `$` and up to six decimals, without trailing zeros: how plans show limits.
pub fn limit(dollars: f64) -> String {
    format!("${}", trim_zeros(&format!("{dollars:.6}")))
}

fn trim_zeros(text: &str) -> &str {
    text.trim_end_matches('0').trim_end_matches('.')
}

/// The largest unit that divides exactly: `1h`, `90s`.
pub fn duration(seconds: i64) -> String {
    if seconds == 0 {
        "0s".to_owned()
    } else {
        Seconds(seconds).to_string()
    }
}

/// All units: `1h 15m 45s`.
pub fn duration_long(seconds: i64) -> String {
    let mut rest = seconds.max(0);
    let mut parts = Vec::new();
    for (unit, factor) in [("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        let count = rest / factor;
        rest %= factor;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    if parts.is_empty() {
        "0s".to_owned()
    } else {
        parts.join(" ")
    }
}

/// `aws (eu-west-1)`; `ssh` for hosts reached over SSH; `-` when unknown.
pub fn backend(name: Option<&str>, region: Option<&str>) -> String {
    let Some(name) = name else { return "-".to_owned() };
    let name = backend_name(name);
    match region.filter(|region| !region.is_empty()) {
        Some(region) => format!("{name} ({region})"),
        None => name.to_owned(),
    }
}

/// A backend's name; `remote` is shown as `ssh`.
pub fn backend_name(name: &str) -> &str {
    if name == "remote" { "ssh" } else { name }
}

/// Blank for what is available, else lower-case words.
pub fn availability(value: &str) -> String {
    match value {
        "unknown" | "available" => String::new(),
        other => other.replace('_', " ").to_lowercase(),
    }
}

/// `project/name`; the plain name inside the current project.
pub fn reference(name: &str, project: &str, current: &str) -> String {
    if project == current {
        name.to_owned()
    } else {
        format!("{project}/{name}")
    }
}

/// First letter upper case, the rest lower case.
pub fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first
            .to_uppercase()
            .chain(characters.flat_map(char::to_lowercase))
            .collect()
    })
}

/// A service's URL: paths are relative to the server's URL.
pub fn service_url(server: &str, url: &str) -> String {
    if url.contains("://") {
        return url.to_owned();
    }
    format!("{}/{}", server.trim_end_matches('/'), url.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices() {
        for (value, shown) in [
            (0.096, "$0.096"),
            (2.0, "$2"),
            (98.32, "$98.32"),
            (0.02084, "$0.0208"),
            (0.0, "$0"),
            (100.0, "$100"),
        ] {
            assert_eq!(price(value), shown);
        }
        assert_eq!(limit(1.380_000_1), "$1.38");
        assert_eq!(limit(10.0), "$10");
    }

    #[test]
    fn durations() {
        for (seconds, shown) in [
            (0, "0s"),
            (300, "5m"),
            (3600, "1h"),
            (86_400, "1d"),
            (604_800, "1w"),
            (90, "90s"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
        assert_eq!(duration_long(4545), "1h 15m 45s");
        assert_eq!(duration_long(0), "0s");
    }

    #[test]
    fn backends() {
        assert_eq!(backend(Some("aws"), Some("eu-west-1")), "aws (eu-west-1)");
        assert_eq!(backend(Some("remote"), Some("")), "ssh");
        assert_eq!(backend(None, None), "-");
    }

    #[test]
    fn words() {
        assert_eq!(availability("no_quota"), "no quota");
        assert_eq!(availability("unknown"), "");
        assert_eq!(capitalize("exited (1)"), "Exited (1)");
        assert_eq!(capitalize(""), "");
    }

    #[test]
    fn service_urls() {
        assert_eq!(
            service_url("http://127.0.0.1:3000", "/proxy/services/main/x/"),
            "http://127.0.0.1:3000/proxy/services/main/x/"
        );
        assert_eq!(
            service_url("http://h/p", "https://x.example/"),
            "https://x.example/"
        );
    }
}
