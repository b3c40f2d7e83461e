//! Commands of a dev environment: what the IDE needs, the user's own, and then nothing, for ever.

use dstack_model::configurations::{DevEnvironmentConfiguration, Ide};

const EXTENSIONS: [&str; 2] = ["ms-python.python", "ms-toolsai.jupyter"];

pub(super) fn commands(dev: &DevEnvironmentConfiguration, run_name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(server) = dev
        .ide
        .zip(dev.version.as_deref())
        .and_then(|(ide, version)| server(ide, version))
    {
        lines.extend(server.installation());
    }
    lines.push(
        "(echo 'uv pip install ipykernel...' && uv pip install -q --no-cache-dir ipykernel 2> /dev/null) || \
         (echo 'pip install ipykernel...' && pip install -q --no-cache-dir ipykernel 2> /dev/null) || \
         echo 'no uv or pip found, ipykernel was not installed'"
            .to_owned(),
    );
    lines.extend(dev.base.setup.iter().cloned());
    lines.push("echo".to_owned());
    lines.extend(dev.init.iter().cloned());
    if let Some(ide) = dev.ide {
        lines.push(format!("echo 'To open in {}, use link below:'", ide_name(ide)));
        lines.push("echo".to_owned());
        lines.push(format!("echo \"  {}\"", link(ide, run_name)));
        lines.push("echo".to_owned());
    }
    lines.push(format!("echo 'To connect via SSH, use: `ssh {run_name}`'"));
    lines.push("echo".to_owned());
    lines.push("echo -n 'To exit, press Ctrl+C.'".to_owned());
    lines.push("tail -f /dev/null".to_owned());
    lines
}

const fn ide_name(ide: Ide) -> &'static str {
    match ide {
        Ide::VsCode => "VS Code",
        Ide::Cursor => "Cursor",
        Ide::Windsurf => "Windsurf",
        Ide::Zed => "Zed",
    }
}

/// Opens the run's working directory from the user's machine.
fn link(ide: Ide, run_name: &str) -> String {
    match ide {
        Ide::Zed => format!("zed://ssh/{run_name}$DSTACK_WORKING_DIR"),
        other => format!(
            "{}://vscode-remote/ssh-remote+{run_name}$DSTACK_WORKING_DIR",
            other.as_str()
        ),
    }
}

/// The part of an IDE that runs in the container, installed ahead so that connecting is fast.
struct Server {
    url: String,
    archive: String,
    folder: String,
    program: &'static str,
}

/// Zed brings its own.
fn server(ide: Ide, version: &str) -> Option<Server> {
    match ide {
        Ide::VsCode => Some(Server {
            url: format!("https://update.code.visualstudio.com/commit:{version}/server-linux-$arch/stable"),
            archive: "vscode-server-linux-$arch.tar.gz".to_owned(),
            folder: format!("~/.vscode-server/bin/\"{version}\""),
            program: "code-server",
        }),
        Ide::Cursor => Some(Server {
            url: format!(
                "https://cursor.blob.core.windows.net/remote-releases/{version}/vscode-reh-linux-$arch.tar.gz"
            ),
            archive: "vscode-reh-linux-$arch.tar.gz".to_owned(),
            folder: format!("~/.cursor-server/cli/servers/\"Stable-{version}\"/server"),
            program: "cursor-server",
        }),
        Ide::Windsurf => {
            let (number, commit) = version.split_once('@')?;
            Some(Server {
                url: format!(
                    "https://windsurf-stable.codeiumdata.com/linux-reh-$arch/stable/{commit}/\
                     windsurf-reh-linux-$arch-{number}.tar.gz"
                ),
                archive: "windsurf-reh-linux-$arch.tar.gz".to_owned(),
                folder: format!("~/.windsurf-server/bin/\"{commit}\""),
                program: "windsurf-server",
            })
        }
        Ide::Zed => None,
    }
}

impl Server {
    fn installation(&self) -> Vec<String> {
        let Self {
            url,
            archive,
            folder,
            program,
        } = self;
        let extensions = EXTENSIONS
            .map(|name| format!("--install-extension \"{name}\""))
            .join(" ");
        vec![
            "if [ $(uname -m) = \"aarch64\" ]; then arch=\"arm64\"; else arch=\"x64\"; fi".to_owned(),
            "mkdir -p /tmp".to_owned(),
            format!("wget -q --show-progress \"{url}\" -O \"/tmp/{archive}\""),
            format!("mkdir -vp {folder}"),
            format!("tar --no-same-owner -xz --strip-components=1 -C {folder} -f \"/tmp/{archive}\""),
            format!("rm \"/tmp/{archive}\""),
            format!("PATH=\"$PATH\":{folder}/bin {program} {extensions}"),
        ]
    }
}
