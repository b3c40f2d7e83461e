//! `cargo xtask add-backend NAME`: a new backend that builds and passes every check from the first moment.
//!
//! It is CloudRift's under another name, with its emulator and its checks, and is then changed call by call. What lists backends
//! gets a line beside each of CloudRift's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::exec::succeeds;
use crate::layout;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The `type` of the backend in configurations: lower-case letters and digits
    name: String,
    /// As the vendor writes its name, without blanks: `CloudRift`
    #[arg(long)]
    title: Option<String>,
    /// The catalogue has the vendor's prices: they are not asked for
    #[arg(long)]
    in_catalog: bool,
}

pub(crate) fn run(args: &Args) -> Result<i32> {
    let root = layout::root();
    let names = Names::new(&root, &args.name, args.title.as_deref())?;
    let changed = add(&root, &names, args.in_catalog)?;
    let formatted = succeeds(Command::new("cargo").current_dir(&root).args(["fmt", "--all"]));
    for path in &changed {
        println!("{}", path.display());
    }
    if !formatted {
        println!("warning: cargo fmt does not run here");
    }
    println!("\nIt builds, and passes the checks as CloudRift's:");
    println!("  cargo nextest run -p dstack-backend-conformance {}", names.name);
    println!("What comes next: docs/adding-a-backend.md");
    Ok(0)
}

/// What the backend is called, instead of `cloudrift` and `CloudRift`.
struct Names {
    /// In configurations, names of crates and modules.
    name: String,
    /// In types, and in texts for people.
    title: String,
    /// dstack 0.22.5 has such a backend: its type and its configuration are there.
    is_known: bool,
}

const TYPES: &str = "crates/dstack-model/src/backends.rs";

impl Names {
    fn new(root: &Path, name: &str, title: Option<&str>) -> Result<Self> {
        let is_letter = |letter: char| letter.is_ascii_lowercase();
        ensure!(
            name.starts_with(is_letter) && name.chars().all(|one| is_letter(one) || one.is_ascii_digit()),
            "`{name}` is no name of a backend: lower-case letters and digits, such as `cloudrift`"
        );
        ensure!(
            !root.join("backends").join(name).exists(),
            "backends/{name} is there already"
        );
        let types = read(&root.join(TYPES))?;
        let known = types
            .lines()
            .find_map(|line| line.trim().strip_suffix(&format!(" = \"{name}\",")));
        let (first, rest) = name.split_at(1);
        let title = match (known, title) {
            (Some(known), _) => known.to_owned(),
            (None, Some(title)) => title.to_owned(),
            (None, None) => format!("{}{rest}", first.to_ascii_uppercase()),
        };
        let is_type = |title: &str| {
            title.starts_with(|first: char| first.is_ascii_uppercase())
                && title.chars().all(|one| one.is_ascii_alphanumeric())
        };
        ensure!(
            is_type(&title),
            "--title `{title}`: letters and digits, the first a capital, such as `CloudRift`"
        );
        Ok(Self {
            name: name.to_owned(),
            title,
            is_known: known.is_some(),
        })
    }

    fn rename(&self, text: &str) -> String {
        // The vendor's own address is not known: a key is sent to nobody until somebody has written it.
        text.replace("cloudrift.ai", &format!("{}.invalid", self.name))
            .replace("cloudrift", &self.name)
            .replace("CloudRift", &self.title)
    }
}

/// What lists backends: files, and the text for which the new one gets the same.
const LISTS: &[(&str, &str)] = &[
    (
        "Cargo.toml",
        "dstack-backend-cloudrift = { path = \"backends/cloudrift\" }\n",
    ),
    (
        "Cargo.toml",
        "dstack-emulator-cloudrift = { path = \"backends/cloudrift/emulator\" }\n",
    ),
    (
        "crates/dstack-backends/Cargo.toml",
        "dstack-backend-cloudrift.workspace = true\n",
    ),
    (
        "crates/dstack-backends/src/lib.rs",
        "    dstack_backend_cloudrift::kind,\n",
    ),
    (
        "backends/conformance/Cargo.toml",
        "dstack-backend-cloudrift.workspace = true\n",
    ),
    (
        "backends/conformance/Cargo.toml",
        "dstack-emulator-cloudrift.workspace = true\n",
    ),
    ("backends/conformance/tests/all/main.rs", "mod cloudrift;\n"),
];

