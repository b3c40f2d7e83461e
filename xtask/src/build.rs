//! Building our two binaries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::exec;
use crate::layout;

/// A cargo profile and the folder its results lie in.
#[derive(Clone, Copy)]
pub(crate) struct Profile(pub(crate) &'static str);

impl Profile {
    pub(crate) const DEV: Profile = Profile("dev");
    pub(crate) const QUICK: Profile = Profile("quick");
    pub(crate) const RELEASE: Profile = Profile("release");

    fn folder(self) -> &'static str {
        if self.0 == "dev" { "debug" } else { self.0 }
    }
}

/// Builds `dstack-agent` fully static, so that it runs in any image and on any host.
///
/// The target must be named even though it is the host's: without it the flags would also apply to build
/// scripts and procedural macros, which cannot be static.
pub(crate) fn agent(profile: Profile) -> Result<PathBuf> {
    let triple = layout::host_triple()?;
    let flags = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        triple.to_uppercase().replace('-', "_")
    );
    exec::run(
        cargo()
            .args([
                "build",
                "--quiet",
                "--package",
                "dstack-agent",
                "--profile",
                profile.0,
            ])
            .args(["--target", &triple])
            .env(flags, "-C target-feature=+crt-static"),
    )
    .context("cannot build the agent")?;
    Ok(layout::target()
        .join(triple)
        .join(profile.folder())
        .join("dstack-agent"))
}

/// Builds `dstack`. With `embed` (a zstd-compressed agent) the binary carries the agent inside itself.
pub(crate) fn dstack(profile: Profile, embed: Option<&std::path::Path>) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--package", "dstack", "--profile", profile.0]);
    if let Some(agent) = embed {
        command
            .args(["--features", "embed-agent"])
            .env("DSTACK_AGENT_ZST", agent);
    }
    exec::run(&mut command).context("cannot build dstack")?;
    Ok(layout::target().join(profile.folder()).join("dstack"))
}

/// Builds the server with doubles in place of clouds, against which recorded exchanges are replayed.
pub(crate) fn golden_server(profile: Profile) -> Result<PathBuf> {
    exec::run(cargo().args([
        "build",
        "--quiet",
        "--package",
        "dstack-golden-doubles",
        "--profile",
        profile.0,
    ]))
    .context("cannot build the server for recorded exchanges")?;
    Ok(layout::target()
        .join(profile.folder())
        .join("dstack-golden-server"))
}

/// Builds all programs of this machine's kind at once, for the tests: one by one, what they share would be built again for
/// each, as each wants other parts of it. Gives the folder they lie in.
pub(crate) fn programs() -> Result<PathBuf> {
    exec::run(cargo().args(["build", "--quiet", "--workspace", "--bins"]))
        .context("cannot build the programs")?;
    Ok(layout::target().join(Profile::DEV.folder()))
}

/// The cargo that runs us, in the root of the repository, writing where we were told to.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(layout::root())
        .env("CARGO_TARGET_DIR", layout::target());
    command
}
