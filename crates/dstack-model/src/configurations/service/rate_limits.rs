//! Rate limits of a service, counted by client address or by header.

use dstack_units::number::quote_list;
use serde::Serialize;

use crate::configurations::group_names::duplicates;
use crate::{Decode, tag};

tag!(
    /// The value of `type` for [`IpAddressPartitioningKey`].
    pub IpAddressTag = "ip_address"
);
tag!(
    /// The value of `type` for [`HeaderPartitioningKey`].
    pub HeaderTag = "header"
);

/// Each client address has limits of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct IpAddressPartitioningKey {
    /// Partitioning type: `ip_address`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: IpAddressTag,
}

/// Each value of a header has limits of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct HeaderPartitioningKey {
    /// Partitioning type: `header`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: HeaderTag,
    /// Name of the header to use for partitioning.
    #[decode(pattern = "^[a-zA-Z0-9-_]+$", max_len = 500)]
    pub header: String,
}

/// Which requests share a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum PartitioningKey {
    /// By client address.
    #[decode(rename = "ip_address")]
    IpAddress(IpAddressPartitioningKey),
    /// By a header.
    #[decode(rename = "header")]
    Header(HeaderPartitioningKey),
}

/// A limit of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct RateLimit {
    /// URL path prefix to which this limit is applied. The longest matching prefix is applied.
    #[decode(default = "/".to_owned(), max_len = 4094, pattern = r"^/[^\s\\{}]*$")]
    pub prefix: String,
    /// The partitioning key. Defaults to partitioning by client IP address.
    #[decode(default = PartitioningKey::IpAddress(IpAddressPartitioningKey::default()))]
    pub key: PartitioningKey,
    /// Max allowed number of requests per second.
    #[decode(ge = 1.0 / 60.0, le = i64::MAX / 60)]
    pub rps: f64,
    /// Max number of requests that can be passed to the service ahead of the rate limit.
    #[decode(default = 0, ge = 0)]
    pub burst: i64,
}

pub(super) fn check_unique(limits: Vec<RateLimit>) -> Result<Vec<RateLimit>, String> {
    let duplicates = duplicates(limits.iter().map(|limit| limit.prefix.as_str()));
    if duplicates.is_empty() {
        return Ok(limits);
    }
    Err(format!(
        "Prefixes {} are used more than once. Each rate limit should have a unique path prefix",
        quote_list(&duplicates)
    ))
}
