//! The environment of a session.

use std::net::SocketAddr;
use std::path::Path;

use crate::login::Login;

/// What a session without any other source finds programs in.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether a client may set this variable (dstack 0.22.5: `AcceptEnv LANG LC_* COLORTERM NO_COLOR`).
pub(crate) fn client_may_set(name: &str) -> bool {
    matches!(name, "LANG" | "COLORTERM" | "NO_COLOR") || name.starts_with("LC_")
}

/// What a session's environment is made of.
pub(crate) struct Sources<'a> {
    /// Text of `/etc/environment`.
    pub(crate) machine: &'a str,
    /// Variables of all sessions.
    pub(crate) defaults: &'a [(String, String)],
    /// Variables the client asked for, already filtered.
    pub(crate) client: &'a [(String, String)],
    /// Who logged in.
    pub(crate) login: &'a Login,
    /// Address that the client connects from.
    pub(crate) peer: SocketAddr,
    /// Address that the client connected to.
    pub(crate) local: SocketAddr,
    /// `TERM` and the terminal's path.
    pub(crate) terminal: Option<(&'a str, &'a Path)>,
    /// Socket of the forwarded agent.
    pub(crate) agent: Option<&'a Path>,
}

/// Merges the sources: later ones win, and the account's own facts beat everything.
pub(crate) fn environment(sources: &Sources<'_>) -> Vec<(String, String)> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: &str| {
        merged.retain(|(known, _)| known != name);
        merged.push((name.to_owned(), value.to_owned()));
    };
    set("PATH", DEFAULT_PATH);
    for (name, value) in sources.machine.lines().filter_map(parse_assignment) {
        set(name, value);
    }
    for (name, value) in sources.defaults.iter().chain(sources.client) {
        set(name, value);
    }
    let login = sources.login;
    set("USER", &login.name);
    set("LOGNAME", &login.name);
    set("HOME", &login.home.to_string_lossy());
    set("SHELL", &login.shell.to_string_lossy());
    let (peer, local) = (sources.peer, sources.local);
    set(
        "SSH_CLIENT",
        &format!("{} {} {}", peer.ip(), peer.port(), local.port()),
    );
    set(
        "SSH_CONNECTION",
        &format!("{} {} {} {}", peer.ip(), peer.port(), local.ip(), local.port()),
    );
    if let Some((term, path)) = sources.terminal {
        set("TERM", term);
        set("SSH_TTY", &path.to_string_lossy());
    }
    if let Some(agent) = sources.agent {
        set("SSH_AUTH_SOCK", &agent.to_string_lossy());
    }
    // A value with a NUL cannot be passed to a program.
    merged.retain(|(name, value)| !name.contains(['\0', '=']) && !name.is_empty() && !value.contains('\0'));
    merged
}

/// A line of `/etc/environment`: `[export ]NAME=value`, the value maybe in quotes.
fn parse_assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let unquoted = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value);
    (!name.is_empty() && !name.starts_with('#')).then_some((name, unquoted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dstack_system::accounts::Passwd;

    #[test]
    fn later_sources_win_but_not_over_the_account() {
        let login = Login::own(
            &Passwd::at("/nonexistent", "/nonexistent"),
            Some("/home/x".into()),
        );
        let pairs = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect::<Vec<_>>()
        };
        let env = environment(&Sources {
            machine: "# c\nPATH=\"/m\"\nexport A='1'\nB=2\nbroken\n",
            defaults: &pairs(&[
                ("B", "3"),
                ("HOME", "/elsewhere"),
                ("bad=name", "x"),
                ("NUL", "a\0b"),
            ]),
            client: &pairs(&[("LANG", "C.UTF-8")]),
            login: &login,
            peer: "[::1]:5".parse().unwrap(),
            local: "127.0.0.1:22".parse().unwrap(),
            terminal: Some(("xterm", Path::new("/dev/pts/1"))),
            agent: None,
        });
        let get = |name: &str| {
            env.iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(
            (get("PATH"), get("A"), get("B")),
            (Some("/m"), Some("1"), Some("3"))
        );
        assert_eq!(
            (get("HOME"), get("LANG"), get("TERM")),
            (Some("/home/x"), Some("C.UTF-8"), Some("xterm"))
        );
        assert_eq!(get("SSH_CONNECTION"), Some("::1 5 127.0.0.1 22"));
        assert_eq!((get("NUL"), get("bad=name"), get("broken")), (None, None, None));
    }

    #[test]
    fn clients_may_set_only_the_locale_and_colours() {
        assert!(
            ["LANG", "LC_ALL", "COLORTERM", "NO_COLOR"]
                .into_iter()
                .all(client_may_set)
        );
        assert!(!["LD_PRELOAD", "PATH", "LANGUAGE"].into_iter().any(client_may_set));
    }
}
