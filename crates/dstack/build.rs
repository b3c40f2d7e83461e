//! Makes the list of the agents that the executable carries (`embed-agent`), and makes it anew when one of them has changed.

use std::error::Error;
use std::path::Path;

#[allow(clippy::disallowed_methods)] // a build script has no other way to its environment, nor to files
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=DSTACK_AGENTS_ZST");
    let mut list = String::from("&[");
    if std::env::var_os("CARGO_FEATURE_EMBED_AGENT").is_some() {
        let named = std::env::var("DSTACK_AGENTS_ZST").map_err(
            |_| "set DSTACK_AGENTS_ZST to ARCHITECTURE=FILE[,ARCHITECTURE=FILE], as `cargo xtask dist` does",
        )?;
        for pair in named.split(',') {
            let (arch, path) = pair
                .split_once('=')
                .ok_or("DSTACK_AGENTS_ZST: ARCHITECTURE=FILE")?;
            println!("cargo::rerun-if-changed={path}");
            list.push_str(&format!(
                "Embedded {{ arch: {arch:?}, packed: include_bytes!({path:?}) }}, "
            ));
        }
    }
    list.push(']');
    let folder = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("agents.rs"), list)?;
    Ok(())
}
