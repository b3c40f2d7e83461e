//! What a client sends: the replica gets the requests that it was, each as a whole, and nothing besides.
#![no_main]

use dstack_proxy::Balancing;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dstack_fuzz::requests::pass_on(bytes, Balancing::LeastRequests);
    dstack_fuzz::requests::pass_on(bytes, Balancing::Prefix);
});
