//! Whether the other server is this one.

use reqwest::Url;

/// Whether an address is that of this server, as far as the server knows its own: by host and port. Nothing is asked, as another name of
/// it leads to no harm: what it has is offered twice then.
pub(crate) fn is_same(url: &str, own: Option<&Url>) -> bool {
    let (Ok(url), Some(own)) = (Url::parse(url), own) else {
        return false;
    };
    url.port_or_known_default() == own.port_or_known_default()
        && host(&url).is_some()
        && host(&url) == host(own)
}

/// All names of this machine are one.
fn host(url: &Url) -> Option<&str> {
    const HERE: &[&str] = &["localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"];
    let host = url.host_str()?;
    Some(match HERE.contains(&host) {
        true => "localhost",
        false => host.trim_end_matches('.'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_host_and_port() {
        for (url, own, expected) in [
            ("https://dstack.example/", "https://dstack.example", true),
            ("https://Dstack.example.:443/x", "https://dstack.example", true),
            ("http://localhost:3000", "http://127.0.0.1:3000", true),
            ("http://[::1]:3000", "http://0.0.0.0:3000", true),
            ("http://localhost:3001", "http://127.0.0.1:3000", false),
            ("https://sky.example", "https://dstack.example", false),
            ("http://dstack.example", "https://dstack.example", false),
            ("nothing", "https://dstack.example", false),
        ] {
            let own = Url::parse(own).unwrap();
            assert_eq!(is_same(url, Some(&own)), expected, "{url} {own}");
        }
        assert!(!is_same("https://dstack.example", None));
    }
}
