//! What a route is.

use dstack_decode::schema::{Schema, Schemas};
use dstack_decode::{Cx, Decode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// One route: the types of its body and answer. Everything else about it stands in [`RouteInfo`].
pub trait Endpoint: Send + Sync + 'static {
    /// Method, path and guard.
    const ROUTE: RouteInfo;
    /// What is sent; [`Nothing`] for routes without a body.
    type Request: Decode + Schema + Serialize + Send + Sync + 'static;
    /// What is answered with status 200; `()` is `null`.
    type Response: Schema + Serialize + DeserializeOwned + Send + 'static;
}

pub(crate) const MIB: usize = 1024 * 1024;

/// Most bytes of a JSON body where anyone may call, also without a token.
pub(crate) const MAX_BODY_OF_ANYONE: usize = 16 * 1024;

/// Most bytes of a JSON body elsewhere, unless the table says otherwise.
pub(crate) const MAX_BODY: usize = MIB;

/// Facts about a route, for the router, tests and documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteInfo {
    /// Name of the endpoint type.
    pub name: &'static str,
    /// The HTTP method of the route.
    pub method: Method,
    /// Path; parameters in braces.
    pub path: &'static str,
    /// Who may call it.
    pub guard: Guard,
    /// What a call does: decides which tokens are good for it.
    pub effect: Effect,
    /// How the request is sent.
    pub body: Body,
    /// Most bytes of a JSON body. Uploads have a limit that the server's administrator sets; other routes take no body.
    pub max_body: usize,
    /// What a success leaves in the audit trail.
    pub trail: Trail,
    /// The release of dstack whose server had it first; `None`: only this server has it.
    pub since: Option<&'static str>,
}

impl RouteInfo {
    /// Whether it answers with server-sent events, for as long as the client stays: routes whose path ends so do.
    pub fn is_stream(&self) -> bool {
        self.path.ends_with("/follow")
    }
}

/// A route with what the OpenAPI document says of it.
#[derive(Debug, Clone, Copy)]
pub struct Described {
    /// What is known of the route itself.
    pub route: RouteInfo,
    /// What it is for.
    pub summary: &'static str,
    /// Schema of what is sent.
    pub request: fn(&mut Schemas) -> Value,
    /// Schema of what is answered with status 200.
    pub response: fn(&mut Schemas) -> Value,
}

/// What a successful call changes, and what the audit trail says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trail {
    /// Nothing is changed, and no event is written.
    Reads,
    /// Events that begin with one of these texts; at least one per call that changed something.
    Writes(&'static [&'static str]),
    /// It changes something without an event, for this reason.
    Silent(&'static str),
}

/// HTTP method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Sent as GET: everything is in path and query.
    Get,
    /// Sent as POST: arguments are in the body.
    Post,
}

/// How a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Body {
    /// Not at all: whatever is sent is ignored.
    None,
    /// A JSON body is needed.
    Json,
    /// As JSON; no body and `null` equal `{}`.
    OptionalJson,
    /// In the query string.
    Query,
    /// As one multipart file whose name is the hash of its content; parameters stand in the query string.
    Upload,
}

/// Who may call a route (dstack 0.22.5's dependency classes). Global admins pass all guards of projects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Anyone, without a token.
    Anyone,
    /// Every user with a valid token.
    User,
    /// Users whose global role is admin.
    GlobalAdmin,
    /// Members of the project.
    Member,
    /// Members; any user if the project is public.
    MemberOrPublic,
    /// Managers and admins of the project.
    Manager,
    /// Managers and admins; any user if the project is public, whom the handler then lets do less.
    ManagerOrPublic,
    /// Members, whom the handler then narrows down to managers, or to leaving themselves.
    MemberSelf,
    /// Admins of the project.
    Admin,
    /// Members, and members of a project that imports the entity: decided by the handler.
    Importer,
    /// As [`Guard::Importer`]; any user if the project is public.
    ImporterOrPublic,
    /// The SSH proxy's own token.
    SshProxyToken,
    /// The token for scraping metrics, if one is configured.
    MetricsToken,
}

/// What a call does. Further tokens of a user may be good for some of these only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Changes nothing and shows no credentials.
    Reads,
    /// Changes nothing, but shows credentials of a project: not with read-only tokens.
    Reveals,
    /// Changes something: not with read-only tokens.
    Changes,
    /// Changes users, or which projects there are: not with read-only tokens, nor with those of one project.
    Governs,
    /// Shows or changes what users log in with: only with a user's own token.
    Account,
}

