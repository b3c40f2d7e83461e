//! Whether the server's own machine is an instance of project `main`.

use std::net::IpAddr;

use dstack_server::Settings;
use dstack_server::config::ServerConfig;

/// What becomes of the server's own machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It takes jobs.
    Offered,
    /// It takes none, because of `--no-local` or `DSTACK_SERVER_LOCAL=0`.
    NotWanted,
    /// It takes none, because others than the people of this machine may reach the server, and nobody asked for it.
    Reachable {
        /// How they reach it.
        because: String,
    },
}

impl Offer {
    /// Decides by what was said, and where nothing was by who may reach the server. `config` is its `config.yml`.
    pub(crate) fn of_server(settings: &Settings, config: Option<&ServerConfig>) -> Self {
        let has_logins = config.is_some_and(|config| !config.logins().providers.is_empty());
        let public = settings.public_host();
        let reach = Reach {
            listens_on: &settings.host,
            public_host: public.as_deref(),
            has_logins,
        };
        Self::decide(settings.local, &reach)
    }

    fn decide(wanted: Option<bool>, reach: &Reach<'_>) -> Self {
        match (wanted, reach.by_others()) {
            (Some(false), _) => Self::NotWanted,
            (Some(true), _) | (None, None) => Self::Offered,
            (None, Some(because)) => Self::Reachable { because },
        }
    }

    /// What is said at the start; nothing where it is as the flags say.
    pub(crate) fn notice(&self) -> Option<String> {
        match self {
            Self::Offered | Self::NotWanted => None,
            Self::Reachable { because } => Some(format!(
                "this machine is not offered as an instance, because {because}: others may reach the server, and would run code \
                 here. To offer it all the same: --local, or DSTACK_SERVER_LOCAL=1"
            )),
        }
    }
}

/// What is known of who may reach the server. A proxy before it that neither the public URL nor `config.yml` tells of is not
/// known.
#[derive(Debug)]
struct Reach<'a> {
    listens_on: &'a str,
    /// Of `DSTACK_SERVER_URL`.
    public_host: Option<&'a str>,
    /// `config.yml` has login providers.
    has_logins: bool,
}

impl Reach<'_> {
    /// Returns how others than the people of this machine may reach the server; `None`: not that we know.
    fn by_others(&self) -> Option<String> {
        if !is_loopback(self.listens_on) {
            return Some(format!("the server listens on {}", self.listens_on));
        }
        if let Some(host) = self.public_host.filter(|host| !is_loopback(host)) {
            return Some(format!("it is known as {host} (DSTACK_SERVER_URL)"));
        }
        self.has_logins
            .then(|| "config.yml has login providers".to_owned())
    }
}

/// Whether only this machine reaches what listens there.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(listens_on: &str) -> Reach<'_> {
        Reach {
            listens_on,
            public_host: None,
            has_logins: false,
        }
    }

    fn decide(host: &str) -> Offer {
        Offer::decide(None, &reach(host))
    }

    #[test]
    fn it_is_offered_without_asking_only_where_nobody_else_reaches_the_server() {
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "[::1]",
            "localhost",
            "LOCALHOST",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(decide(host), Offer::Offered, "{host}");
        }
        for host in [
            "0.0.0.0",
            "::",
            "192.168.0.7",
            "10.0.0.1",
            "gpu.example.org",
            "localhost.example.org",
            "",
        ] {
            let offer = decide(host);
            assert!(matches!(offer, Offer::Reachable { .. }), "{host}");
            let notice = offer.notice().unwrap();
            assert!(notice.contains("--local") && notice.contains(host), "{notice}");
        }
    }

    #[test]
    fn a_server_behind_a_proxy_is_reached_by_others() {
        let behind = |public_host| Reach {
            public_host: Some(public_host),
            ..reach("127.0.0.1")
        };
        let offer = Offer::decide(None, &behind("dstack.example.org"));
        assert!(
            offer.notice().unwrap().contains("dstack.example.org"),
            "{offer:?}"
        );
        assert_eq!(Offer::decide(None, &behind("localhost")), Offer::Offered);
        let logins = Reach {
            has_logins: true,
            ..reach("127.0.0.1")
        };
        let offer = Offer::decide(None, &logins);
        assert!(offer.notice().unwrap().contains("login providers"), "{offer:?}");
        assert_eq!(Offer::decide(Some(true), &logins), Offer::Offered);
    }

    #[test]
    fn what_was_said_has_the_last_word() {
        assert_eq!(Offer::decide(Some(true), &reach("0.0.0.0")), Offer::Offered);
        assert_eq!(Offer::decide(Some(true), &reach("0.0.0.0")).notice(), None);
        for host in ["127.0.0.1", "0.0.0.0"] {
            assert_eq!(
                Offer::decide(Some(false), &reach(host)),
                Offer::NotWanted,
                "{host}"
            );
        }
    }
}
