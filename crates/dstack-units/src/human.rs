//! Sizes and durations for people's eyes.

/// Bytes with one digit after the point: `3.0MiB`, `97.0B`.
#[allow(clippy::cast_precision_loss)]
pub fn bytes(count: u64) -> String {
    let mut size = count as f64;
    for unit in ["", "Ki", "Mi", "Gi", "Ti", "Pi"] {
        if size < 1024.0 {
            return format!("{size:.1}{unit}B");
        }
        size /= 1024.0;
    }
    format!("{size:.1}EiB")
}

/// A size in mebibytes as gigabytes, at most one digit after the point: `16GB`, `0.5GB`.
#[allow(clippy::cast_precision_loss)]
pub fn mib_as_gb(mib: i64) -> String {
    let text = format!("{:.1}", mib as f64 / 1024.0);
    format!("{}GB", text.strip_suffix(".0").unwrap_or(&text))
}

/// Seconds with the two greatest units: `1h 5m`, `42s`.
pub fn seconds(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (factor, unit) in UNITS {
        let count = rest / factor;
        rest %= factor;
        if count > 0 && parts.len() < 2 {
            parts.push(format!("{count}{unit}"));
        }
    }
    if parts.is_empty() {
        "0s".to_owned()
    } else {
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints() {
        assert_eq!(bytes(97), "97.0B");
        assert_eq!(bytes(3 * 1024 * 1024), "3.0MiB");
        assert_eq!(mib_as_gb(16 * 1024), "16GB");
        assert_eq!(mib_as_gb(512), "0.5GB");
        assert_eq!(seconds(3900), "1h 5m");
        assert_eq!(seconds(0), "0s");
    }
}
