//! The API as one account: sends what the manifest says.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend::{Env, compute_error};
use dstack_compute::ComputeError;
use dstack_compute::config::ManifestConfig;
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use http::header::AUTHORIZATION;
use http::{HeaderName, Method};
use indexmap::IndexMap;
use serde_json::Value as Json;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::manifest::{List, Manifest, PageStyle, Pages, Request};
use crate::template::{Item, Reader, Scope};

/// More than any account has: an API that never says that a page is the last is not asked for ever.
const MAX_PAGES: i64 = 500;

/// Most entries that a list may have: they are all kept until the last page is there.
const MAX_ENTRIES: usize = 10_000;

/// Why a request has no answer that can be used.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It could not be put together: what is wrong in the manifest.
    NotAsked(String),
    /// The API did not answer, or with an error, or in another form than the manifest says.
    Api(ApiError),
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<Failure> for ComputeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotAsked(text) => of_manifest(&text),
            Failure::Api(error) => compute_error(&error),
        }
    }
}

/// Something that is wrong in the manifest.
pub(crate) fn of_manifest(text: &str) -> ComputeError {
    ComputeError::Configuration(format!("the manifest of this backend does not fit: {text}"))
}

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client {
    api: ApiClient,
    title: String,
    /// From one request to the next.
    interval: Duration,
    /// When the next request may be sent.
    next: Mutex<Instant>,
}

impl Client {
    /// # Errors
    /// A field is missing, or cannot be sent.
    pub(crate) fn new(
        env: &Env,
        kind: BackendType,
        manifest: &Manifest,
        config: &ManifestConfig,
    ) -> Result<Self, String> {
        let api = &manifest.api;
        let limits = ApiLimits {
            timeout: api.timeout.to_duration(),
            parallel: usize::try_from(api.parallel).unwrap_or(1),
            ..ApiLimits::default()
        };
        let mut client = env.api(kind, &api.base, limits)?;
        for (name, value) in headers(manifest, config)? {
            let with_header = client.with_secret_header(name, &value);
            client = with_header.map_err(|_| "a credential has characters that no header has".to_owned())?;
        }
        Ok(Self {
            api: client,
            title: manifest.title.clone(),
            interval: Duration::from_secs_f64(api.interval),
            next: Mutex::new(Instant::now()),
        })
    }

    /// Sends a request when it is its turn; the answer, null where it is empty.
    pub(crate) async fn send(&self, request: &Request, scope: &Scope) -> Result<Json, Failure> {
        self.send_with(request, scope, &[]).await
    }

    /// As [`Client::send`], of one whose turn it is already.
    pub(crate) async fn send_now(&self, request: &Request, scope: &Scope) -> Result<Json, Failure> {
        Ok(self.put_together(request, scope, &[])?.send().await?)
    }

    /// As [`Client::send`], of an answer that need not be JSON.
    pub(crate) async fn send_for_any_answer(&self, request: &Request, scope: &Scope) -> Result<(), Failure> {
        let asked = self.put_together(request, scope, &[])?;
        self.wait_for_turn().await;
        asked.send_raw().await?;
        Ok(())
    }

    async fn send_with(
        &self,
        request: &Request,
        scope: &Scope,
        query: &[(String, String)],
    ) -> Result<Json, Failure> {
        let asked = self.put_together(request, scope, query)?;
        self.wait_for_turn().await;
        Ok(asked.send().await?)
    }

    /// All entries of a list, page by page.
    pub(crate) async fn list(&self, list: &List, scope: &Scope) -> Result<Vec<Json>, Failure> {
        let mut all: Vec<Json> = Vec::new();
        let mut last_page = 0;
        let mut query = list.pages.as_ref().map(first_page).unwrap_or_default();
        for number in 0..MAX_PAGES {
            let answer = self.send_with(&list.request, scope, &query).await?;
            if answer.is_null() {
                let text = "the answer is empty where a list has to be";
                return Err(self.malformed(text.to_owned()).into());
            }
            let answer = Item::new(&answer, scope);
            let entries = entries(&list.items, &answer).map_err(|text| self.malformed(text))?;
            let next = list
                .pages
                .as_ref()
                .and_then(|pages| next_page(pages, number, &answer, entries.is_empty()));
            // An API that does not know the parameter answers with the first page for ever.
            if number > 0 && !entries.is_empty() && all.get(last_page..) == Some(entries.as_slice()) {
                let text = "two pages of a list are the same: `pages` does not ask for the next one as the API wants it";
                return Err(self.malformed(text.to_owned()).into());
            }
            last_page = all.len();
            all.extend(entries);
            if all.len() > MAX_ENTRIES {
                let text = format!("a list has more than {MAX_ENTRIES} entries");
                return Err(self.malformed(text).into());
            }
            match next {
                // Where nothing was on the page, the API names it once more as the last.
                Some(next) if next == query && last_page == all.len() => return Ok(all),
                Some(next) if next == query => {
                    let text = "a page of a list names itself as the next one";
                    return Err(self.malformed(text.to_owned()).into());
                }
                Some(next) => query = next,
                None => return Ok(all),
            }
        }
        Err(self
            .malformed(format!("a list has more than {MAX_PAGES} pages"))
            .into())
    }

