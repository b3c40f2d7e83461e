//! Makes the executable anew when the agent that it carries has changed.

#[allow(clippy::disallowed_methods)] // a build script has no other way to its environment
fn main() {
    println!("cargo::rerun-if-env-changed=DSTACK_AGENT_ZST");
    if let Ok(path) = std::env::var("DSTACK_AGENT_ZST") {
        println!("cargo::rerun-if-changed={path}");
    }
}
