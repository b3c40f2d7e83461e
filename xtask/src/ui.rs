//! `cargo xtask ui`: the web page, built with node and tested in a browser.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build::{self, Profile};
use crate::exec::{self, run_quietly, status, step};
use crate::report::Tally;
use crate::testenv::TestEnv;
use crate::{layout, package};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run its tests as well, in a browser against a server that is built for them
    #[arg(long)]
    test: bool,
}

/// Builds the page where `crates/dstack-ui` finds it.
pub(crate) fn run(args: &Args) -> Result<i32> {
    crate::interrupt::catch()?;
    build()?;
    println!("built {}", folder().join("dist/app").display());
    if !args.test {
        return Ok(0);
    }
    let env = TestEnv::for_page();
    step("building the programs");
    let agent = build::agent(Profile::DEV)?;
    let folder = build::programs()?;
    let programs = Programs {
        dstack: folder.join("dstack"),
        scale_server: folder.join("dstack-scale-server"),
        agent,
    };
    let tally = tests(&env, &programs)?;
    tally.print();
    Ok(i32::from(!tally.failed.is_empty()))
}

/// Where its source is.
fn folder() -> PathBuf {
    layout::root().join("ui")
}

/// The oldest node that the tools of the page run on, which is Debian 12's: major and minor version.
const OLDEST_NODE: (u32, u32) = (18, 18);

/// Makes sure that there are node and npm, from Debian's packages where they are missing.
fn ensure_node() -> Result<()> {
    package::ensure("node", "nodejs").context("the web page is built with node, which is missing")?;
    package::ensure("npm", "npm").context("the web page is built with npm, which is missing")?;
    let said = run_quietly(Command::new("node").arg("--version"))?;
    let version = version(&said).with_context(|| format!("node says it is {}", said.trim()))?;
    if version < OLDEST_NODE {
        let (major, minor) = OLDEST_NODE;
        bail!("node is {}; the page needs {major}.{minor} or newer", said.trim());
    }
    Ok(())
}

/// Major and minor of `v20.19.1`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut parts = said.trim().strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Makes sure that the tools and packages of the page are there.
pub(crate) fn prepare() -> Result<()> {
    ensure_node()?;
    install()
}

/// Builds the page, unless what it is made of is as it was: then nothing is needed, its files keep their times, and nothing that
/// carries them is compiled again.
pub(crate) fn build() -> Result<()> {
    let wanted = fingerprint()?;
    let built = Built::of(&folder().join("dist"));
    if built.is_of(&wanted) {
        return Ok(());
    }
    prepare()?;
    step("building the web page");
    built.remove()?;
    exec::run(npm().args(["run", "--silent", "build", "--", "--logLevel", "warn"]))
        .context("cannot build the web page")?;
    built.note(&wanted)
}

/// The same where the page is not needed: says why there is none.
pub(crate) fn build_if_possible() -> Result<()> {
    if let Err(error) = build() {
        leave_out()?;
        println!("warning: the server will have no web page: {error:#}");
    }
    Ok(())
}

/// Makes sure that binaries that are built from now on carry no page, also none that was built before.
pub(crate) fn leave_out() -> Result<()> {
    Built::of(&folder().join("dist")).remove()
}

/// A page that was built, and what it was made of. Both stand beside each other, so that builds into several target folders agree.
struct Built {
    app: PathBuf,
    stamp: PathBuf,
}

impl Built {
    fn of(dist: &Path) -> Self {
        Self {
            app: dist.join("app"),
            stamp: dist.join("built.txt"),
        }
    }

    fn is_of(&self, fingerprint: &str) -> bool {
        self.app.join("index.html").is_file()
            && fs_err::read_to_string(&self.stamp).is_ok_and(|have| have == fingerprint)
    }

    fn note(&self, fingerprint: &str) -> Result<()> {
        Ok(fs_err::write(&self.stamp, fingerprint)?)
    }

    fn remove(&self) -> Result<()> {
        if self.stamp.exists() {
            fs_err::remove_file(&self.stamp)?;
        }
        if self.app.exists() {
            fs_err::remove_dir_all(&self.app)?;
        }
        Ok(())
    }
}

/// Packages as the lock file says, without their scripts. Those that are there, whoever installed them, need no network.
fn install() -> Result<()> {
    let lacking = lacking(&folder())?;
    let Some(first) = lacking.first() else {
        return Ok(());
    };
    step("installing the packages of the web page");
    run_quietly(npm().args(["ci", "--ignore-scripts", "--loglevel", "error"]))
        .map(drop)
        .with_context(|| {
            format!(
                "packages that ui/package-lock.json names are missing ({}, such as {first}), and npm could not fetch them: \
                 connect this machine to the internet once, or copy ui/node_modules from one where `npm ci` was run",
                lacking.len()
            )
        })
}

