//! Which requests are read for their prompts: those to models whose bodies are short enough to be held in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRAILER};
use http::{Method, Request};
use hyper::body::Body as _;

use super::Prefixes;
use crate::body::ProxyBody;
use crate::media_type::is_of_type;
use crate::routes::{Balancing, Service};

/// Most bytes of a request that is read for its prompt.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// Most bytes of all requests that are read for their prompts at a time; the others are spread without a look at them.
const MAX_READ_BYTES: usize = 64 << 20;

/// How the paths of models end, whatever is before: the APIs of OpenAI and Anthropic, and SGLang's and Text Generation Inference's own.
const PATHS: [&str; 6] = [
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/generate",
    "/generate_stream",
];

/// Room in memory for one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: usize,
    read: Arc<AtomicUsize>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.read.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Prefixes {
    /// Room for a request that is to be read for its prompt; `None`: it is not, or too much is read already.
    pub(crate) fn room_for(&self, service: &Service, request: &Request<ProxyBody>) -> Option<Room> {
        if service.balancing != Balancing::Prefix || service.replicas.len() < 2 || !has_prompt(request) {
            return None;
        }
        let bytes = length(request).filter(|bytes| (1..=MAX_BODY_BYTES).contains(bytes))?;
        let room = Room {
            bytes,
            read: Arc::clone(&self.read),
        };
        let before = self.read.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= MAX_READ_BYTES).then_some(room)
    }
}

fn has_prompt(request: &Request<ProxyBody>) -> bool {
    let (path, headers) = (request.uri().path(), request.headers());
    request.method() == Method::POST
        && (path.starts_with("/v1/") || PATHS.iter().any(|end| path.ends_with(end)))
        && is_of_type(headers, "application/json")
        && !headers.contains_key(CONTENT_ENCODING)
        && !headers.contains_key(TRAILER)
}

/// As long as the body is, if that is said before it comes.
fn length(request: &Request<ProxyBody>) -> Option<usize> {
    if let Some(exact) = request.body().size_hint().exact() {
        return usize::try_from(exact).ok();
    }
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_units::{JobId, RunId};
    use http::header::CONTENT_TYPE;
    use uuid::Uuid;

    use super::*;
    use crate::body::full;
    use crate::nowhere::Nowhere;
    use crate::replica::Replica;
    use crate::routes::Paths;

    fn service(balancing: Balancing, replicas: u128) -> Service {
        let replica = |id| Arc::new(Replica::new(JobId::new(Uuid::from_u128(id)), Arc::new(Nowhere)));
        Service {
            run_id: RunId::new(Uuid::from_u128(1)),
            project: "main".to_owned(),
            run: "llm".to_owned(),
            created: 0,
            auth: false,
            strip_prefix: true,
            shares_origin: false,
            paths: Paths::All,
            read_timeout: Duration::from_secs(1),
            model: None,
            balancing,
            split: None,
            starts_on_request: false,
            replicas: (0..replicas).map(replica).collect(),
        }
    }

    fn post(path: &str, kind: &str, bytes: usize) -> Request<ProxyBody> {
        let request = Request::post(path).header(CONTENT_TYPE, kind);
        request.body(full(vec![b' '; bytes])).unwrap()
    }

    #[test]
    fn only_requests_to_models_are_read_and_only_where_that_matters() {
        let prefixes = Prefixes::default();
        let by_prefix = service(Balancing::Prefix, 2);
        let json = "application/json; charset=utf-8";
        for (path, kind, bytes, is_read) in [
            ("/v1/chat/completions", json, 10, true),
            ("/v1/anything?x=/y", json, 10, true),
            ("/api/chat/completions", json, MAX_BODY_BYTES, true),
            ("/v1/chat/completions", json, MAX_BODY_BYTES + 1, false),
            ("/v1/chat/completions", json, 0, false),
            ("/v1/chat/completions", "multipart/form-data", 10, false),
            ("/upload", json, 10, false),
        ] {
            let room = prefixes.room_for(&by_prefix, &post(path, kind, bytes));
            assert_eq!(room.is_some(), is_read, "{path} {kind} {bytes}");
        }
        let chat = post("/v1/chat/completions", json, 10);
        for other in [
            service(Balancing::Prefix, 1),
            service(Balancing::LeastRequests, 2),
        ] {
            assert!(prefixes.room_for(&other, &chat).is_none());
        }
        let mut zipped = post("/v1/chat/completions", json, 10);
        zipped
            .headers_mut()
            .insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        assert!(prefixes.room_for(&by_prefix, &zipped).is_none());
    }

    #[test]
    fn no_more_is_held_than_there_is_room_for() {
        let prefixes = Prefixes::default();
        let by_prefix = service(Balancing::Prefix, 2);
        let chat = post("/v1/chat/completions", "application/json", MAX_BODY_BYTES);
        let most = MAX_READ_BYTES / MAX_BODY_BYTES;
        let mut rooms: Vec<Room> = (0..most)
            .map(|_| prefixes.room_for(&by_prefix, &chat).unwrap())
            .collect();
        assert!(prefixes.room_for(&by_prefix, &chat).is_none());
        rooms.pop();
        assert!(prefixes.room_for(&by_prefix, &chat).is_some());
        drop(rooms);
        assert_eq!(prefixes.read.load(Ordering::Relaxed), 0);
    }
}
