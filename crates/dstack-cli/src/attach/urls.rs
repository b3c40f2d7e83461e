//! Addresses in the output of a job, rewritten to where the user reaches them.

use std::collections::BTreeMap;

use regex::bytes::{Captures, Regex};

/// Where ports of the job are reached, and how.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Remote ports and the ports under which the user reaches them.
    pub ports: BTreeMap<u16, u16>,
    /// Query parameters to add, by remote port.
    pub query: BTreeMap<u16, Vec<(String, String)>>,
    /// Host name for the user.
    pub hostname: String,
    /// Whether the user reaches it over TLS.
    pub secure: bool,
    /// What paths start with.
    pub path_prefix: String,
}

/// Rewrites URLs in output.
#[derive(Debug)]
pub struct Rewriter {
    pattern: Regex,
    reach: Reach,
}

impl Rewriter {
    /// Rewrites `http://` URLs of localhost and of `address`, the job's own.
    ///
    /// # Errors
    /// Never for addresses; the pattern is fixed.
    pub fn new(reach: Reach, address: Option<&str>) -> Result<Self, regex::Error> {
        let mut hosts = vec![
            "localhost".to_owned(),
            r"0\.0\.0\.0".to_owned(),
            r"127\.0\.0\.1".to_owned(),
        ];
        hosts.extend(address.map(regex::escape));
        let pattern = Regex::new(&format!(
            r"http://(?:{}):(\d+)\b([-a-zA-Z0-9()@:%_+.~#?&/=]*)",
            hosts.join("|")
        ))?;
        Ok(Self { pattern, reach })
    }

    /// One piece of output with its URLs rewritten.
    pub fn rewrite(&self, output: &[u8]) -> Vec<u8> {
        self.pattern
            .replace_all(output, |found: &Captures<'_>| self.replacement(found))
            .into_owned()
    }

    fn replacement(&self, found: &Captures<'_>) -> Vec<u8> {
        let text = |group: usize| {
            found
                .get(group)
                .map(|part| String::from_utf8_lossy(part.as_bytes()).into_owned())
                .unwrap_or_default()
        };
        let remote: Option<u16> = text(1).parse().ok();
        let Some((remote, local)) = remote.and_then(|remote| Some((remote, *self.reach.ports.get(&remote)?)))
        else {
            return text(0).into_bytes();
        };
        let rest = text(2);
        let (rest, fragment) = rest
            .split_once('#')
            .map_or((rest.as_str(), ""), |(rest, fragment)| (rest, fragment));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let default_port = local == if self.reach.secure { 443 } else { 80 };
        let mut url = format!(
            "{}://{}",
            if self.reach.secure { "https" } else { "http" },
            self.reach.hostname
        );
        if !default_port {
            url.push_str(&format!(":{local}"));
        }
        url.push_str(&self.path(path));
        let query = self.query(remote, query);
        if !query.is_empty() {
            url.push_str(&format!("?{query}"));
        }
        if !fragment.is_empty() {
            url.push_str(&format!("#{fragment}"));
        }
        url.into_bytes()
    }

    fn path(&self, path: &str) -> String {
        let prefix = self.reach.path_prefix.trim_end_matches('/');
        if path.starts_with(prefix) {
            return path.to_owned();
        }
        format!("{prefix}/{}", path.trim_start_matches('/'))
    }

    fn query(&self, remote: u16, query: &str) -> String {
        let Some(extra) = self.reach.query.get(&remote).filter(|extra| !extra.is_empty()) else {
            return query.to_owned();
        };
        let own = url::form_urlencoded::parse(query.as_bytes()).into_owned();
        let own = own.filter(|(name, _)| extra.iter().all(|(other, _)| other != name));
        url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(own)
            .extend_pairs(extra.iter().cloned())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriter(prefix: &str, secure: bool) -> Rewriter {
        let reach = Reach {
            ports: BTreeMap::from([(8080, 8081), (80, 80)]),
            query: BTreeMap::from([(8080, vec![("token".to_owned(), "t 1".to_owned())])]),
            hostname: "127.0.0.1".to_owned(),
            secure,
            path_prefix: prefix.to_owned(),
        };
        Rewriter::new(reach, Some("10.0.0.5")).unwrap()
    }

    fn rewritten(rewriter: &Rewriter, text: &str) -> String {
        String::from_utf8(rewriter.rewrite(text.as_bytes())).unwrap()
    }

    #[test]
    fn forwarded_ports_only() {
        let rewriter = rewriter("", false);
        for (text, expected) in [
            (
                "open http://0.0.0.0:8080/lab?x=1 now",
                "open http://127.0.0.1:8081/lab?x=1&token=t+1 now",
            ),
            ("http://10.0.0.5:80/a", "http://127.0.0.1/a"),
            ("http://localhost:9999/", "http://localhost:9999/"),
            ("http://example.com:8080/", "http://example.com:8080/"),
            ("no url \u{1b}[0m", "no url \u{1b}[0m"),
        ] {
            assert_eq!(rewritten(&rewriter, text), expected);
        }
    }

    #[test]
    fn a_services_path_prefix_is_added_once() {
        let rewriter = rewriter("/proxy/services/main/x/", false);
        assert_eq!(
            rewritten(&rewriter, "http://localhost:80/docs"),
            "http://127.0.0.1/proxy/services/main/x/docs"
        );
        assert_eq!(
            rewritten(&rewriter, "http://localhost:80/proxy/services/main/x/docs"),
            "http://127.0.0.1/proxy/services/main/x/docs"
        );
    }

    #[test]
    fn other_bytes_survive() {
        assert_eq!(
            rewriter("", false).rewrite(b"\xff\xfe http://x"),
            b"\xff\xfe http://x"
        );
    }
}
