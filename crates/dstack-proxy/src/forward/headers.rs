//! Which headers are passed on, and which are set.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, Entry};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::framing::Framing;
use crate::client::Client;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY: HeaderName = HeaderName::from_static("proxy");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// How headers begin that a proxy says of its client.
const X_FORWARDED: &str = "x-forwarded-";

const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");
const SERVICE_WORKER_ALLOWED: HeaderName = HeaderName::from_static("service-worker-allowed");

/// Headers that concern one connection only, whether `Connection` names them or not.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    PROXY,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Whether a header whose value is a list of words has this one.
pub(crate) fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(words)
        .any(|one| one.eq_ignore_ascii_case(word))
}

fn words(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim)
}

/// Makes of a client's headers those that a replica gets.
pub(crate) fn to_replica(headers: &mut HeaderMap, framing: Framing, client: Option<&Client>) {
    let wants_trailers = has_word(headers, &header::TE, "trailers");
    remove_of_connection(headers);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
    // The server has said that it takes the body: what the replica says to that goes nowhere.
    if has_word(headers, &header::EXPECT, "100-continue") {
        headers.remove(header::EXPECT);
    }
    frame(headers, framing);
    headers
        .entry(header::HOST)
        .or_insert_with(|| HeaderValue::from_static("localhost"));
    tell_client(headers, client);
}