/// No request body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nothing;

impl Decode for Nothing {
    fn decode(_: &Value, _: &mut Cx) -> Option<Self> {
        Some(Self)
    }
}

impl Schema for Nothing {
    fn schema(schemas: &mut Schemas) -> Value {
        <()>::schema(schemas)
    }
}

impl Serialize for Nothing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Values for the parameters of a path, in order.
pub trait PathParams {
    /// Returns the values in the order of the path's parameters.
    fn values(&self) -> Vec<&str>;
}

impl PathParams for () {
    fn values(&self) -> Vec<&str> {
        Vec::new()
    }
}

impl PathParams for &str {
    fn values(&self) -> Vec<&str> {
        vec![self]
    }
}

impl PathParams for &String {
    fn values(&self) -> Vec<&str> {
        vec![self.as_str()]
    }
}

impl PathParams for (&str, &str) {
    fn values(&self) -> Vec<&str> {
        vec![self.0, self.1]
    }
}

/// Declares routes: one unit struct per route, and the table of all of them. A route says how it is called, who may call
/// it, for which tokens it is (`reads`, `reveals`, `changes`, `governs`, `account`), what goes in and out, and what it leaves behind: `reads`, `writes ["beginning of an event", ...]` or
/// `silent ["why it changes something without an event"]`; then `since "release of dstack that had it first"`, and
/// `up to N MiB` where bodies may be larger than usual.
macro_rules! routes {
    (@body none) => { $crate::endpoint::Body::None };
    (@body json) => { $crate::endpoint::Body::Json };
    (@body optional) => { $crate::endpoint::Body::OptionalJson };
    (@body query) => { $crate::endpoint::Body::Query };
    (@body upload) => { $crate::endpoint::Body::Upload };
    (@effect reads) => { $crate::endpoint::Effect::Reads };
    (@effect reveals) => { $crate::endpoint::Effect::Reveals };
    (@effect changes) => { $crate::endpoint::Effect::Changes };
    (@effect governs) => { $crate::endpoint::Effect::Governs };
    (@effect account) => { $crate::endpoint::Effect::Account };
    (@trail reads) => { $crate::endpoint::Trail::Reads };
    (@trail writes [$($text:literal),+]) => { $crate::endpoint::Trail::Writes(&[$($text),+]) };
    (@trail silent [$reason:literal]) => { $crate::endpoint::Trail::Silent($reason) };
    (@max_body Anyone) => { $crate::endpoint::MAX_BODY_OF_ANYONE };
    (@max_body $guard:ident) => { $crate::endpoint::MAX_BODY };
    (@max_body $guard:ident $mib:literal) => { $mib * $crate::endpoint::MIB };
    (@since) => { None };
    (@since $since:literal) => { Some($since) };
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $method:ident $path:literal, $guard:ident, $effect:ident, $body:ident $request:ty => $response:ty,
            $trail:ident $([$($text:literal),+])? $(, since $since:literal)? $(, up to $mib:literal MiB)?;
    )*) => {
        $(
            $(#[doc = $doc])+
            #[doc = concat!("`", stringify!($method), " ", $path, "`")]
            #[derive(Debug, Clone, Copy)]
            pub struct $name;

            impl $crate::endpoint::Endpoint for $name {
                const ROUTE: $crate::endpoint::RouteInfo = $crate::endpoint::RouteInfo {
                    name: stringify!($name),
                    method: $crate::endpoint::Method::$method,
                    path: $path,
                    guard: $crate::endpoint::Guard::$guard,
                    effect: routes!(@effect $effect),
                    body: routes!(@body $body),
                    max_body: routes!(@max_body $guard $($mib)?),
                    trail: routes!(@trail $trail $([$($text),+])?),
                    since: routes!(@since $($since)?),
                };
                type Request = $request;
                type Response = $response;
            }
        )*

        /// All routes, in the order of the reference.
        pub static ROUTES: &[$crate::endpoint::RouteInfo] = &[
            $(<$name as $crate::endpoint::Endpoint>::ROUTE,)*
        ];

        /// The same with their schemas.
        pub static DESCRIPTIONS: &[$crate::endpoint::Described] = &[
            $($crate::endpoint::Described {
                route: <$name as $crate::endpoint::Endpoint>::ROUTE,
                summary: concat!($($doc),+),
                request: <$request as ::dstack_decode::schema::Schema>::schema,
                response: <$response as ::dstack_decode::schema::Schema>::schema,
            },)*
        ];
    };
}
pub(crate) use routes;
