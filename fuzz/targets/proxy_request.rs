//! What a client sends: whatever the replica gets as a whole is one request of the client's, as a whole, in its place.
#![no_main]

use dstack_proxy::Balancing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dstack_fuzz::requests::pass_on(bytes, Balancing::LeastRequests);
    dstack_fuzz::requests::pass_on(bytes, Balancing::Prefix);
});
