//! Amounts as Kubernetes writes them: `500m`, `16Gi`, `4`, `1e3`.

/// Reads an amount in its unit; `None`: it is none.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(plain) = text.parse::<f64>() {
        return (plain.is_finite() && plain >= 0.0).then_some(plain);
    }
    let units = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(units);
    let factor = match unit {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Whole ones, what is left over is dropped.
#[allow(clippy::cast_possible_truncation)] // sizes of nodes
pub(crate) const fn whole(amount: f64) -> i64 {
    amount.floor() as i64
}

/// Bytes in whole MiB.
pub(crate) const fn mib(bytes: f64) -> i64 {
    whole(bytes / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("4", Some(4.0)),
            ("3900m", Some(3.9)),
            ("16Gi", Some(17_179_869_184.0)),
            ("65838212Ki", Some(67_418_329_088.0)),
            ("2M", Some(2_000_000.0)),
            ("1e3", Some(1000.0)),
            ("1.5Gi", Some(1_610_612_736.0)),
            ("", None),
            ("-1", None),
            ("4x", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(mib(17_179_869_184.0), 16_384);
    }
}
