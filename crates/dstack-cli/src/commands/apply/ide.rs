//! Version of the user's editor, so that its server part and extensions are installed beforehand.

use std::path::{Path, PathBuf};

use dstack_model::configurations::{DevEnvironmentConfiguration, Ide};
use tokio::process::Command;

use crate::ui::{Text, Ui};

/// Fills in the version of the local editor; says what to do when it is not found.
pub(crate) async fn detect(environment: &mut DevEnvironmentConfiguration, ui: &Ui) {
    let Some(ide) = environment.ide.filter(|_| environment.version.is_none()) else {
        return;
    };
    let (version, title, program) = match ide {
        Ide::VsCode => (second_line("code").await, "VS Code", "code"),
        Ide::Cursor => (second_line("cursor").await, "Cursor", "cursor"),
        Ide::Windsurf => (windsurf(), "Windsurf", "surf"),
        Ide::Zed => return,
    };
    environment.version = version;
    if environment.version.is_none() {
        ui.say(
            Text::new()
                .secondary(format!(
                    "Unable to detect the {title} version and pre-install extensions. Fix by opening "
                ))
                .code("Command Palette")
                .secondary(", executing ")
                .code(format!("Shell Command: Install '{program}' command in PATH"))
                .secondary(", and restarting terminal.\n"),
        );
    }
}

async fn second_line(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().await.ok()?;
    let text = String::from_utf8(output.stdout)
        .ok()
        .filter(|_| output.status.success())?;
    text.lines().nth(1).map(|line| line.trim().to_owned())
}

/// `version@commit` from the product file near the program.
fn windsurf() -> Option<String> {
    let paths = dstack_system::env::var("PATH")?;
    let program = paths
        .split(':')
        .map(|folder| Path::new(folder).join("windsurf"))
        .find(|path| path.is_file())?;
    let program: PathBuf = fs_err::canonicalize(program).ok()?;
    let folders = program.ancestors().skip(1).take(6);
    let files = folders
        .flat_map(|folder| ["resources", "Resources"].map(|name| folder.join(name).join("app/product.json")));
    files.into_iter().find_map(|file| {
        let product: serde_json::Value = serde_json::from_str(&fs_err::read_to_string(file).ok()?).ok()?;
        Some(format!(
            "{}@{}",
            product.get("windsurfVersion")?.as_str()?,
            product.get("commit")?.as_str()?
        ))
    })
}
