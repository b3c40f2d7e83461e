//! The first thing a user does: a short task, attached, with the unmodified Python command line of 0.22.5. It must print the
//! output of the job and exit with its outcome, though the job may be over before the command line has connected.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use dstack_tests::cli::{Cli, Ended};
use dstack_tests::runs::SMALL_YAML;
use dstack_tests::server::{Server, Setup};
use dstack_tests::{need, parts};

/// Of each kind.
const TIMES: usize = 10;

/// A kind of task.
struct Task {
    commands: &'static str,
    printed: Option<&'static str>,
    code: i32,
}

/// A server whose jobs run as processes, or in containers of the image.
fn start(image: Option<&str>) -> Result<(Server, Cli), String> {
    let runtime = match image {
        Some(_) => "docker",
        None => "process",
    };
    let cli = Cli::python()?;
    let setup = Setup::local()?.variable("DSTACK_LOCAL_RUNTIME", runtime);
    let server = setup.start().unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    Ok((server, cli))
}

fn tasks(kind: &str, image: Option<String>, task: &Task) -> Result<(), String> {
    let (_server, cli) = start(image.as_deref())?;
    let image = image.map(|image| format!("image: {image}\n")).unwrap_or_default();
    // One after the other: see `attached-python-clients` in .config/nextest.toml.
    for number in 0..TIMES {
        run(&cli, &format!("{kind}-{number}"), &image, task);
    }
    Ok(())
}

fn run(cli: &Cli, name: &str, image: &str, task: &Task) {
    let file = format!("{name}.yml");
    let commands = task.commands;
    let text = format!("type: task\nname: {name}\n{image}commands:\n{commands}{SMALL_YAML}");
    cli.write(&file, &text).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-f", &file, "-y"]).unwrap();
    assert_eq!(code, Some(task.code), "{name}:\n{text}");
    if let Some(printed) = task.printed {
        assert!(text.contains(printed), "{name}:\n{text}");
    }
    for wrong in ["ERROR", "Can't connect", "Lost run connection", "Traceback"] {
        assert!(!text.contains(wrong), "{name} said {wrong}:\n{text}");
    }
}

macro_rules! kinds {
    ($($name:ident: $task:expr;)*) => {
        mod processes {
            use super::*;
            $(#[test] fn $name() { need!(tasks(&stringify!($name).replace('_', "-"), None, &$task)); })*
        }
        mod containers {
            use super::*;
            $(#[test] fn $name() {
                let image = need!(parts::image());
                need!(tasks(&stringify!($name).replace('_', "-"), Some(image), &$task));
            })*
        }
    };
}

kinds! {
    hello: Task { commands: "  - echo \"Hello, $USER!\"\n", printed: Some("\nHello, "), code: 0 };
    a_second: Task { commands: "  - echo begun\n  - sleep 1\n  - echo ended\n", printed: Some("\nended"), code: 0 };
    five_seconds: Task { commands: "  - echo begun\n  - sleep 5\n  - echo ended\n", printed: Some("\nended"), code: 0 };
    failing: Task { commands: "  - echo wrong\n  - exit 3\n", printed: Some("\nwrong"), code: 1 };
    silent: Task { commands: "  - sh -c true\n", printed: None, code: 0 };
}