/// The same for the type and its configuration, which the backends of dstack 0.22.5 have.
const TYPE_LISTS: &[(&str, &str)] = &[
    (
        TYPES,
        "        /// CloudRift.\n        CloudRift = \"cloudrift\",\n",
    ),
    (
        "crates/dstack-compute/src/config.rs",
        "    CloudRift(CloudRiftConfig) = \"cloudrift\",\n",
    ),
    (
        "crates/dstack-compute/src/config/gpu_clouds.rs",
        "cloud!(\n    /// The configuration of the backend for CloudRift.\n    CloudRiftTag = \"cloudrift\", CloudRiftConfig {\n        \
         /// Regions to use; all when unset.\n        regions: [Option<Vec<String>>],\n    } ApiKeyCreds\n);\n",
    ),
];

/// Writes the new backend, and returns what was written or changed, below the root. What cannot be done is found before anything
/// is written.
fn add(root: &Path, names: &Names, in_catalog: bool) -> Result<Vec<PathBuf>> {
    let mut files = copies(root, names)?;
    if !in_catalog {
        sells_what_the_vendor_says(&mut files, names)?;
    }
    files.push(File {
        path: PathBuf::from(format!("docs/backends/{}.md", names.name)),
        text: names.rename(include_str!("add_backend/page.md")),
    });
    files.extend(lists(root, names)?);
    for file in &files {
        let path = root.join(&file.path);
        if let Some(folder) = path.parent() {
            fs_err::create_dir_all(folder)?;
        }
        fs_err::write(&path, &file.text)?;
    }
    Ok(files.into_iter().map(|file| file.path).collect())
}

struct File {
    /// Below the root.
    path: PathBuf,
    text: String,
}

/// CloudRift's crates and checks under the new name.
fn copies(root: &Path, names: &Names) -> Result<Vec<File>> {
    let model = Path::new("backends/cloudrift");
    let mut paths = Vec::new();
    for folder in ["", "src", "emulator", "emulator/src"] {
        for entry in fs_err::read_dir(root.join(model).join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(model.join(folder).join(entry.file_name()));
            }
        }
    }
    paths.push(PathBuf::from("backends/conformance/tests/all/cloudrift.rs"));
    paths.sort();
    let copy = |path: PathBuf| {
        let text = read(&root.join(&path))?;
        Ok(File {
            path: PathBuf::from(names.rename(&path.to_string_lossy())),
            text: names.rename(&text),
        })
    };
    paths.into_iter().map(copy).collect()
}

/// What is sold, and its prices, is what the vendor's API says: the catalogue does not have them.
fn sells_what_the_vendor_says(files: &mut [File], names: &Names) -> Result<()> {
    let folder = format!("backends/{}", names.name);
    edit(files, &format!("{folder}/src/offers.rs"), |_| {
        Ok(names.rename(include_str!("add_backend/offers.rs.txt")))
    })?;
    edit(files, &format!("{folder}/src/client.rs"), |text| {
        let sizes = names.rename(include_str!("add_backend/sizes.rs.txt"));
        replaced(
            text,
            "/// A type of machines, with its sizes.\n",
            "/// Images of one kind.\n",
            &format!("{sizes}\n"),
        )
    })?;
    edit(files, &format!("{folder}/Cargo.toml"), |text| {
        let before = "dstack-compute.workspace = true\n";
        let catalog = "dstack-catalog.workspace = true\ndstack-catalog-offers.workspace = true\n";
        Ok(text.replace(before, &format!("{catalog}{before}")))
    })?;
    let checks = format!("backends/conformance/tests/all/{}.rs", names.name);
    edit(files, &checks, |text| {
        let text = text.replace("use dstack_catalog::{Filter, builtin};\n", "");
        let sizes = include_str!("add_backend/cloud.rs.txt");
        let start = "/// A cloud that has all sizes of the catalogue.\n";
        let text = replaced(&text, start, "    let emulator = ", sizes)?;
        Ok(text.replace("sizes.collect()", "sizes.into()"))
    })
}

fn edit(files: &mut [File], path: &str, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let file = files.iter_mut().find(|file| file.path == Path::new(path));
    let file = file.with_context(|| format!("{path}: {CHANGED}"))?;
    file.text = change(&file.text)?;
    Ok(())
}

const CHANGED: &str = "the model has changed, and cargo xtask add-backend has to follow";

/// The text with what stands from `start` to before `end` replaced.
fn replaced(text: &str, start: &str, end: &str, new: &str) -> Result<String> {
    let (before, rest) = text.split_once(start).context(CHANGED)?;
    let at = rest.find(end).context(CHANGED)?;
    let after = rest.get(at..).context(CHANGED)?;
    Ok(format!("{before}{new}{after}"))
}