    /// An answer that is not as the manifest says.
    pub(crate) fn malformed(&self, details: String) -> ApiError {
        ApiError::Malformed {
            api: self.title.clone(),
            details,
        }
    }

    /// Until the next request may be sent: the API takes so many a second.
    pub(crate) async fn wait_for_turn(&self) {
        if self.interval.is_zero() {
            return;
        }
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + self.interval;
    }

    /// `query` replaces parameters of the same names.
    fn put_together(
        &self,
        request: &Request,
        scope: &Scope,
        query: &[(String, String)],
    ) -> Result<ApiRequest<'_>, Failure> {
        let target = &request.target;
        let path = target.path.path(scope).map_err(Failure::NotAsked)?;
        let mut parameters: IndexMap<String, String> = IndexMap::new();
        for (name, value) in &request.query {
            let value = value.text(scope).map_err(Failure::NotAsked)?;
            parameters.insert(name.clone(), value);
        }
        parameters.extend(query.iter().cloned());
        let mut asked = match target.method {
            Method::POST => self.api.post(&path),
            Method::PUT => self.api.put(&path),
            Method::PATCH => self.api.patch(&path),
            Method::DELETE => self.api.delete(&path),
            _ => self.api.get(&path),
        };
        for (name, value) in &parameters {
            asked = asked.query(name, value);
        }
        if let Some(body) = &request.body {
            asked = asked.json(&body.json(scope).map_err(Failure::NotAsked)?);
        }
        Ok(match request.reads {
            true => asked.repeatable(),
            false => asked,
        })
    }
}

/// Headers that all requests have.
fn headers(manifest: &Manifest, config: &ManifestConfig) -> Result<Vec<(HeaderName, String)>, String> {
    let value_of = |field: &str| {
        let secret = config
            .creds
            .get(field)
            .map(dstack_compute::config::Credential::expose);
        let value = secret.or_else(|| config.options.get(field).map(String::as_str));
        value.ok_or_else(|| format!("the field `{field}` is missing"))
    };
    let named = |name: &str| {
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is no name of a header"))
    };
    let auth = &manifest.api.auth;
    let mut all = Vec::new();
    if let Some(field) = &auth.bearer {
        all.push((AUTHORIZATION, format!("Bearer {}", value_of(field)?)));
    }
    if let Some(basic) = &auth.basic {
        let pair = format!("{}:{}", value_of(&basic.username)?, value_of(&basic.password)?);
        all.push((AUTHORIZATION, format!("Basic {}", STANDARD.encode(pair))));
    }
    for (name, header) in &auth.headers {
        all.push((
            named(name)?,
            format!("{}{}", header.prefix, value_of(&header.field)?),
        ));
    }
    for (name, value) in &manifest.api.headers {
        all.push((named(name)?, value.clone()));
    }
    Ok(all)
}

/// What is read as a list: an array, or the values of an object.
///
/// # Errors
/// It is something else. Null is, too: an answer that lacks the list may not pass for one that says there are no machines.
pub(crate) fn entries(items: &Reader, answer: &Item<'_>) -> Result<Vec<Json>, String> {
    match items.read(answer)? {
        Json::Array(entries) => Ok(entries),
        Json::Object(fields) => Ok(fields.into_iter().map(|(_, value)| value).collect()),
        Json::Null => Err(format!(
            "{items} finds null: where that is an empty list, an expression says so (`{{{{ item.data or [] }}}}`)"
        )),
        _ => Err(format!("{items} finds no list")),
    }
}

/// What asks for the first page.
fn first_page(pages: &Pages) -> Vec<(String, String)> {
    match (pages.by, &pages.query) {
        (PageStyle::Number, Some(name)) => vec![(name.clone(), pages.first.to_string())],
        _ => Vec::new(),
    }
}

