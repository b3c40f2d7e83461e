//! An emulated cloud on a port of this machine, for code of others: what only our own code has met proves little.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use dstack_system::{env, task};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::Emulator;

/// Serves a cloud on loopback until the test ends; its URL, without a slash at the end.
pub async fn served(emulator: &dyn Emulator) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = emulator.router();
    task::spawn("emulated cloud", async move {
        axum::serve(listener, router).await.unwrap();
    });
    format!("http://{address}")
}

/// The Python that has dstack 0.22.5, which `cargo xtask test` installs.
///
/// # Errors
/// There is none; why.
pub fn reference_python() -> Result<PathBuf, String> {
    let folder = env::var("DSTACK_TEST_PYTHON_ENV").ok_or("DSTACK_TEST_PYTHON_ENV is not set")?;
    Ok(Path::new(&folder).join("bin/python"))
}

/// The reference's own code against an emulated cloud: runs `reference.py` of a type, with the URL of the cloud and these arguments,
/// which makes, waits for and removes one of each. `false`: there is no reference, and why was printed.
pub async fn passes_with_the_reference(backend: &str, emulator: &dyn Emulator, arguments: &[&str]) -> bool {
    let python = match reference_python() {
        Ok(python) => python,
        Err(reason) => {
            println!("skipped: {reason}");
            return false;
        }
    };
    let url = served(emulator).await;
    let script = format!(
        "{}/../{backend}/emulator/reference.py",
        env!("CARGO_MANIFEST_DIR")
    );
    let arguments = [&[&*script, &*url][..], arguments].concat();
    let (status, text) = run(&python, &arguments).await;
    assert!(status && text.contains("all parts passed"), "{text}");
    true
}

/// Runs a program without the environment of this process; whether it succeeded, and all that it printed.
pub async fn run(program: &Path, arguments: &[&str]) -> (bool, String) {
    let home = std::env::temp_dir();
    let output = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.success(), text.concat())
}
