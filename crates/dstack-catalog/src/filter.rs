//! What a caller asks for.

use serde_json::Value;

use crate::item::{cast_arch, cast_vendor};
use crate::text::parse_int;
use crate::{CpuArch, Provider, Vendor};

/// The constraints of a query. `None` is no constraint; all bounds are inclusive.
///
/// Reference: dstack 0.22.5's catalogue, `QueryFilter`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// Provider names in any case; an empty list matches nothing.
    pub provider: Option<Vec<String>>,
    /// Instruction set of the CPU; any when unset.
    pub cpu_arch: Option<CpuArch>,
    /// vCPUs, at least.
    pub min_cpu: Option<i64>,
    /// vCPUs, at most.
    pub max_cpu: Option<i64>,
    /// GiB of RAM, at least.
    pub min_memory: Option<f64>,
    /// GiB of RAM, at most.
    pub max_memory: Option<f64>,
    /// Accelerators, at least. Exactly 0 opens all GPU constraints for offers without accelerators.
    pub min_gpu_count: Option<i64>,
    /// Accelerators, at most.
    pub max_gpu_count: Option<i64>,
    /// Vendor of the accelerators; any when unset.
    pub gpu_vendor: Option<Vendor>,
    /// Whole accelerator names in any case; an empty list matches no accelerator.
    pub gpu_name: Option<Vec<String>>,
    /// GiB per accelerator, at least.
    pub min_gpu_memory: Option<f64>,
    /// GiB per accelerator, at most.
    pub max_gpu_memory: Option<f64>,
    /// GiB of all accelerators together, at least.
    pub min_total_gpu_memory: Option<f64>,
    /// GiB of all accelerators together, at most.
    pub max_total_gpu_memory: Option<f64>,
    /// GB of disk, at least; offers without a fixed disk always pass.
    pub min_disk_size: Option<f64>,
    /// GB of disk, at most; offers without a fixed disk always pass.
    pub max_disk_size: Option<f64>,
    /// USD per hour, at least.
    pub min_price: Option<f64>,
    /// USD per hour, at most.
    pub max_price: Option<f64>,
    /// CUDA compute capability, at least.
    pub min_compute_capability: Option<(i64, i64)>,
    /// CUDA compute capability, at most.
    pub max_compute_capability: Option<(i64, i64)>,
    /// `false`: on-demand only; `true`: spot only.
    pub spot: Option<bool>,
    /// Every flag of an offer must be among these.
    pub allowed_flags: Option<Vec<String>>,
}

/// A filter that cannot be used. The texts are those of dstack 0.22.5, which clients compare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A value out of its domain (architecture, vendor, compute capability).
    #[error("{0}")]
    Value(String),
    /// No provider has this name.
    #[error("Unknown provider: {0}")]
    UnknownProvider(String),
    /// The provider is queried live, and nothing is registered to ask it.
    #[error("Provider is not loaded: {0}")]
    NotLoaded(String),
    /// Not a JSON object.
    #[error("the filter is not a JSON object: {0}")]
    NotAnObject(String),
    /// No constraint has this name.
    #[error("no filter has the name `{0}`: see `docs/catalog.md` for the names")]
    UnknownField(String),
    /// A constraint has a value of the wrong type.
    #[error("filter `{field}` must be {expected}, not {found}")]
    Type {
        /// Name of the constraint.
        field: String,
        /// What it takes.
        expected: &'static str,
        /// What was given.
        found: String,
    },
}

/// Reads a compute capability such as `8.6`.
pub fn parse_compute_capability(text: &str) -> Result<(i64, i64), FilterError> {
    let parts: Vec<&str> = text.split('.').collect();
    match parts.as_slice() {
        [major, minor] => Ok((
            parse_int(major).map_err(FilterError::Value)?,
            parse_int(minor).map_err(FilterError::Value)?,
        )),
        [] | [_] => Err(FilterError::Value(
            "not enough values to unpack (expected 2, got 1)".to_owned(),
        )),
        _ => Err(FilterError::Value(
            "too many values to unpack (expected 2)".to_owned(),
        )),
    }
}