/// What asks for the page after that of this number, counted from 0; `None`: it was the last.
fn next_page(pages: &Pages, number: i64, answer: &Item<'_>, is_empty: bool) -> Option<Vec<(String, String)>> {
    let told = || pages.next.as_ref()?.text(answer);
    match pages.by {
        PageStyle::Number => {
            let has_more = pages.next.as_ref().is_none_or(|next| next.is_true(answer));
            let number = (pages.first + number + 1).to_string();
            (has_more && !is_empty).then_some(vec![(pages.query.clone()?, number)])
        }
        PageStyle::Cursor => Some(vec![(pages.query.clone()?, told()?)]),
        PageStyle::Link => Some(query_of(&told()?)),
    }
}

/// The query of an address, which may be a relative one.
fn query_of(address: &str) -> Vec<(String, String)> {
    let (_, query) = address.split_once('?').unwrap_or_default();
    let query = query.split('#').next().unwrap_or_default();
    url::form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

/// Fields of a configuration that templates may use: none that is secret.
pub(crate) fn config_scope(manifest: &Manifest, config: &ManifestConfig) -> Scope {
    let is_open = |name: &String| manifest.fields.get(name).is_some_and(|field| !field.secret);
    let open = config.options.iter().filter(|(name, _)| is_open(name));
    let mut fields: BTreeMap<&str, Json> = open
        .map(|(name, value)| (name.as_str(), Json::String(value.clone())))
        .collect();
    fields.insert("regions", serde_json::json!(config.regions));
    Scope::default().with("config", fields)
}

#[cfg(test)]
mod tests {
    use dstack_decode::decode_strict;
    use serde_json::json;

    use super::*;

    fn pages(pages: &Json) -> Pages {
        decode_strict(pages).unwrap()
    }

    fn next(style: &Json, number: i64, answer: &Json, is_empty: bool) -> Option<Vec<(String, String)>> {
        next_page(
            &pages(style),
            number,
            &Item::new(answer, &Scope::default()),
            is_empty,
        )
    }

    fn query(name: &str, value: &str) -> Option<Vec<(String, String)>> {
        Some(vec![(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn pages_are_asked_for_until_the_last() {
        let number = json!({"by": "number", "query": "page", "next": "/more"});
        assert_eq!(Some(first_page(&pages(&number))), query("page", "1"));
        assert_eq!(next(&number, 0, &json!({"more": "x"}), false), query("page", "2"));
        assert_eq!(
            next(&number, 4, &json!({"more": true}), false),
            query("page", "6")
        );
        assert_eq!(next(&number, 0, &json!({"more": false}), false), None);
        assert_eq!(next(&number, 0, &json!({"more": true}), true), None);
        let blind = json!({"by": "number", "query": "p", "first": 0});
        assert_eq!(next(&blind, 0, &json!({}), false), query("p", "1"));
        assert_eq!(next(&blind, 7, &json!({}), true), None);
        let cursor = json!({"by": "cursor", "query": "after", "next": "/meta/next"});
        assert_eq!(
            next(&cursor, 0, &json!({"meta": {"next": "abc"}}), true),
            query("after", "abc")
        );
        assert_eq!(next(&cursor, 0, &json!({"meta": {"next": ""}}), false), None);
        let link = json!({"by": "link", "next": "/next"});
        let address = json!({"next": "https://elsewhere.example/v9/x?page=2&q=a%20b#x"});
        let both = vec![
            ("page".to_owned(), "2".to_owned()),
            ("q".to_owned(), "a b".to_owned()),
        ];
        assert_eq!(next(&link, 0, &address, false), Some(both));
        assert_eq!(next(&link, 0, &json!({"next": null}), false), None);
        decode_strict::<Pages>(&json!({"by": "cursor", "next": "/x"})).unwrap_err();
        decode_strict::<Pages>(&json!({"by": "link"})).unwrap_err();
    }

    #[test]
    fn lists_are_arrays_or_objects_and_null_is_none() {
        let entries_of = |items: &str, answer: &Json| {
            let reader: Reader = decode_strict(&json!(items)).unwrap();
            entries(&reader, &Item::new(answer, &Scope::default()))
        };
        assert_eq!(entries_of("", &json!([1, 2])).unwrap(), [1, 2]);
        assert_eq!(entries_of("/data", &json!({"data": {"a": 1}})).unwrap(), [1]);
        assert!(entries_of("/data", &json!({"data": []})).unwrap().is_empty());
        for nothing in [json!(null), json!({"data": null})] {
            entries_of("", &json!(null)).unwrap_err();
            entries_of("/data", &nothing).unwrap_err();
        }
        let meant = entries_of("{{ item.data or [] }}", &json!({"data": null}));
        assert!(meant.unwrap().is_empty());
        assert_eq!(
            entries_of("/data", &json!({})).unwrap_err(),
            "`/data` finds nothing"
        );
        entries_of("", &json!("text")).unwrap_err();
    }
}
