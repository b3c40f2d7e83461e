//! How the requests of a service are spread over its replicas.

use crate::string_enum;

string_enum! {
    /// Which replica gets a request.
    pub enum Balancing {
        /// The less busy one of two chosen at random.
        LeastRequests = "least_requests",
        /// The one that has seen most of the beginning of the prompt, unless it is too busy.
        Prefix = "prefix",
    }
}
