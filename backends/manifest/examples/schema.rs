//! Prints the JSON Schema of manifests, which is `docs/schemas/manifest.schema.json`.
#![allow(clippy::print_stdout)]

fn main() {
    println!("{:#}", dstack_backend_manifest::schema());
}
