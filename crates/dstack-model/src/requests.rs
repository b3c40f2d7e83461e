//! Bodies of requests, and of the answers that are no entity themselves.

mod access;
mod infrastructure;
mod workloads;

pub use access::*;
pub use infrastructure::*;
pub use workloads::*;
