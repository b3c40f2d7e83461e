//! One offer: an instance type in a place at a price.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{CpuArch, Provider, Vendor};

/// The vendor of that name, in any case; no aliases (`tpu` is none).
pub(crate) fn cast_vendor(text: &str) -> Result<Vendor, String> {
    Vendor::from_name(text).map_err(|error| error.to_string())
}

/// The architecture of that name, in any case.
pub(crate) fn cast_arch(text: &str) -> Result<CpuArch, String> {
    text.parse()
        .map_err(|error: dstack_units::ParseError| error.to_string())
}

/// What the provider's create call needs besides the instance name: JSON, kept as it was written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProviderData(Arc<str>);

impl ProviderData {
    /// From JSON text, which must be valid.
    pub fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<&RawValue>(text)?;
        Ok(Self(text.into()))
    }

    /// From JSON text known to be valid.
    pub(crate) fn from_checked(text: &str) -> Self {
        Self(text.into())
    }

    /// From a JSON value, written with a blank after `,` and `:` as the published files have it.
    pub fn from_value(value: &serde_json::Value) -> Self {
        let mut text = String::new();
        write_spaced(value, &mut text);
        Self(text.into())
    }

    /// The JSON text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The JSON value; `null` never, because the text was checked.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl Default for ProviderData {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl fmt::Debug for ProviderData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ProviderData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(&self.0) {
            Ok(raw) => raw.serialize(serializer),
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

fn write_spaced(value: &serde_json::Value, out: &mut String) {
    use serde_json::Value;
    match value {
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                write_spaced(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (at, (name, field)) in fields.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                out.push_str(&Value::String(name.clone()).to_string());
                out.push_str(": ");
                write_spaced(field, out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// One offer, standing alone. Queries return the cheaper [`crate::Offer`], which points into the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    /// Who sells it.
    pub provider: Provider,
    /// What the provider's create call needs: instance type, plan, offer id.
    pub instance_name: String,
    /// Region or zone.
    pub location: String,
    /// USD per hour for the whole instance, all accelerators included.
    pub price: f64,
    /// Number of vCPUs.
    pub cpu: i64,
    /// RAM in GiB.
    pub memory: f64,
    /// Accelerators in the instance; 1 for a TPU slice.
    pub gpu_count: i64,
    /// Normalised name (`A100`, `RTX4090`, `v5litepod-8`).
    pub gpu_name: Option<String>,
    /// GiB per accelerator.
    pub gpu_memory: Option<f64>,
    /// Set whenever `gpu_count` is not 0.
    pub gpu_vendor: Option<Vendor>,
    /// Whether the price is that of an interruptible instance.
    pub spot: bool,
    /// GB of the fixed disk; `None` when it is configurable or unknown.
    pub disk_size: Option<f64>,
    /// Instruction set of the CPU.
    pub cpu_arch: CpuArch,
    /// Markers that hide the offer from callers who did not ask for them.
    pub flags: Vec<String>,
    /// Handed back unchanged when the instance is created.
    pub provider_data: ProviderData,
}

impl Item {
    /// An on-demand CPU offer; callers fill in the rest.
    pub fn new(provider: Provider, instance_name: impl Into<String>, location: impl Into<String>) -> Self {
        Self {
            provider,
            instance_name: instance_name.into(),
            location: location.into(),
            price: 0.0,
            cpu: 0,
            memory: 0.0,
            gpu_count: 0,
            gpu_name: None,
            gpu_memory: None,
            gpu_vendor: None,
            spot: false,
            disk_size: None,
            cpu_arch: CpuArch::X86,
            flags: Vec::new(),
            provider_data: ProviderData::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_know_no_aliases() {
        assert_eq!(cast_vendor("AMD"), Ok(Vendor::Amd));
        assert_eq!(
            cast_vendor("TPU"),
            Err("'tpu' is not a valid AcceleratorVendor".to_owned())
        );
        assert_eq!(cast_arch("ARM"), Ok(CpuArch::Arm));
        assert_eq!(
            cast_arch("RISCV"),
            Err("'riscv' is not a valid CPUArchitecture".to_owned())
        );
    }

    #[test]
    fn provider_data_is_written_with_blanks() {
        let value = serde_json::json!({"fabrics": ["a", "b"], "n": 1.5, "o": {}});
        let data = ProviderData::from_value(&value);
        assert_eq!(data.text(), r#"{"fabrics": ["a", "b"], "n": 1.5, "o": {}}"#);
        assert_eq!(data.value(), value);
        assert!(ProviderData::from_text("{").is_err());
    }
}
