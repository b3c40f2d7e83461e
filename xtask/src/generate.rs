//! `cargo xtask gen`: what is made from the programs themselves: the pages of the command line, the OpenAPI document, and the
//! types of the web page.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::{self, Profile};
use crate::exec::run_quietly;
use crate::{layout, ui};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; exit with 1 when a page is out of date
    #[arg(long)]
    check: bool,
}

/// Writes the generated pages, or checks them.
pub(crate) fn run(args: &Args) -> Result<i32> {
    let dstack = build::dstack(Profile::DEV)?;
    let mut is_current = true;
    for (path, text) in [
        (page_path(), cli_reference(&dstack)?),
        (openapi_path(), openapi()?),
        (manifest_path(), manifest_schema()?),
    ] {
        if !args.check {
            fs_err::write(&path, text)?;
            println!("wrote {}", path.display());
        } else if !fs_err::read_to_string(&path).is_ok_and(|have| have == text) {
            println!(
                "{} is out of date; make it again with: cargo xtask gen",
                path.display()
            );
            is_current = false;
        }
    }
    match ui::types(args.check) {
        Ok(true) => {}
        Ok(false) => {
            println!("the types of the web page are out of date; make them again with: cargo xtask gen");
            is_current = false;
        }
        Err(error) => println!("skipped: the types of the web page: {error:#}"),
    }
    Ok(i32::from(!is_current))
}

/// Whether the page in the repository says what the built program says.
///
/// Without a page there is nothing to be out of date.
pub(crate) fn check(dstack: &Path) -> Result<bool> {
    Ok(!page_path().exists() || is_current(&cli_reference(dstack)?))
}

fn is_current(page: &str) -> bool {
    fs_err::read_to_string(page_path()).is_ok_and(|text| text == page)
}

fn page_path() -> PathBuf {
    layout::root().join("docs/cli.md")
}

fn openapi_path() -> PathBuf {
    layout::root().join("docs/schemas/openapi.json")
}

fn manifest_path() -> PathBuf {
    layout::root().join("docs/schemas/manifest.schema.json")
}

/// The JSON Schema of files that describe backends.
fn manifest_schema() -> Result<String> {
    run_quietly(build::cargo().args([
        "run",
        "--quiet",
        "--package",
        "dstack-backend-manifest",
        "--example",
        "schema",
    ]))
}

/// The document, on one line: it is for programs.
fn openapi() -> Result<String> {
    run_quietly(build::cargo().args([
        "run",
        "--quiet",
        "--package",
        "dstack-server",
        "--example",
        "openapi",
    ]))
}

/// The help of every command, in the order the program lists them.
fn cli_reference(dstack: &Path) -> Result<String> {
    let mut page = String::from("# Command line\n\nMade by `cargo xtask gen` from the program's own help.\n");
    add_command(dstack, &mut Vec::new(), &mut page)?;
    Ok(page)
}

fn add_command(dstack: &Path, path: &mut Vec<String>, page: &mut String) -> Result<()> {
    let mut command = Command::new(dstack);
    // The width of the page, whatever terminal we are on; defaults must not come from the caller's setting.
    command
        .args(&*path)
        .arg("--help")
        .env("COLUMNS", "110")
        .env("NO_COLOR", "1");
    for variable in [
        "DSTACK_PROJECT",
        "DSTACK_SERVER_URL",
        "DSTACK_TOKEN",
        "DSTACK_PROFILE",
    ] {
        command.env_remove(variable);
    }
    let help = run_quietly(&mut command)?;
    let name = std::iter::once("dstack")
        .chain(path.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ");
    let text: Vec<&str> = help.trim().lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", text.join("\n")));
    for subcommand in subcommands(&help) {
        path.push(subcommand);
        add_command(dstack, path, page)?;
        path.pop();
    }
    Ok(())
}

/// The names under `Commands:` in a help text; the command `help` itself is left out.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed
        .take_while(|line| !line.trim().is_empty())
        // A deeper indented line goes on with the description above it.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_commands_of_a_help_text() {
        let help = "Do things\n\nUsage: dstack <COMMAND>\n\nCommands:\n  apply   Apply it,\n          and wait\n  \
                    ps      List\n  help    Print this\n\nOptions:\n  -h, --help\n";
        assert_eq!(subcommands(help), ["apply", "ps"]);
        assert!(subcommands("Usage: dstack ps\n\nOptions:\n  -a\n").is_empty());
    }
}
