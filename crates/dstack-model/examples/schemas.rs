//! Writes the JSON Schemas of configuration files and of `profiles.yml` into `docs/schemas`.
#![allow(clippy::print_stdout)]

use std::path::Path;

use dstack_model::configurations::AnyConfiguration;
use dstack_model::decode::Value;
use dstack_model::profiles::ProfilesConfig;
use dstack_model::schema::document;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    write(
        &folder.join("configuration.schema.json"),
        &document::<AnyConfiguration>(),
    )?;
    write(
        &folder.join("profiles.schema.json"),
        &document::<ProfilesConfig>(),
    )
}

fn write(path: &Path, schema: &Value) -> std::io::Result<()> {
    fs_err::write(path, format!("{schema:#}\n"))?;
    println!("{}", path.display());
    Ok(())
}