/// Makes of a replica's headers those that the client gets. The server adds `Date`.
pub(crate) fn to_client(headers: &mut HeaderMap, framing: Framing) {
    remove_of_connection(headers);
    headers.remove(header::SERVER);
    headers.remove(header::DATE);
    match framing {
        Framing::Length(length) if headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() => {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
        Framing::Chunked => {}
        Framing::Length(_) | Framing::Unsaid => {
            headers.remove(header::TRAILER);
        }
    }
}

/// Removes what an answer says to browsers of the whole address that it comes from, for services that share theirs with others.
pub(crate) fn spare_origin(headers: &mut HeaderMap) {
    for name in [
        CLEAR_SITE_DATA,
        SERVICE_WORKER_ALLOWED,
        header::STRICT_TRANSPORT_SECURITY,
    ] {
        headers.remove(name);
    }
}

/// Makes of the trailers of a client's request those that a replica gets: whoever joins them with the headers is told nothing by
/// them that headers could not say.
pub(crate) fn trailers_to_replica(trailers: &mut HeaderMap, trusted: bool) {
    remove_of_connection(trailers);
    for name in [
        header::AUTHORIZATION,
        header::COOKIE,
        header::CONTENT_LENGTH,
        header::HOST,
        header::TRAILER,
    ] {
        trailers.remove(name);
    }
    if !trusted {
        remove_claims(trailers);
    }
}

/// How long the replica keeps the connection, if its answer says so.
pub(crate) fn kept_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(KEEP_ALIVE)?;
    let seconds = words(value).find_map(|word| word.strip_prefix("timeout="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn remove_of_connection(headers: &mut HeaderMap) {
    remove_named(headers);
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

/// Removes what `Connection` names. What tells where a message ends and whom it is for is not for a client to take away.
fn remove_named(headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONNECTION) {
        return;
    }
    let kept = [header::CONTENT_LENGTH, header::HOST, header::TRANSFER_ENCODING];
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(words)
        // Said in nearly every request, and no names of headers.
        .filter(|word| !word.eq_ignore_ascii_case("keep-alive") && !word.eq_ignore_ascii_case("close"))
        .filter_map(|word| word.parse().ok())
        .filter(|name| !kept.contains(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Says where the request's body ends.
fn frame(headers: &mut HeaderMap, framing: Framing) {
    match framing {
        Framing::Length(length) => {
            headers.insert(header::CONTENT_LENGTH, length.into());
            headers.remove(header::TRAILER);
        }
        Framing::Chunked => {
            headers.remove(header::CONTENT_LENGTH);
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Framing::Unsaid => {
            headers.remove(header::CONTENT_LENGTH);
            headers.remove(header::TRAILER);
        }
    }
}

/// Tells the replica who asks; what the client says of that itself stays if it is a trusted proxy.
fn tell_client(headers: &mut HeaderMap, client: Option<&Client>) {
    if !client.is_some_and(|client| client.trusted) {
        remove_claims(headers);
    }
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    let Some(client) = client else { return };
    let scheme = HeaderValue::from_static(client.scheme.as_str());
    headers.entry(X_FORWARDED_PROTO).or_insert(scheme);
    let address = Bytes::from(client.address.to_canonical().to_string());
    let Ok(address) = HeaderValue::from_maybe_shared(address) else {
        return;
    };
    headers.entry(X_REAL_IP).or_insert_with(|| address.clone());
    add_forwarded_for(headers, address);
}

fn remove_claims(headers: &mut HeaderMap) {
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
}

/// Whether a header says for whom a request was forwarded. Many programs take `_` in names for `-`.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let begins = |with: &str| {
        let same = |(one, other): (&u8, &u8)| one == other || (*one == b'_' && *other == b'-');
        name.len() >= with.len() && name.iter().zip(with.as_bytes()).all(same)
    };
    let is = |one: &HeaderName| name.len() == one.as_str().len() && begins(one.as_str());
    is(&header::FORWARDED) || is(&X_REAL_IP) || begins(X_FORWARDED)
}

fn add_forwarded_for(headers: &mut HeaderMap, address: HeaderValue) {
    match headers.entry(X_FORWARDED_FOR) {
        Entry::Vacant(none) => {
            none.insert(address);
        }
        Entry::Occupied(mut before) => {
            let lines: Vec<&[u8]> = before.iter().map(HeaderValue::as_bytes).collect();
            let joined = [&lines[..], &[address.as_bytes()]].concat().join(&b", "[..]);
            if let Ok(all) = HeaderValue::from_maybe_shared(Bytes::from(joined)) {
                before.insert(all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::client::Scheme;

    const fn client(trusted: bool) -> Client {
        Client {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)),
            scheme: Scheme::Https,
            trusted,
        }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let line =
            |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort_unstable();
        lines
    }

    fn sent(
        framing: Framing,
        client: Option<&Client>,
        given: &[(&'static str, &'static str)],
    ) -> Vec<String> {
        let mut headers = headers(given);
        to_replica(&mut headers, framing, client);
        lines(&headers)
    }

    #[test]
    fn what_concerns_the_connection_stays_there() {
        let given = [
            ("host", "a"),
            ("connection", "close, X-Mine, content-length"),
            ("connection", "host"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "x"),
            ("proxy", "http://evil"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("content-length", "3"),
            ("cookie", "a=b"),
        ];
        assert_eq!(
            sent(Framing::Length(3), None, &given),
            [
                "content-length: 3",
                "cookie: a=b",
                "host: a",
                "x-forwarded-host: a"
            ]
        );
    }

    #[test]
    fn trailers_are_asked_for_and_announced() {
        let given = [
            ("host", "a"),
            ("te", "gzip, trailers"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
        ];
        let chunked = sent(Framing::Chunked, None, &given);
        let announced = [
            "connection: te",
            "host: a",
            "te: trailers",
            "trailer: x-sum",
            "transfer-encoding: chunked",
            "x-forwarded-host: a",
        ];
        assert_eq!(chunked, announced);
        let without_body = sent(Framing::Unsaid, None, &given);
        assert_eq!(
            without_body,
            ["connection: te", "host: a", "te: trailers", "x-forwarded-host: a"]
        );
    }

    #[test]
    fn what_a_client_claims_to_be_forwarded_is_not_believed() {
        let given = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-port", "1"),
            ("x-forwarded-proto", "http"),
            ("x-real-ip", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded_host", "evil"),
            ("x_real_ip", "1.2.3.4"),
        ];
        let told = [
            "host: localhost",
            "x-forwarded-for: 10.0.0.7",
            "x-forwarded-host: localhost",
            "x-forwarded-proto: https",
            "x-real-ip: 10.0.0.7",
        ];
        assert_eq!(sent(Framing::Unsaid, Some(&client(false)), &given), told);
    }

    #[test]
    fn what_a_trusted_proxy_says_is_passed_on_with_its_address() {
        let given = [
            ("host", "a"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "5.6.7.8"),
            ("x-forwarded-host", "b"),
            ("x-forwarded-proto", "http"),
            ("x-real-ip", "1.2.3.4"),
        ];
        let told = [
            "host: a",
            "x-forwarded-for: 1.2.3.4, 5.6.7.8, 10.0.0.7",
            "x-forwarded-host: b",
            "x-forwarded-proto: http",
            "x-real-ip: 1.2.3.4",
        ];
        assert_eq!(sent(Framing::Unsaid, Some(&client(true)), &given), told);
    }

    #[test]
    fn trailers_say_nothing_that_headers_could_not() {
        let mut given = headers(&[
            ("x-sum", "1"),
            ("connection", "x-mine"),
            ("x-mine", "1"),
            ("upgrade", "websocket"),
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("host", "evil"),
            ("content-length", "3"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x_real_ip", "1.2.3.4"),
        ]);
        let mut trusted = given.clone();
        trailers_to_replica(&mut given, false);
        assert_eq!(lines(&given), ["x-sum: 1"]);
        trailers_to_replica(&mut trusted, true);
        let told = ["x-forwarded-for: 1.2.3.4", "x-sum: 1", "x_real_ip: 1.2.3.4"];
        assert_eq!(lines(&trusted), told);
    }

    #[test]
    fn of_an_answer_what_concerns_the_connection_and_the_server_stays_there() {
        let mut given = headers(&[
            ("server", "x"),
            ("date", "x"),
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5, max=100"),
            ("content-length", "3"),
            ("content-length", "3"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
        ]);
        assert_eq!(kept_alive(&given), Some(Duration::from_secs(5)));
        to_client(&mut given, Framing::Length(3));
        assert_eq!(
            lines(&given),
            ["content-length: 3", "set-cookie: a=1", "set-cookie: b=2"]
        );
    }
}