/// Packages that the lock file names, and that are not installed in this version. npm notes what it has installed beside it.
fn lacking(folder: &Path) -> Result<Vec<String>> {
    let wanted = packages(&folder.join("package-lock.json"))?;
    let installed = packages(&folder.join("node_modules/.package-lock.json")).unwrap_or_default();
    let is_there = |path: &str, package: &Value| {
        installed
            .get(path)
            .is_some_and(|have| have["version"] == package["version"])
            && folder.join(path).join("package.json").is_file()
    };
    Ok(wanted
        .iter()
        // Those of other kinds of machines are optional, and not installed on this one.
        .filter(|(path, package)| !path.is_empty() && package["optional"] != true && !is_there(path, package))
        .map(|(path, _)| path.trim_start_matches("node_modules/").to_owned())
        .collect())
}

/// What a lock file says of each folder of a package.
fn packages(lock: &Path) -> Result<serde_json::Map<String, Value>> {
    let text = fs_err::read_to_string(lock)?;
    let mut read: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no lock file of npm", lock.display()))?;
    match read.get_mut("packages").map(Value::take) {
        Some(Value::Object(packages)) => Ok(packages),
        _ => bail!("{} names no packages", lock.display()),
    }
}

fn npm() -> Command {
    let mut command = Command::new("npm");
    command.current_dir(folder());
    command
}

