//! Building our two binaries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cross;
use crate::exec;
use crate::layout;

/// A cargo profile and the folder its results lie in.
#[derive(Clone, Copy)]
pub(crate) struct Profile(pub(crate) &'static str);

impl Profile {
    pub(crate) const DEV: Profile = Profile("dev");
    pub(crate) const DEMO: Profile = Profile("demo");
    pub(crate) const QUICK: Profile = Profile("quick");
    pub(crate) const RELEASE: Profile = Profile("release");

    fn folder(self) -> &'static str {
        if self.0 == "dev" { "debug" } else { self.0 }
    }
}

/// Builds `dstack-agent` fully static, so that it runs in any image and on any host of this machine's kind.
pub(crate) fn agent(profile: Profile) -> Result<PathBuf> {
    agent_for(profile, &layout::host_triple()?)
}

/// The same for hosts of another kind, by its target triple.
pub(crate) fn agent_for(profile: Profile, triple: &str) -> Result<PathBuf> {
    let folder = statically_for(profile, triple, &["dstack-agent"], |_| ())
        .with_context(|| format!("cannot build the agent for {triple}"))?;
    Ok(folder.join("dstack-agent"))
}

/// Builds `dstack` fully static, carrying these agents (compressed with zstd, by architecture) inside itself.
pub(crate) fn dstack_with(profile: Profile, agents: &[(&str, PathBuf)]) -> Result<PathBuf> {
    let named = agents
        .iter()
        .map(|(arch, path)| format!("{arch}={}", path.display()));
    let named = named.collect::<Vec<_>>().join(",");
    let embed = |command: &mut Command| {
        command
            .args(["--features", "dstack/embed-agent"])
            .env("DSTACK_AGENTS_ZST", named);
    };
    let folder = statically(profile, &["dstack"], embed).context("cannot build dstack")?;
    Ok(folder.join("dstack"))
}

/// The two programs, as they are shipped but for the agent inside: what they share is built once.
pub(crate) struct Both {
    pub(crate) dstack: PathBuf,
    pub(crate) agent: PathBuf,
}

/// Builds both programs at once.
pub(crate) fn both(profile: Profile) -> Result<Both> {
    let folder = statically(profile, &["dstack", "dstack-agent"], |_| ()).context("cannot build dstack")?;
    Ok(Both {
        dstack: folder.join("dstack"),
        agent: folder.join("dstack-agent"),
    })
}

/// Builds one program of a package that is only for tests and measures. Static as what is shipped: what they share is built
/// once.
pub(crate) fn of_tests(profile: Profile, package: &str, program: &str) -> Result<PathBuf> {
    let only = |command: &mut Command| {
        command.args(["--bin", program]);
    };
    let folder = statically(profile, &[package], only).with_context(|| format!("cannot build {program}"))?;
    Ok(folder.join(program))
}

/// Builds packages as static programs for this machine; gives the folder they lie in.
fn statically(profile: Profile, packages: &[&str], more: impl FnOnce(&mut Command)) -> Result<PathBuf> {
    statically_for(profile, &layout::host_triple()?, packages, more)
}

/// The same for machines of this target triple.
///
/// The target must be named even where it is the host's: without it the flags would also apply to build
/// scripts and procedural macros, which cannot be static.
fn statically_for(
    profile: Profile,
    triple: &str,
    packages: &[&str],
    more: impl FnOnce(&mut Command),
) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["build", "--quiet", "--profile", profile.0, "--target", triple])
        .env(
            cross::setting(triple, "RUSTFLAGS"),
            "-C target-feature=+crt-static",
        )
        .envs(cross::variables(triple)?);
    if triple.starts_with("aarch64") {
        // Pages are of up to 64 KiB there, as the kernel was built; the allocator refuses to start where they are larger than it knows.
        command.env("JEMALLOC_SYS_WITH_LG_PAGE", "16");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    more(&mut command);
    exec::run(&mut command)?;
    Ok(layout::target().join(triple).join(profile.folder()))
}

/// Builds `dstack` for this machine only: quick to build again after a change.
pub(crate) fn dstack(profile: Profile) -> Result<PathBuf> {
    exec::run(cargo().args(["build", "--quiet", "--package", "dstack", "--profile", profile.0]))
        .context("cannot build dstack")?;
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
    outside_of_packages(&mut command);
    command
}

/// Takes away what cargo tells this program of its own package: the build scripts of others look at it, and what they have
/// built would be built again whenever cargo is called by hand after it was called from here, and the other way round.
pub(crate) fn outside_of_packages(command: &mut Command) {
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
}
