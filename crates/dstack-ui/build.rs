//! Makes the list of the built files of the page in `ui/dist/app`. Where it was not built the list is empty.

use std::error::Error;
use std::path::{Path, PathBuf};

/// What the build leaves for tools, not for browsers.
const NOT_SERVED: &[&str] = &["manifest.json"];

#[allow(clippy::disallowed_methods)] // a build script has no other way to its environment, nor to files
fn main() -> Result<(), Box<dyn Error>> {
    let dist = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?)
        .join("../../ui/dist")
        .canonicalize()?;
    println!("cargo::rerun-if-changed={}", dist.display());
    let app = dist.join("app");
    let mut files = Vec::new();
    if app.is_dir() {
        collect(&app, &mut files)?;
    }
    files.sort();
    let mut list = String::from("&[");
    for file in files {
        let path = file.strip_prefix(&app)?.to_string_lossy().into_owned();
        if NOT_SERVED.contains(&path.as_str()) {
            continue;
        }
        list.push_str(&format!(
            "File {{ path: {path:?}, plain: include_bytes!({file:?}), brotli: {}, gzip: {} }}, ",
            packed(&file, "br"),
            packed(&file, "gz")
        ));
    }
    list.push(']');
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("files.rs"), list)?;
    Ok(())
}

/// All files below a folder, but for the packed ones that stand beside others.
#[allow(clippy::disallowed_methods)]
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if !path
            .extension()
            .is_some_and(|ending| ending == "br" || ending == "gz")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// The packed file beside this one, as an expression.
fn packed(file: &Path, ending: &str) -> String {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    let path = PathBuf::from(name);
    match path.is_file() {
        true => format!("Some(include_bytes!({path:?}))"),
        false => "None".to_owned(),
    }
}