impl Filter {
    /// Reads a filter from a JSON object with the field names of this struct.
    ///
    /// `provider` and `gpu_name` may be a text instead of a list; a compute capability may be a text or a pair.
    pub fn from_json(text: &str) -> Result<Self, FilterError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Self::from_fields(&fields),
            Ok(other) => Err(FilterError::NotAnObject(other.to_string())),
            Err(error) => Err(FilterError::NotAnObject(error.to_string())),
        }
    }

    fn from_fields(fields: &serde_json::Map<String, Value>) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        // Values are judged in a fixed order, whatever the order in the text, so that the first complaint is stable.
        for name in FIELDS {
            if let Some(value) = fields.get(*name)
                && !value.is_null()
            {
                filter.set(name, value)?;
            }
        }
        match fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            Some(unknown) => Err(FilterError::UnknownField(unknown.clone())),
            None => Ok(filter),
        }
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), FilterError> {
        let given = Given { name, value };
        match name {
            "cpu_arch" => {
                self.cpu_arch = given.choice(cast_arch)?;
            }
            "gpu_vendor" => {
                self.gpu_vendor = given.choice(cast_vendor)?;
            }
            "min_compute_capability" => self.min_compute_capability = Some(given.capability()?),
            "max_compute_capability" => self.max_compute_capability = Some(given.capability()?),
            "provider" => self.provider = Some(given.texts()?),
            "gpu_name" => self.gpu_name = Some(given.texts()?),
            "allowed_flags" => self.allowed_flags = Some(given.texts()?),
            "spot" => self.spot = Some(given.flag()?),
            "min_cpu" => self.min_cpu = Some(given.lower_int()?),
            "max_cpu" => self.max_cpu = Some(given.upper_int()?),
            "min_gpu_count" => self.min_gpu_count = Some(given.lower_int()?),
            "max_gpu_count" => self.max_gpu_count = Some(given.upper_int()?),
            "min_memory" => self.min_memory = Some(given.number()?),
            "max_memory" => self.max_memory = Some(given.number()?),
            "min_gpu_memory" => self.min_gpu_memory = Some(given.number()?),
            "max_gpu_memory" => self.max_gpu_memory = Some(given.number()?),
            "min_total_gpu_memory" => self.min_total_gpu_memory = Some(given.number()?),
            "max_total_gpu_memory" => self.max_total_gpu_memory = Some(given.number()?),
            "min_disk_size" => self.min_disk_size = Some(given.number()?),
            "max_disk_size" => self.max_disk_size = Some(given.number()?),
            "min_price" => self.min_price = Some(given.number()?),
            "max_price" => self.max_price = Some(given.number()?),
            other => return Err(FilterError::UnknownField(other.to_owned())),
        }
        Ok(())
    }

    /// The providers to ask, in the order of equal prices; `None` when the filter names none.
    pub fn providers(&self) -> Result<Option<Vec<Provider>>, FilterError> {
        let Some(names) = &self.provider else {
            return Ok(None);
        };
        let mut providers = names
            .iter()
            .map(|name| Provider::from_name(name).ok_or_else(|| FilterError::UnknownProvider(name.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        providers.sort_unstable();
        providers.dedup();
        Ok(Some(providers))
    }
}

/// Names of the constraints, those with a domain of their own first: they are judged before the providers are.
const FIELDS: &[&str] = &[
    "cpu_arch",
    "gpu_vendor",
    "min_compute_capability",
    "max_compute_capability",
    "provider",
    "min_cpu",
    "max_cpu",
    "min_memory",
    "max_memory",
    "min_gpu_count",
    "max_gpu_count",
    "gpu_name",
    "min_gpu_memory",
    "max_gpu_memory",
    "min_total_gpu_memory",
    "max_total_gpu_memory",
    "min_disk_size",
    "max_disk_size",
    "min_price",
    "max_price",
    "spot",
    "allowed_flags",
];

struct Given<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Given<'_> {
    fn wrong(&self, expected: &'static str) -> FilterError {
        FilterError::Type {
            field: self.name.to_owned(),
            expected,
            found: self.value.to_string(),
        }
    }

    fn choice<T>(&self, cast: fn(&str) -> Result<T, String>) -> Result<Option<T>, FilterError> {
        match self.value.as_str() {
            Some("") => Ok(None), // the reference takes an empty text for no constraint
            Some(text) => cast(text).map(Some).map_err(FilterError::Value),
            None => Err(self.wrong("a text")),
        }
    }

    fn texts(&self) -> Result<Vec<String>, FilterError> {
        let wrong = || self.wrong("a text or a list of texts");
        match self.value {
            Value::String(text) if self.name != "allowed_flags" => Ok(vec![text.clone()]),
            Value::Array(values) => values
                .iter()
                .map(|value| value.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect(),
            _ => Err(wrong()),
        }
    }

    fn flag(&self) -> Result<bool, FilterError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    fn number(&self) -> Result<f64, FilterError> {
        self.value.as_f64().ok_or_else(|| self.wrong("a number"))
    }

    /// A lower bound on whole numbers: 2.5 means 3 or more.
    fn lower_int(&self) -> Result<i64, FilterError> {
        match self.value.as_i64() {
            Some(whole) => Ok(whole),
            None => self.number().map(|number| number.ceil() as i64),
        }
    }

    /// An upper bound on whole numbers: 2.5 means 2 or less.
    fn upper_int(&self) -> Result<i64, FilterError> {
        match self.value.as_i64() {
            Some(whole) => Ok(whole),
            None => self.number().map(|number| number.floor() as i64),
        }
    }

    fn capability(&self) -> Result<(i64, i64), FilterError> {
        match self.value {
            Value::String(text) => parse_compute_capability(text),
            Value::Array(pair) => match pair.as_slice() {
                [major, minor] => major.as_i64().zip(minor.as_i64()),
                _ => None,
            }
            .ok_or_else(|| self.wrong("a text like 8.6 or a pair of whole numbers")),
            _ => Err(self.wrong("a text like 8.6 or a pair of whole numbers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_filters_take_texts_lists_and_pairs() {
        let filter = Filter::from_json(
            r#"{"provider": "AwS", "gpu_name": ["l4"], "min_compute_capability": [8, 6], "max_cpu": 2.5,
                "min_cpu": 2.5, "spot": null, "gpu_vendor": ""}"#,
        )
        .unwrap();
        assert_eq!(
            filter,
            Filter {
                provider: Some(vec!["AwS".into()]),
                gpu_name: Some(vec!["l4".into()]),
                min_compute_capability: Some((8, 6)),
                min_cpu: Some(3),
                max_cpu: Some(2),
                ..Filter::default()
            }
        );
    }

    #[test]
    fn complaints_are_those_of_the_reference() {
        let complaint = |text: &str| Filter::from_json(text).unwrap_err().to_string();
        assert_eq!(
            complaint(r#"{"min_compute_capability": "8"}"#),
            "not enough values to unpack (expected 2, got 1)"
        );
        assert_eq!(
            complaint(r#"{"max_compute_capability": "8.6.1"}"#),
            "too many values to unpack (expected 2)"
        );
        assert_eq!(
            complaint(r#"{"max_compute_capability": "a.1"}"#),
            "invalid literal for int() with base 10: 'a'"
        );
        assert_eq!(
            complaint(r#"{"cpu_arch": "RISCV"}"#),
            "'riscv' is not a valid CPUArchitecture"
        );
        assert!(complaint(r#"{"gpus": 1}"#).contains("`gpus`"));
        assert!(complaint("[]").contains("not a JSON object"));
        let unknown = Filter {
            provider: Some(vec!["aws".into(), "Nope".into()]),
            ..Filter::default()
        };
        assert_eq!(
            unknown.providers().unwrap_err().to_string(),
            "Unknown provider: Nope"
        );
    }
}