/// The lists with the new backend in them.
fn lists(root: &Path, names: &Names) -> Result<Vec<File>> {
    let of_types = TYPE_LISTS.iter().filter(|_| !names.is_known);
    let mut files: Vec<File> = Vec::new();
    for (path, text) in LISTS.iter().chain(of_types) {
        let path = PathBuf::from(path);
        let file = match files.iter_mut().find(|file| file.path == path) {
            Some(file) => file,
            None => {
                let text = read(&root.join(&path))?;
                files.push(File {
                    path: path.clone(),
                    text,
                });
                files.last_mut().context("what was pushed is there")?
            }
        };
        if !file.text.contains(text) {
            bail!(
                "{} has no line\n{text}beside which {} would stand",
                path.display(),
                names.name
            );
        }
        file.text = file
            .text
            .replacen(text, &format!("{text}{}", names.rename(text)), 1);
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    Ok(fs_err::read_to_string(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What of the repository the command reads.
    fn repository() -> tempfile::TempDir {
        let (root, copy) = (layout::root(), tempfile::tempdir().unwrap());
        let mut paths: Vec<PathBuf> = LISTS
            .iter()
            .chain(TYPE_LISTS)
            .map(|(path, _)| PathBuf::from(path))
            .collect();
        let model = Names {
            name: "cloudrift".to_owned(),
            title: "CloudRift".to_owned(),
            is_known: true,
        };
        paths.extend(copies(&root, &model).unwrap().into_iter().map(|file| file.path));
        for path in paths {
            let to = copy.path().join(&path);
            fs_err::create_dir_all(to.parent().unwrap()).unwrap();
            fs_err::copy(root.join(&path), to).unwrap();
        }
        copy
    }

    fn added(name: &str, title: Option<&str>, in_catalog: bool) -> Result<(tempfile::TempDir, Vec<PathBuf>)> {
        let copy = repository();
        let names = Names::new(copy.path(), name, title)?;
        let changed = add(copy.path(), &names, in_catalog)?;
        Ok((copy, changed))
    }

    #[test]
    fn a_new_backend_stands_beside_its_model_wherever_backends_are_listed() {
        let (copy, changed) = added("acme", Some("AcmeCloud"), false).unwrap();
        let text = |path: &str| read(&copy.path().join(path)).unwrap();
        for (path, lines) in LISTS.iter().chain(TYPE_LISTS) {
            let new = lines
                .replace("cloudrift", "acme")
                .replace("CloudRift", "AcmeCloud");
            assert_eq!(text(path).matches(&new).count(), 1, "{path}");
            assert!(changed.contains(&PathBuf::from(path)), "{path}");
        }
        let offers = text("backends/acme/src/offers.rs");
        assert!(
            offers.contains("impl AcmeCloud {") && offers.contains("vendor_offers("),
            "{offers}"
        );
        let client = text("backends/acme/src/client.rs");
        assert!(client.contains("pub(crate) cost_per_hour: f64"), "{client}");
        assert!(
            client.contains("\"https://api.acme.invalid/"),
            "no key goes to a stranger"
        );
        assert!(text("backends/acme/Cargo.toml").contains("dstack-catalog-offers.workspace = true"));
        assert!(!text("backends/conformance/tests/all/acme.rs").contains("builtin"));
        assert!(text("docs/backends/acme.md").contains("- type: acme"));
        for path in changed {
            let left = text(&path.to_string_lossy()).to_lowercase().contains("cloudrift");
            let is_list = LISTS
                .iter()
                .chain(TYPE_LISTS)
                .any(|(list, _)| Path::new(list) == path);
            assert!(!left || is_list, "{} speaks of the model", path.display());
        }
    }

    #[test]
    fn backends_of_the_reference_have_their_type_and_configuration() {
        let (copy, changed) = added("hotaisle", None, true).unwrap();
        assert!(!changed.contains(&PathBuf::from(TYPES)), "{changed:?}");
        let offers = read(&copy.path().join("backends/hotaisle/src/offers.rs")).unwrap();
        assert!(offers.contains("BackendType::HotAisle"), "{offers}");
    }

    #[test]
    fn what_cannot_be_a_backend_is_refused_and_nothing_is_written() {
        for (name, title, part) in [
            ("Acme", None, "lower-case"),
            ("", None, "lower-case"),
            ("a-b", None, "lower-case"),
            ("acme", Some("Acme Cloud"), "--title"),
            ("cloudrift", None, "there already"),
        ] {
            let error = added(name, title, false).err().unwrap().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        let copy = repository();
        fs_err::write(
            copy.path().join("backends/conformance/tests/all/main.rs"),
            "mod aws;\n",
        )
        .unwrap();
        let names = Names::new(copy.path(), "acme", None).unwrap();
        let error = add(copy.path(), &names, false).unwrap_err().to_string();
        assert!(error.contains("mod cloudrift;"), "{error}");
        assert!(!copy.path().join("backends/acme").exists());
    }
}