/// A hash of all that the page is made of.
fn fingerprint() -> Result<String> {
    let mut files = Vec::new();
    for part in ["src", "public"] {
        collect(&folder().join(part), &mut files)?;
    }
    let own = [
        "index.html",
        "package-lock.json",
        "tsconfig.json",
        "vite.config.ts",
        "backend-schema.ts",
    ];
    files.extend(own.map(|name| folder().join(name)));
    let schemas = ["configuration.schema.json", "openapi.json"];
    files.extend(schemas.map(|name| layout::root().join("docs/schemas").join(name)));
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs_err::read(&file)?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// Makes the types of the page from the OpenAPI document, or checks that they are those.
pub(crate) fn types(check: bool) -> Result<bool> {
    prepare()?;
    let script = ["run", "--silent", "types"];
    match check {
        true => Ok(exec::succeeds(npm().args(script).args(["--", "--check"]))),
        false => run_quietly(npm().args(script)).map(|_| true),
    }
}

/// What the tests in a browser run against.
pub(crate) struct Programs {
    pub(crate) dstack: PathBuf,
    /// The server whose hosts are simulated.
    pub(crate) scale_server: PathBuf,
    pub(crate) agent: PathBuf,
}

/// Tests of the page: of its logic, and in a browser. The page and the programs are built.
pub(crate) fn tests(env: &TestEnv, programs: &Programs) -> Result<Tally> {
    let mut tally = Tally::default();
    if let Err(error) = prepare() {
        tally.skip("the tests of the web page", format!("{error:#}"));
        return Ok(tally);
    }
    step("checking the types of the web page");
    match status(npm().args(["exec", "--no", "tsc", "--", "--noEmit"]))?.success() {
        true => tally.pass(),
        false => tally.fail("types of the web page"),
    }
    step("running the tests of the web page");
    tally.add(vitest("vitest.config.ts", &[])?);
    let chromium = env
        .variables
        .iter()
        .find(|(name, _)| *name == "DSTACK_TEST_CHROMIUM");
    let Some((name, chromium)) = chromium else {
        tally.skip(
            "the tests of the web page in a browser",
            "no chromium (see above)",
        );
        return Ok(tally);
    };
    step("running the tests of the web page in a browser");
    let shots = layout::target().join("ui-screenshots");
    let variables = [
        (*name, chromium.clone()),
        ("DSTACK_TEST_DSTACK", programs.dstack.display().to_string()),
        (
            "DSTACK_TEST_SCALE_SERVER",
            programs.scale_server.display().to_string(),
        ),
        ("DSTACK_TEST_AGENT", programs.agent.display().to_string()),
        ("DSTACK_TEST_SHOTS", shots.display().to_string()),
    ];
    tally.add(vitest("vitest.browser.config.ts", &variables)?);
    println!("pictures of every route: {}", shots.display());
    Ok(tally)
}

fn vitest(config: &str, variables: &[(&str, String)]) -> Result<Tally> {
    let report = layout::target().join(format!("{config}.json"));
    if report.exists() {
        fs_err::remove_file(&report)?;
    }
    let mut command = npm();
    command.args(["exec", "--no", "vitest", "--", "run", "--config", config]);
    command.args(["--reporter", "default", "--reporter", "json"]);
    command.arg(format!("--outputFile.json={}", report.display()));
    let ended = status(command.envs(variables.iter().cloned()))?;
    let mut tally = match fs_err::read_to_string(&report) {
        Ok(text) => counted(&serde_json::from_str(&text).context("vitest wrote no report")?),
        Err(_) => Tally::default(),
    };
    if !ended.success() && tally.failed.is_empty() {
        tally.fail(format!("vitest {config} ({ended})"));
    }
    Ok(tally)
}

/// Reads vitest's report.
fn counted(report: &Value) -> Tally {
    let mut tally = Tally::default();
    let files = report["testResults"].as_array().into_iter().flatten();
    for file in files {
        let path = file["name"].as_str().unwrap_or_default();
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        for test in file["assertionResults"].as_array().into_iter().flatten() {
            let title = test["fullName"].as_str().unwrap_or_default();
            match test["status"].as_str() {
                Some("passed") => tally.pass(),
                Some("failed") => tally.fail(format!("{name} {title}")),
                other => tally.skip(format!("{name} {title}"), other.unwrap_or("no status")),
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_versions_of_node() {
        assert_eq!(version("v20.19.1\n"), Some((20, 19)));
        assert_eq!(version("v18.20.4"), Some((18, 20)));
        assert_eq!(version("nonsense"), None);
    }

    #[test]
    fn a_page_is_current_while_it_is_of_the_same_sources_and_gone_when_it_is_left_out() {
        let dist = tempfile::tempdir().unwrap();
        let built = Built::of(dist.path());
        built.remove().unwrap();
        assert!(!built.is_of("a"));
        fs_err::create_dir_all(built.app.join("assets")).unwrap();
        fs_err::write(built.app.join("index.html"), "page").unwrap();
        built.note("a").unwrap();
        fs_err::write(dist.path().join("README.md"), "stays").unwrap();
        assert!(built.is_of("a") && !built.is_of("b"));
        built.remove().unwrap();
        assert!(!built.app.exists() && !built.is_of("a"));
        assert!(dist.path().join("README.md").exists());
    }

    #[test]
    fn packages_that_are_there_are_not_fetched() {
        let ui = tempfile::tempdir().unwrap();
        let write = |path: &str, packages: Value| {
            let file = ui.path().join(path);
            fs_err::create_dir_all(file.parent().unwrap()).unwrap();
            fs_err::write(file, json!({ "packages": packages }).to_string()).unwrap();
        };
        let package = |version: &str| json!({ "version": version });
        let other_machine = json!({"version": "1.0.0", "optional": true});
        write(
            "package-lock.json",
            json!({"": package("0.0.0"), "node_modules/a": package("1.0.0"), "node_modules/a/node_modules/b": package("2.0.0"),
                   "node_modules/c": other_machine}),
        );
        let all = ["a", "a/node_modules/b"];
        assert_eq!(lacking(ui.path()).unwrap(), all);

        let installed = "node_modules/.package-lock.json";
        let both =
            json!({"node_modules/a": package("1.0.0"), "node_modules/a/node_modules/b": package("2.0.0")});
        write(installed, both.clone());
        assert_eq!(
            lacking(ui.path()).unwrap(),
            all,
            "the note is there, the packages are not"
        );
        write("node_modules/a/package.json", json!({}));
        write("node_modules/a/node_modules/b/package.json", json!({}));
        assert!(lacking(ui.path()).unwrap().is_empty());

        write(
            installed,
            json!({"node_modules/a": package("0.9.0"), "node_modules/a/node_modules/b": package("2.0.0")}),
        );
        assert_eq!(lacking(ui.path()).unwrap(), ["a"]);
    }

    #[test]
    fn reads_reports_of_vitest() {
        let test = |name: &str, status: &str| json!({"fullName": name, "status": status});
        let tally = counted(&json!({"testResults": [
            {"name": "/x/ui/test/a.test.ts", "assertionResults": [test("works", "passed"), test("breaks", "failed")]},
            {"name": "/x/ui/test/b.test.ts", "assertionResults": [test("later", "todo")]},
        ]}));
        assert_eq!(
            (tally.passed, tally.failed),
            (1, vec!["a.test.ts breaks".to_owned()])
        );
        assert_eq!(tally.skipped, [("b.test.ts later".to_owned(), "todo".to_owned())]);
    }
}
