//! The web page: its files, and the page itself at every path that is not one of the API.
//!
//! dstack 0.22.5 answers every GET outside `/api`, `/proxy` and `/metrics` with its page, so that links into it work; what a page
//! below `/proxy` asks for by mistake is not found. The files' names have hashes of their content: browsers keep them for good.

use std::collections::HashMap;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};

use crate::error::text_response;

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub struct File {
    /// Path below the page.
    pub path: &'static str,
    /// Content of the file, not compressed.
    pub plain: &'static [u8],
    /// Packed with brotli.
    pub brotli: Option<&'static [u8]>,
    /// Packed with gzip.
    pub gzip: Option<&'static [u8]>,
}

/// The page of this build; none where it was not built.
#[derive(Debug, Clone, Default)]
pub struct Site {
    files: HashMap<&'static str, File>,
    page: Option<Page>,
}

/// The page, in two parts: between them stands where its files are.
#[derive(Debug, Clone, Copy)]
struct Page {
    before: &'static str,
    after: &'static str,
}

/// The page itself, among its files.
const PAGE: &str = "index.html";
/// Where the place of the files is put in.
const BASE: &str = "<base href=\"/\"";
/// Files whose names change with their content.
const HASHED: &str = "assets/";

/// Everything comes from this server: no inline scripts or styles, no other origins, no frames of others around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; \
                      base-uri 'self'; form-action 'self'; frame-ancestors 'none'";

impl Site {
    /// With these files.
    pub fn of(files: impl IntoIterator<Item = File>) -> Self {
        let files: HashMap<&'static str, File> = files.into_iter().map(|file| (file.path, file)).collect();
        let text = files
            .get(PAGE)
            .and_then(|file| std::str::from_utf8(file.plain).ok());
        let page = text
            .and_then(|text| text.split_once(BASE))
            .map(|(before, after)| Page { before, after });
        Self { files, page }
    }

    /// The answer to what no other route takes, if it is the page's to answer.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let path = request.uri().path();
        if let Some(file) = self.file(path) {
            return Some(served(file, request.headers()));
        }
        let is_elsewhere = ["/api", "/proxy", "/metrics"]
            .iter()
            .any(|prefix| path.starts_with(prefix));
        let is_file = path.trim_start_matches('/').starts_with(HASHED);
        match is_elsewhere || is_file || is_from_proxy(request.headers()) {
            true => None,
            false => self.page(path),
        }
    }

    /// The page, as it is at this path; none where it was not built.
    pub(crate) fn page(&self, path: &str) -> Option<Response<Body>> {
        let page = self.page?;
        let text = format!("{}<base href=\"{}\"{}", page.before, to_root(path), page.after);
        let mut response = text_response(StatusCode::OK, "text/html; charset=utf-8", Bytes::from(text));
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_FRAME_OPTIONS, "DENY"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    }

    fn file(&self, path: &str) -> Option<&File> {
        let path = path.strip_prefix('/')?;
        self.files.get(path).filter(|_| path != PAGE)
    }
}

/// The way from a path to the root, whatever stands before the path in the browser: the page may be served below another
/// one, by a proxy that this server does not know of.
fn to_root(path: &str) -> String {
    let depth = path.matches('/').count().saturating_sub(1);
    match depth {
        0 => "./".to_owned(),
        depth => "../".repeat(depth),
    }
}

/// Whether a page of a service asks, whose addresses are wrong below `/proxy`.
fn is_from_proxy(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let from = text(header::REFERER).and_then(|from| url::Url::parse(from).ok());
    from.is_some_and(|from| {
        let authority = match (from.host_str(), from.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (host, _) => host.unwrap_or_default().to_owned(),
        };
        from.path().starts_with("/proxy") && text(header::HOST) == Some(authority.as_str())
    })
}

fn served(file: &File, headers: &HeaderMap) -> Response<Body> {
    let accepted = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    let (encoding, bytes) = chosen(file, accepted.unwrap_or_default());
    let mut response = text_response(StatusCode::OK, kind(file.path), bytes);
    let headers = response.headers_mut();
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    let kept = match file.path.starts_with(HASHED) {
        true => "public, max-age=31536000, immutable",
        false => "public, max-age=3600",
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    response
}

/// The smallest encoding that the client takes.
fn chosen(file: &File, accepted: &str) -> (Option<&'static str>, &'static [u8]) {
    if let Some(packed) = file.brotli.filter(|_| takes(accepted, "br")) {
        return (Some("br"), packed);
    }
    match file.gzip.filter(|_| takes(accepted, "gzip")) {
        Some(packed) => (Some("gzip"), packed),
        None => (None, file.plain),
    }
}

/// Whether an `Accept-Encoding` has this encoding, and not with a weight of nought.
fn takes(accepted: &str, encoding: &str) -> bool {
    accepted.split(',').any(|part| {
        let (name, weight) = part.split_once(';').unwrap_or((part, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case(encoding)
            && weight.trim().parse::<f32>().is_ok_and(|weight| weight > 0.0)
    })
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_root_follows_the_path() {
        for (path, base) in [
            ("/", "./"),
            ("/runs", "./"),
            ("/runs/", "../"),
            ("/projects/p/runs/r", "../../../"),
        ] {
            assert_eq!(to_root(path), base, "{path}");
        }
    }

    #[test]
    fn clients_get_the_smallest_encoding_that_they_take() {
        let file = File {
            path: "assets/a.js",
            plain: b"plain",
            brotli: Some(b"br"),
            gzip: Some(b"gz"),
        };
        for (accepted, encoding) in [
            ("gzip, deflate, br, zstd", Some("br")),
            ("gzip, br;q=0", Some("gzip")),
            ("GZIP;q=0.5", Some("gzip")),
            ("gzip; q=0.000", None),
            ("gzip;q=x", None),
            ("", None),
            ("identity", None),
        ] {
            assert_eq!(chosen(&file, accepted).0, encoding, "{accepted}");
        }
    }
}
