//! What the server says to whoever started it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dstack_system::clock::SharedClock;
use dstack_system::task;
use dstack_units::quoting::shell_word;
use tokio::net::TcpListener;

use super::bootstrap::First;
use crate::cli_config::{self, Answer, Entry};
use crate::state::AppState;

/// Says where the server is, and adds it to the configuration of the command line if that is wanted.
pub(super) async fn announce(
    state: &Arc<AppState>,
    listener: &TcpListener,
    home: Option<PathBuf>,
    first: &First,
) {
    let mut settings = state.edge.settings.clone();
    if let Ok(address) = listener.local_addr() {
        settings.port = address.port();
    }
    let url = settings.server_url();
    let answer = match (
        settings.do_not_update_default_project,
        settings.update_default_project,
    ) {
        (true, _) => Answer::No,
        (_, true) => Answer::Yes,
        _ => Answer::Ask,
    };
    let entry = Entry {
        name: first.project.name.clone(),
        url: url.clone(),
        token: first.token.clone(),
    };
    let configured = match home.clone() {
        Some(home) => cli_config::update(home, entry.clone(), answer).await,
        None => false,
    };
    if configured {
        say_configured(&state.data.clock, &entry.name);
    }
    let clock = &state.data.clock;
    say(clock, &format!("The admin token is {}", first.token.expose()));
    say(
        clock,
        &format!("The dstack server {} is running at {url}", dstack_api::VERSION),
    );
    match home {
        Some(_) if configured => say(
            clock,
            "Next, in another terminal: `dstack apply` in a folder with a .dstack.yml, `dstack offer` for what there is",
        ),
        Some(home) if answer == Answer::Ask => ask_about_config(clock, home, entry).await,
        _ => {}
    }
}

fn say_configured(clock: &SharedClock, project: &str) {
    say(
        clock,
        &format!("Configured the {project} project in ~/.dstack/config.yml"),
    );
}

/// Asks beside the server's work: it answers whether somebody looks at its terminal or not.
async fn ask_about_config(clock: &SharedClock, home: PathBuf, entry: Entry) {
    let Some(question) = cli_config::question(home.clone(), entry.clone()).await else {
        return;
    };
    let clock = Arc::clone(clock);
    task::spawn("ask about the CLI config", async move {
        if !cli_config::is_agreed(question).await {
            say(&clock, &declined(&entry));
            return;
        }
        let name = entry.name.clone();
        if cli_config::update(home, entry, Answer::Yes).await {
            say_configured(&clock, &name);
        }
    });
}

/// What is said when the command line is not to be configured. The token was printed already.
fn declined(entry: &Entry) -> String {
    format!(
        "The command line goes on with its default project. `dstack project add --name {} --url {} --token TOKEN` changes that, \
         with the admin token from above",
        shell_word(&entry.name),
        shell_word(&entry.url)
    )
}

/// Prints a line for whoever started the server: what the reference prints, in the form of the log's lines.
pub(super) fn say(clock: &SharedClock, message: &str) {
    use std::io::Write;
    let now = clock.now().to_jiff().to_zoned(jiff::tz::TimeZone::system());
    let mut out = std::io::stdout().lock();
    // Nobody may be listening: the server runs all the same.
    writeln!(out, "[{}]  INFO {message}", now.strftime("%H:%M:%S"))
        .and_then(|()| out.flush())
        .ok();
}

/// The path as people write it: `~` for the home directory.
pub(super) fn shown_path(path: &Path) -> String {
    match dstack_system::env::home().and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(inside) => format!("~/{}", inside.display()),
        None => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_is_named_has_all_that_it_needs() {
        let entry = Entry {
            name: "main".to_owned(),
            url: "http://127.0.0.1:3000".to_owned(),
            token: dstack_system::Secret::new("s3cret".to_owned()),
        };
        let said = declined(&entry);
        let command = "`dstack project add --name main --url http://127.0.0.1:3000 --token TOKEN`";
        assert!(said.contains(command) && !said.contains("s3cret"), "{said}");
    }
}
