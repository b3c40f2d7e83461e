//! The parts a test may need, as `cargo xtask test` names them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Ends the test early with a reason, which `cargo xtask test` lists at its end.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        eprintln!("skipped: {}", format_args!($($reason)*));
        return;
    }};
}

/// The part, or the end of the test with the reason why it is not there.
#[macro_export]
macro_rules! need {
    ($part:expr) => {
        match $part {
            Ok(part) => part,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

/// A part that is not there, with what to do about it.
pub type Part<T> = Result<T, String>;

/// The built `dstack`: `DSTACK_TEST_DSTACK`, else beside the running test.
pub fn dstack() -> Part<PathBuf> {
    let program = binary("DSTACK_TEST_DSTACK", "dstack")?;
    let version = Command::new(&program)
        .arg("--version")
        .output()
        .map_err(|error| error.to_string())?;
    if version.stdout.is_empty() {
        return Err(format!("{} is not the real program yet", program.display()));
    }
    Ok(program)
}

/// The built server with doubles in place of clouds: `DSTACK_TEST_GOLDEN_SERVER`, else beside the running test.
pub fn golden_server() -> Part<PathBuf> {
    binary("DSTACK_TEST_GOLDEN_SERVER", "dstack-golden-server")
}

/// The built server with doubles that offer the whole catalogue: `DSTACK_TEST_CATALOG_SERVER`, else beside the running program.
pub fn catalog_server() -> Part<PathBuf> {
    binary("DSTACK_TEST_CATALOG_SERVER", "dstack-catalog-server")
}

/// The built server with simulated hosts: `DSTACK_TEST_SCALE_SERVER`, else beside the running program.
pub fn scale_server() -> Part<PathBuf> {
    binary("DSTACK_TEST_SCALE_SERVER", "dstack-scale-server")
}

/// The built `dstack-agent`: `DSTACK_TEST_AGENT`, else beside the running test.
pub fn agent() -> Part<PathBuf> {
    binary("DSTACK_TEST_AGENT", "dstack-agent")
}

/// The virtual environment with the Python CLI.
pub fn python_env() -> Part<PathBuf> {
    let folder = variable("DSTACK_TEST_PYTHON_ENV")?;
    Ok(PathBuf::from(folder))
}

/// The virtual environment with the Python clients of OpenAI and of WebSockets.
pub fn openai_env() -> Part<PathBuf> {
    variable("DSTACK_TEST_OPENAI_ENV").map(PathBuf::from)
}

/// The virtual environment with Schemathesis.
pub fn schemathesis() -> Part<PathBuf> {
    variable("DSTACK_TEST_SCHEMATHESIS").map(PathBuf::from)
}

/// A PostgreSQL server on which tests may make databases.
pub fn postgres_url() -> Part<String> {
    variable("DSTACK_TEST_POSTGRES_URL")
}

/// Whether servers under test keep their state in PostgreSQL (`DSTACK_TEST_DATABASE=postgres`) and not in SQLite.
pub fn on_postgres() -> bool {
    std::env::var("DSTACK_TEST_DATABASE").is_ok_and(|name| name == "postgres")
}

/// A container image that needs no registry; present only where a container engine answers.
pub fn image() -> Part<String> {
    variable("DSTACK_TEST_IMAGE")
}

/// The socket of the container engine.
pub fn docker_socket() -> Part<PathBuf> {
    let host = variable("DOCKER_HOST")?;
    let path = host.strip_prefix("unix://");
    path.map(PathBuf::from)
        .ok_or_else(|| format!("DOCKER_HOST={host} is not a socket of this machine"))
}

/// A program of this machine, which hosts of their own have as well.
pub fn program(name: &str) -> Part<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{name} is not installed; run the tests with: cargo xtask test"))
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

fn variable(name: &str) -> Part<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set; run the tests with: cargo xtask test"))
}

/// Test programs lie in `<target>/<profile>/deps`, the binaries one folder up.
fn binary(name: &str, file: &str) -> Part<PathBuf> {
    if let Ok(path) = variable(name) {
        return Ok(PathBuf::from(path));
    }
    let running = std::env::current_exe().map_err(|error| error.to_string())?;
    let near = running
        .ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join(file));
    near.into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{file} is not built; run the tests with: cargo xtask test"))
}
