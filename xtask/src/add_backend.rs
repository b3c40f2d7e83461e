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
    /// The type's configuration is of another form than CloudRift's: the copy is changed before it builds
    #[arg(long)]
    other_config: bool,
}

pub(crate) fn run(args: &Args) -> Result<i32> {
    let root = layout::root();
    let names = Names::new(&root, &args.name, args.title.as_deref())?;
    let other = names.other_form(&root)?;
    if let Some(form) = other.as_ref().filter(|_| !args.other_config) {
        bail!(
            "{}\nTo have the copy all the same, and change that first: --other-config",
            to_be_changed(&names, form)
        );
    }
    let changed = add(&root, &names, args.in_catalog)?;
    let formatted = succeeds(Command::new("cargo").current_dir(&root).args(["fmt", "--all"]));
    for path in &changed {
        println!("{}", path.display());
    }
    if !formatted {
        println!("warning: cargo fmt does not run here");
    }
    match &other {
        None => println!("\nIt builds, and passes the checks as CloudRift's:"),
        Some(form) => println!(
            "\n{}\nThen it passes the checks as CloudRift's:",
            to_be_changed(&names, form)
        ),
    }
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

/// What has to be changed in a copy whose type has a configuration of another form.
fn to_be_changed(names: &Names, form: &str) -> String {
    let (name, title) = (&names.name, &names.title);
    format!(
        "The copy does not build yet, as the configuration of `{name}` is not of CloudRift's form ({form}). Change these first:\n  \
         `client`, `check` and `open` in backends/{name}/src/lib.rs: they read `creds.api_key` and `regions` of `{title}Config`\n  \
         `config` and `refused` in backends/conformance/tests/all/{name}.rs: a configuration with that type's fields"
    )
}

/// Names that crates, modules or types of the build have already, or that Rust keeps for itself.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "cloud",
    "clouds",
    "config",
    "conformance",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dstack",
    "dyn",
    "else",
    "emulator",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "kit",
    "let",
    "loop",
    "macro",
    "main",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc",
    "pub",
    "ref",
    "remote",
    "return",
    "self",
    "ssh",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "tests",
    "toy",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "union",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Types that a backend has in scope beside its own.
const RESERVED_TITLES: &[&str] = &[
    "Backend",
    "BackendKind",
    "Cached",
    "Call",
    "Capabilities",
    "Client",
    "CloudKind",
    "Env",
    "Instance",
    "Kind",
    "Machine",
    "Made",
    "Owned",
    "Removal",
    "Self",
    "Sign",
    "Sold",
    "Step",
];

const TYPES: &str = "crates/dstack-model/src/backends.rs";

impl Names {
    fn new(root: &Path, name: &str, title: Option<&str>) -> Result<Self> {
        let is_letter = |letter: char| letter.is_ascii_lowercase();
        ensure!(
            name.starts_with(is_letter) && name.chars().all(|one| is_letter(one) || one.is_ascii_digit()),
            "`{name}` is no name of a backend: lower-case letters and digits, such as `cloudrift`"
        );
        ensure!(
            !RESERVED.contains(&name),
            "`{name}` is taken: Rust or a crate here has it. Take the vendor's whole name, such as `{name}cloud`"
        );
        ensure!(
            !root.join("backends").join(name).exists(),
            "backends/{name} is there already"
        );
        Self::of_type(root, name, title)
    }

    /// Of a type that may be there already.
    fn of_type(root: &Path, name: &str, title: Option<&str>) -> Result<Self> {
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
        ensure!(
            !RESERVED_TITLES.contains(&title.as_str()),
            "--title `{title}` is the name of a type that backends use: such as `{title}Cloud`"
        );
        Ok(Self {
            name: name.to_owned(),
            title,
            is_known: known.is_some(),
        })
    }

    /// How the type's configuration differs from CloudRift's, which has an API key and, if anything, what may be left out; `None`: it is
    /// of that form, or comes into being with the copy.
    fn other_form(&self, root: &Path) -> Result<Option<String>> {
        if !self.is_known {
            return Ok(None);
        }
        let text = read(&root.join(CONFIGURATIONS))?;
        let start = format!("{}Tag = \"{}\"", self.title, self.name);
        let Some((_, rest)) = text.split_once(&start) else {
            return Ok(Some(format!("it does not stand in {CONFIGURATIONS}")));
        };
        let block = rest.split_once("\n);").map_or(rest, |(block, _)| block);
        let needed = block
            .lines()
            .map(str::trim)
            .find(|line| line.contains(": [") && !line.contains(": [Option<"));
        if let Some((field, _)) = needed.and_then(|line| line.split_once(':')) {
            return Ok(Some(format!("`{field}` is required")));
        }
        let creds = block.rsplit('}').next().unwrap_or_default().trim();
        let has_key = creds.ends_with("ApiKeyCreds") && block.contains(" regions: [");
        Ok((!has_key).then(|| format!("`creds` are {creds}")))
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
        "dstack-backend-cloudrift = { workspace = true, optional = true }\n",
    ),
    ("crates/dstack-backends/Cargo.toml", "    \"cloudrift\",\n"),
    (
        "crates/dstack-backends/Cargo.toml",
        "cloudrift = [\"dep:dstack-backend-cloudrift\"]\n",
    ),
    (
        "crates/dstack-backends/src/lib.rs",
        "    #[cfg(feature = \"cloudrift\")]\n    dstack_backend_cloudrift::kind,\n",
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

const CONFIGURATIONS: &str = "crates/dstack-compute/src/config/gpu_clouds.rs";

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
        CONFIGURATIONS,
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
    edit(files, &format!("{folder}/src/lib.rs"), |text| {
        let mut text = text.to_owned();
        for (from, to) in KEPT_AS_SOLD {
            ensure!(text.contains(from), "{from}: {CHANGED}");
            text = text.replace(from, to);
        }
        Ok(text)
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

/// What is kept of the vendor's answer is what offers are looked up in.
const KEPT_AS_SOLD: &[(&str, &str)] = &[
    (
        "use client::{Client, ImageGroup, InstanceKind};\n",
        "use client::{Client, ImageGroup};\nuse offers::Sold;\n",
    ),
    (
        "            kinds: Cached::of_offers(",
        "            sold: Cached::of_offers(",
    ),
    (
        "    kinds: Cached<Vec<InstanceKind>>,\n",
        "    sold: Cached<Sold>,\n",
    ),
];

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
        let (copy, changed) = added("lambda", None, true).unwrap();
        assert!(!changed.contains(&PathBuf::from(TYPES)), "{changed:?}");
        let offers = read(&copy.path().join("backends/lambda/src/offers.rs")).unwrap();
        assert!(offers.contains("BackendType::Lambda"), "{offers}");
    }

    #[test]
    fn what_cannot_be_a_backend_is_refused_and_nothing_is_written() {
        for (name, title, part) in [
            ("Acme", None, "lower-case"),
            ("", None, "lower-case"),
            ("a-b", None, "lower-case"),
            ("acme", Some("Acme Cloud"), "--title"),
            ("acme", Some("Client"), "--title"),
            ("kit", None, "is taken"),
            ("conformance", None, "is taken"),
            ("test", None, "is taken"),
            ("match", None, "is taken"),
            ("gen", None, "is taken"),
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

    #[test]
    fn a_type_with_a_configuration_of_another_form_is_told() {
        let root = layout::root();
        for (name, part) in [
            ("lambda", None),
            ("lium", None),
            ("vultr", None),
            ("vastai", None),
            ("acme", None),
            ("hotaisle", Some("`team_handle` is required")),
            ("seeweb", Some("`creds` are ApiTokenCreds")),
            ("verda", Some("`creds` are ClientKeyCreds")),
            ("gcp", Some("does not stand in")),
            ("azure", Some("does not stand in")),
            ("oci", Some("does not stand in")),
            ("nebius", Some("does not stand in")),
        ] {
            let names = Names::of_type(&root, name, None).unwrap();
            let form = names.other_form(&root).unwrap();
            match part {
                None => assert_eq!(form, None, "{name}"),
                Some(part) => {
                    let text = to_be_changed(&names, &form.unwrap());
                    assert!(text.contains(part), "{text}");
                }
            }
        }
    }

    /// No test builds a copy, which takes minutes: that the templates fit the model, names tell.
    #[test]
    fn the_templates_use_what_the_model_and_the_framework_have() {
        let (copy, _) = added("acme", Some("AcmeCloud"), false).unwrap();
        let text = |path: &str| read(&copy.path().join(path)).unwrap();
        let (offers, library, client) = (
            text("backends/acme/src/offers.rs"),
            text("backends/acme/src/lib.rs"),
            text("backends/acme/src/client.rs"),
        );
        for (module, name) in imports(&offers) {
            let source = match module.strip_prefix("crate") {
                Some("") => library.clone(),
                Some("::client") => client.clone(),
                Some(other) => panic!("the module {other} is not the model's"),
                None => sources_of(&module),
            };
            assert!(has_word(&source, &name), "{module} has no {name}");
        }
        // What is read of the client, and what is kept.
        for used in ["instance_kinds", "InstanceKind", "Variant", "variants"] {
            assert!(has_word(&offers, used) && has_word(&client, used), "{used}");
        }
        assert!(library.contains("sold: Cached<Sold>") && !has_word(&library, "InstanceKind"));
        assert!(!has_word(&text("backends/acme/src/machines.rs"), "kinds"));
        // What the types read, the emulator says.
        let emulator = text("backends/acme/emulator/src/lib.rs");
        let fields = include_str!("add_backend/sizes.rs.txt").lines();
        let fields = fields.filter_map(|line| line.trim().strip_prefix("pub(crate) ")?.split_once(':'));
        for (field, _) in fields {
            assert!(
                emulator.contains(&format!("\"{field}\"")),
                "the emulator has no {field}"
            );
        }
    }

    /// Modules with what is taken of them, of the crates here.
    fn imports(text: &str) -> Vec<(String, String)> {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("use ")?.strip_suffix(';'));
        let of_line = |line: &str| -> Vec<(String, String)> {
            let Some((module, names)) = line.rsplit_once("::") else {
                return Vec::new();
            };
            let (module, names) = match line.split_once("::{") {
                Some((module, names)) => (module, names.trim_end_matches('}')),
                None => (module, names),
            };
            let names = names.split(", ").map(str::to_owned);
            names.map(|name| (module.to_owned(), name)).collect()
        };
        let all = lines.flat_map(of_line);
        all.filter(|(module, _)| !module.starts_with("std::")).collect()
    }

    /// All sources of a crate here.
    fn sources_of(module: &str) -> String {
        let name = module.split("::").next().unwrap().replace('_', "-");
        let folder = layout::root().join("crates").join(&name).join("src");
        let mut folders = vec![folder];
        let mut all = String::new();
        while let Some(folder) = folders.pop() {
            for entry in fs_err::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => all.push_str(&read(&path).unwrap()),
                }
            }
        }
        all
    }

    fn has_word(text: &str, word: &str) -> bool {
        let mut words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.any(|one| one == word)
    }
}
