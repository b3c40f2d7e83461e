//! What a request says of itself.

use std::net::IpAddr;

use http::header::{self, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The host name that a request is for, in small letters and without a port; `None`: none, or several.
pub(super) fn host(head: &Parts) -> Option<String> {
    let mut lines = head.headers.get_all(header::HOST).iter();
    let (line, more) = (lines.next(), lines.next());
    if more.is_some() {
        return None;
    }
    // What the request line says counts more.
    let host = match head.uri.authority() {
        Some(authority) => authority.host().to_owned(),
        None => without_port(line?.to_str().ok()?).to_owned(),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty()).then_some(host)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Says in HTTP/1.1 what was said in HTTP/2: there is one line for the host, and one for all cookies.
pub(super) fn to_http1(head: &mut Parts) {
    let authority = head.uri.authority();
    // Without the name of a user, which may stand there as well.
    let host = authority.and_then(|authority| authority.as_str().rsplit('@').next());
    if let Some(Ok(host)) = host.map(HeaderValue::from_str) {
        head.headers.insert(header::HOST, host);
    }
    join_cookies(&mut head.headers);
}

fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Who asks, of those that a trusted proxy names: the last one that is no such proxy itself.
pub(super) fn forwarded_for(headers: &HeaderMap, trusts: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let words = lines.filter_map(|line| line.to_str().ok());
    for word in words.flat_map(|line| line.rsplit(',')) {
        let address: IpAddr = word.trim().parse().ok()?;
        let address = address.to_canonical();
        if !trusts(address) {
            return Some(address);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(uri: &str, lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_request_is_for_one_host() {
        let of = |uri: &str, hosts: &[&str]| {
            let lines: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            host(&head(uri, &lines))
        };
        assert_eq!(
            of("/", &["Web.Example.com:8443"]).as_deref(),
            Some("web.example.com")
        );
        assert_eq!(of("/", &["web.example.com."]).as_deref(), Some("web.example.com"));
        assert_eq!(of("https://a.b/x", &["other"]).as_deref(), Some("a.b"));
        assert_eq!(of("/", &[]), None);
        assert_eq!(of("/", &[""]), None);
        assert_eq!(of("/", &["a", "b"]), None);
    }

    #[test]
    fn what_http2_says_in_several_lines_http1_says_in_one() {
        let mut parts = head("https://a.b/x", &[("cookie", "a=1"), ("cookie", "b=2")]);
        to_http1(&mut parts);
        assert_eq!(parts.headers["cookie"], "a=1; b=2");
        assert_eq!(parts.headers["host"], "a.b");
        assert_eq!(parts.headers.get_all("cookie").iter().count(), 1);
    }

    #[test]
    fn of_those_that_proxies_name_the_last_stranger_is_the_client() {
        let of = |line: &str| {
            let parts = head("/", &[("x-forwarded-for", line)]);
            let found = forwarded_for(&parts.headers, |address| address.to_string().starts_with("10."));
            found.map(|address| address.to_string())
        };
        assert_eq!(of("1.1.1.1, 2.2.2.2, 10.0.0.1").as_deref(), Some("2.2.2.2"));
        assert_eq!(of("10.0.0.2").as_deref(), None);
        assert_eq!(of("1.1.1.1, nonsense"), None);
    }
}
