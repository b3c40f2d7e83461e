//! Prints the OpenAPI document: `cargo run -p dstack-server --example openapi`.
#![allow(clippy::print_stdout)]

fn main() {
    println!("{}", dstack_server::docs::document());
}
