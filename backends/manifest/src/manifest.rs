//! A manifest, as it is written.

use dstack_catalog::Provider;
use dstack_compute::Marks;
use dstack_decode::schema::{Object, Property, Schema, SchemaFields, Schemas};
use dstack_decode::{Cx, Decode, DecodeFields, Fields};
use dstack_model::string_enum;
use dstack_units::Seconds;
use http::Method;
use indexmap::IndexMap;
use regex::Regex;
use serde_json::{Value as Json, json};

use crate::template::{JsonTemplate, Reader, Template};

/// The version of the format.
const FORMAT: i64 = 1;

/// A backend that one file describes: docs/backends/manifest.md.
#[derive(Debug, Clone, Decode)]
pub struct Manifest {
    /// The version of the format: 1.
    #[decode(check = is_this_format)]
    pub manifest: i64,
    /// The type of the backends, as configurations name it: lower-case letters, digits and hyphens. None that dstack has by itself.
    #[decode(rename = "type")]
    pub kind: String,
    /// The vendor's name, for people.
    #[decode(min_len = 1)]
    pub title: String,
    /// Where the API is, and how it is used.
    pub api: Api,
    /// The fields of a configuration besides `type` and `regions`, by name. Secret ones stand below `creds`.
    pub fields: IndexMap<String, Field>,
    /// Requests that a configuration has to pass, the first first: the cheapest one that needs the credentials.
    #[decode(min_len = 1)]
    pub check: Vec<Check>,
    /// What can be had.
    pub offers: Offers,
    /// How machines are made, looked at and removed.
    pub machine: MachineRules,
    /// What else the machines can do.
    #[decode(default)]
    pub capabilities: Abilities,
}

fn is_this_format(format: i64) -> Result<i64, String> {
    match format == FORMAT {
        true => Ok(format),
        false => Err(format!("this version reads manifests of format {FORMAT}")),
    }
}

/// An API.
#[derive(Debug, Clone, Decode)]
pub struct Api {
    /// Its address, below which the paths of requests are.
    #[decode(check = is_address)]
    pub base: String,
    /// How requests say who asks.
    pub auth: Auth,
    /// Headers that all requests have besides.
    #[decode(default)]
    pub headers: IndexMap<String, String>,
    /// Longest time for an answer.
    #[decode(default = Seconds(30), check = is_short)]
    pub timeout: Seconds,
    /// Requests under way at the same time.
    #[decode(default = 16, ge = 1, le = 64)]
    pub parallel: i64,
    /// Pause from one request to the next, in seconds: of an API that takes so many a second.
    #[decode(default = 0.0, ge = 0.0, le = 10.0)]
    pub interval: f64,
}

fn is_address(base: String) -> Result<String, String> {
    let is_http =
        url::Url::parse(&base).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match is_http {
        true => Ok(base),
        false => Err("it is no address of http or https".to_owned()),
    }
}

/// A call of the control plane takes two minutes at most.
fn is_short(timeout: Seconds) -> Result<Seconds, String> {
    match (1..=90).contains(&timeout.0) {
        true => Ok(timeout),
        false => Err("it has to be from 1 s to 90 s".to_owned()),
    }
}

/// How requests say who asks: fields by name.
#[derive(Debug, Clone, Decode)]
#[decode(after = says_something)]
pub struct Auth {
    /// The field that is sent as `Authorization: Bearer`.
    pub bearer: Option<String>,
    /// The fields that are sent as `Authorization: Basic`.
    pub basic: Option<Basic>,
    /// Headers in which fields are sent.
    #[decode(default)]
    pub headers: IndexMap<String, SecretHeader>,
}

fn says_something(auth: Auth) -> Result<Auth, String> {
    let is_twice = auth.bearer.is_some() && auth.basic.is_some();
    match (is_twice, auth.fields().is_empty()) {
        (true, _) => Err("`bearer` and `basic` are both sent in `Authorization`: one of them".to_owned()),
        (_, true) => Err("one of `bearer`, `basic` and `headers` is needed".to_owned()),
        _ => Ok(auth),
    }
}

impl Auth {
    /// The names of the fields that are sent.
    pub(crate) fn fields(&self) -> Vec<&str> {
        let mut fields: Vec<&str> = self.bearer.as_deref().into_iter().collect();
        if let Some(basic) = &self.basic {
            fields.extend([basic.username.as_str(), basic.password.as_str()]);
        }
        fields.extend(self.headers.values().map(|header| header.field.as_str()));
        fields
    }
}

/// HTTP Basic.
#[derive(Debug, Clone, Decode)]
pub struct Basic {
    /// The field with the name.
    pub username: String,
    /// The field with the password.
    pub password: String,
}

/// A header with a field.
#[derive(Debug, Clone, Decode)]
pub struct SecretHeader {
    /// The name of the field.
    pub field: String,
    /// What stands before it, such as `Token `.
    #[decode(default)]
    pub prefix: String,
}

/// A field of configurations.
#[derive(Debug, Clone, Default, Decode)]
pub struct Field {
    /// It is a credential: it stands below `creds`, is encrypted and never shown.
    #[decode(default)]
    pub secret: bool,
    /// A configuration may lack it.
    #[decode(default)]
    pub optional: bool,
    /// What it is, for people.
    #[decode(default)]
    pub description: String,
}

/// What is asked of the API: method, path, query and body, each with placeholders.
#[derive(Debug, Clone, Decode)]
pub struct Request {
    /// What is asked, and where.
    #[decode(flatten)]
    pub target: Target,
    /// Parameters behind `?`, percent-encoded when sent. A placeholder without a value is an error.
    #[decode(default)]
    pub query: IndexMap<String, Template>,
    /// The body, sent as JSON.
    pub body: Option<JsonTemplate>,
    /// It changes nothing, although its method says so: it may be sent again when the answer is lost.
    #[decode(default)]
    pub reads: bool,
}

/// A method and the path below the address of the API: exactly one of the methods names it.
#[derive(Debug, Clone)]
pub struct Target {
    /// By which a request that fails is repeated or not: `get` is.
    pub method: Method,
    /// Below `api.base`; each placeholder is one part of it.
    pub path: Template,
}

/// The fields of the methods, and what they are for.
const METHODS: [(&str, Method, &str); 5] = [
    ("get", Method::GET, "The path of a request that reads."),
    (
        "post",
        Method::POST,
        "The path of a request that makes something.",
    ),
    ("put", Method::PUT, "The path of a request that sets something."),
    (
        "patch",
        Method::PATCH,
        "The path of a request that changes something.",
    ),
    (
        "delete",
        Method::DELETE,
        "The path of a request that removes something.",
    ),
];

impl DecodeFields for Target {
    fn decode_fields(fields: &mut Fields<'_>, cx: &mut Cx) -> Option<Self> {
        let mut targets = Vec::new();
        for (name, method, _) in METHODS {
            if let Some(value) = fields.get(name) {
                let path = cx.at(name, |cx| Template::decode(value, cx));
                targets.push(path.map(|path| Self { method, path }));
            }
        }
        let target = targets.pop();
        if target.is_some() && targets.is_empty() {
            return target.flatten();
        }
        let names = METHODS.map(|(name, ..)| format!("`{name}`")).join(", ");
        let found = Json::Object(fields.map().clone());
        cx.value_error(format!("exactly one of {names} has to name the path"), &found)
    }
}

impl SchemaFields for Target {
    fn schema_fields(object: &mut Object, schemas: &mut Schemas) {
        for (name, _, doc) in METHODS {
            let mut property = Property::of::<Template>(schemas);
            property.describe(doc);
            object.property(name, property, false);
        }
    }
}

/// A request that is answered with a list.
#[derive(Debug, Clone, Decode)]
pub struct List {
    /// What is asked for each page; it changes nothing at the vendor.
    #[decode(flatten)]
    pub request: Request,
    /// Where the list is: an array, or an object, whose values are taken. Null is an error, unless an expression reads it as `[]`.
    pub items: Reader,
    /// How further pages are asked for; all is on one when unset.
    pub pages: Option<Pages>,
}

string_enum! {
    /// How the next page of a list is asked for.
    pub enum PageStyle {
        /// By its number.
        Number = "number",
        /// By a text of the page before it.
        Cursor = "cursor",
        /// By the query of the address that the page before it names.
        Link = "link",
    }
}

/// The pages of a list.
#[derive(Debug, Clone, Decode)]
#[decode(after = pages_fit)]
pub struct Pages {
    /// How the next one is asked for.
    pub by: PageStyle,
    /// The parameter of the query with the number or the text.
    pub query: Option<String>,
    /// The number of the first page.
    #[decode(default = 1, ge = 0, le = 1)]
    pub first: i64,
    /// Where a page says which is the next; with numbers: whether there is one. Without it, numbers are asked for until a page is empty.
    pub next: Option<Reader>,
}

fn pages_fit(pages: Pages) -> Result<Pages, String> {
    let needs_query = pages.by != PageStyle::Link;
    let needs_next = pages.by != PageStyle::Number;
    if needs_query && pages.query.is_none() {
        return Err("`query` has to name the parameter of the query".to_owned());
    }
    if needs_next && pages.next.is_none() {
        return Err("`next` has to say where a page names the next one".to_owned());
    }
    Ok(pages)
}

/// A request that a configuration has to pass.
#[derive(Debug, Clone, Decode)]
#[decode(after = names_its_field)]
pub struct Check {
    /// The cheapest that needs the credentials; 401 and 403 mean that they are wrong.
    #[decode(flatten)]
    pub request: Request,
    /// It is only asked where this is so.
    pub when: Option<Reader>,
    /// A list in which something has to be.
    pub items: Option<Reader>,
    /// How further pages of the list are asked for.
    pub pages: Option<Pages>,
    /// Which entry of the list it is; any when unset.
    #[decode(rename = "where")]
    pub filter: Option<Reader>,
    /// The field that is wrong where it is missing.
    pub field: Option<String>,
    /// What is said where it is missing.
    pub missing: Option<Template>,
}

fn names_its_field(check: Check) -> Result<Check, String> {
    match check.items.is_none() || check.field.is_some() {
        true => Ok(check),
        false => Err("`field` has to name the field that is wrong where the list lacks it".to_owned()),
    }
}

/// What can be had: of the catalogue, with what is free, or of the vendor's own list.
#[derive(Debug, Clone, Decode)]
#[decode(after = offers_are_of_one_source)]
pub struct Offers {
    /// The provider of the catalogue that has prices and shapes.
    #[decode(schema = providers)]
    pub catalog: Option<String>,
    /// Which of them are free now; all when unset.
    pub free: Option<Free>,
    /// The vendor's list of what it sells.
    pub list: Option<Sold>,
}

fn providers(_: &mut Schemas) -> Json {
    let names: Vec<&str> = Provider::ALL.iter().map(|provider| provider.name()).collect();
    dstack_decode::schema::texts(&names)
}

fn offers_are_of_one_source(offers: Offers) -> Result<Offers, String> {
    match (&offers.catalog, &offers.list) {
        (Some(_), Some(_)) | (None, None) => Err("exactly one of `catalog` and `list` is needed".to_owned()),
        (None, Some(_)) if offers.free.is_some() => {
            Err("`free` belongs to `catalog`; what `list` has is free as its `available` says".to_owned())
        }
        (Some(name), None) if Provider::from_name(name).is_none() => {
            Err(format!("the catalogue has no provider `{name}`"))
        }
        _ => Ok(offers),
    }
}

/// What is free now of what the catalogue has.
#[derive(Debug, Clone, Decode)]
#[decode(after = is_free_somewhere)]
pub struct Free {
    /// Sizes that are free now; those that it lacks are not.
    #[decode(flatten)]
    pub list: List,
    /// The type of machines of an entry, as the catalogue calls it.
    #[decode(rename = "type")]
    pub kind: Reader,
    /// The regions of an entry: a list or an object, whose entries are `region` then (of objects: `region.key` and `region.value`).
    pub regions: Option<Reader>,
    /// The name of the region; the entry itself when unset.
    pub region: Option<Reader>,
    /// How many are free: none where it is 0. Some, when unset.
    pub count: Option<Reader>,
}

fn is_free_somewhere(free: Free) -> Result<Free, String> {
    match free.regions.is_some() || free.region.is_some() {
        true => Ok(free),
        false => Err("`regions` or `region` has to say where it is free".to_owned()),
    }
}

string_enum! {
    /// In what sizes are told.
    pub enum SizeUnit {
        /// Single bytes, for APIs that tell no larger unit.
        Bytes = "B",
        /// 2^20 bytes.
        MiB = "MiB",
        /// 2^30 bytes.
        GiB = "GiB",
        /// 2^40 bytes.
        TiB = "TiB",
        /// 10^6 bytes.
        MB = "MB",
        /// 10^9 bytes.
        GB = "GB",
        /// 10^12 bytes.
        TB = "TB",
    }
}

impl SizeUnit {
    /// How many GiB it is.
    pub(crate) fn gib(self) -> f64 {
        let gib = (1_u64 << 30) as f64;
        match self {
            Self::Bytes => 1.0 / gib,
            Self::MiB => 1.0 / 1024.0,
            Self::GiB => 1.0,
            Self::TiB => 1024.0,
            Self::MB => 1e6 / gib,
            Self::GB => 1e9 / gib,
            Self::TB => 1e12 / gib,
        }
    }
}

string_enum! {
    /// In what prices are told.
    pub enum PriceUnit {
        /// US dollars an hour.
        Dollars = "dollars",
        /// US cents an hour.
        Cents = "cents",
    }
}

/// What the vendor's own list has.
#[derive(Debug, Clone, Decode)]
#[decode(after = is_sold_somewhere)]
pub struct Sold {
    /// All sizes that are sold, with their prices.
    #[decode(flatten)]
    pub list: List,
    /// Entries of which this is not so are left out.
    #[decode(rename = "where")]
    pub filter: Option<Reader>,
    /// The type of machines, as it is asked for.
    #[decode(rename = "type")]
    pub kind: Reader,
    /// The regions of an entry: a list or an object, whose entries are `region` then (of objects: `region.key` and `region.value`).
    pub regions: Option<Reader>,
    /// The name of the region; the entry itself when unset.
    pub region: Option<Reader>,
    /// Whether it is free; it is when unset.
    pub available: Option<Reader>,
    /// The number of CPUs.
    pub cpus: Reader,
    /// The architecture of the CPUs, `x86` or `arm`; `x86` when unset.
    pub cpu_arch: Option<Reader>,
    /// Main memory of a machine, in `memory_unit`.
    pub memory: Reader,
    /// In what the memory is told.
    #[decode(default = SizeUnit::GiB)]
    pub memory_unit: SizeUnit,
    /// The disk; unknown when unset.
    pub disk: Option<Reader>,
    /// In what the disk is told.
    #[decode(default = SizeUnit::GiB)]
    pub disk_unit: SizeUnit,
    /// The price of an hour.
    pub price: Reader,
    /// In what the price is told.
    #[decode(default = PriceUnit::Dollars)]
    pub price_unit: PriceUnit,
    /// Whether it may be taken away at any time.
    pub spot: Option<Reader>,
    /// Its GPUs; none when unset.
    pub gpu: Option<Gpus>,
    /// What is kept with the offer for the request that makes a machine: `offer.data`.
    pub data: Option<Reader>,
}

fn is_sold_somewhere(sold: Sold) -> Result<Sold, String> {
    match sold.regions.is_some() || sold.region.is_some() {
        true => Ok(sold),
        false => Err("`regions` or `region` has to say where it is sold".to_owned()),
    }
}

/// GPUs of one machine, all alike.
#[derive(Debug, Clone, Decode)]
pub struct Gpus {
    /// How many; none where there is no number.
    pub count: Reader,
    /// The model, such as `H100`; where the table of GPUs has it in other letters, it is called so.
    pub name: Reader,
    /// The memory of one of them; that of the table of GPUs when unset.
    pub memory: Option<Reader>,
    /// In what the memory is told.
    #[decode(default = SizeUnit::GiB)]
    pub memory_unit: SizeUnit,
    /// Who makes it, such as `nvidia`; as the table of GPUs has it when unset.
    pub vendor: Option<Reader>,
}

/// A value that is looked up before a machine is asked for: `found.NAME`.
#[derive(Debug, Clone, Decode)]
pub struct Lookup {
    /// The name of the value.
    #[decode(pattern = "^[a-z][a-z0-9_]*$")]
    pub name: String,
    /// It is only looked up where this is so.
    pub when: Option<Reader>,
    /// Where values are looked up; asked once for each machine.
    #[decode(flatten)]
    pub list: List,
    /// Which entries are meant; all when unset.
    #[decode(rename = "where")]
    pub filter: Option<Reader>,
    /// The value, of the first such entry (`item`) or of all of them (`items`).
    pub value: Reader,
    /// What is said where there is none.
    pub missing: Option<Template>,
}

/// How machines are made, looked at and removed.
#[derive(Debug, Clone, Decode)]
#[decode(after = machine_fits)]
pub struct MachineRules {
    /// Longest name of a machine, which carries its marks.
    #[decode(default = 60, check = holds_marks)]
    pub name_length: i64,
    /// Values that are looked up before a machine is asked for.
    #[decode(default)]
    pub before: Vec<Lookup>,
    /// How a public key is registered with the account, where machines are made with such.
    pub ssh_key: Option<SshKey>,
    /// What machines do at their first start: `user_data`.
    #[decode(default)]
    pub user_data: UserData,
    /// The request that makes a machine.
    pub make: Make,
    /// The lists of all machines.
    #[decode(min_len = 1)]
    pub lists: Vec<List>,
    /// The lists of machines with one `name`, where there are such; otherwise `lists` are searched.
    #[decode(default)]
    pub find: Vec<List>,
    /// The request that shows one machine, of an `id`; otherwise `lists` are searched.
    pub show: Option<Show>,
    /// The request that removes a machine, of an `id`.
    pub remove: Remove,
    /// What is read of a machine.
    pub read: MachineReaders,
    /// The states of a machine: others than these count as `starting`.
    pub states: States,
    /// The user that can log in.
    pub user: Template,
    /// How long the vendor may take to list what it has made, and to know it.
    #[decode(default = Seconds(60), check = is_soon)]
    pub listed_within: Seconds,
    /// How long a machine may take until it runs.
    #[decode(default = Seconds(600), check = is_patient)]
    pub start_within: Seconds,
    /// Pause before it is looked whether a machine runs.
    #[decode(default = Seconds(10), check = is_pause)]
    pub start_interval: Seconds,
    /// Pause before it is looked whether a machine is gone.
    #[decode(default = Seconds(5), check = is_pause)]
    pub end_interval: Seconds,
}

fn holds_marks(length: i64) -> Result<i64, String> {
    let shortest = i64::try_from(Marks::SHORTEST_NAME).unwrap_or(i64::MAX);
    match (shortest..=255).contains(&length) {
        true => Ok(length),
        false => Err(format!(
            "names have {shortest} characters at least, and 255 at most"
        )),
    }
}

fn is_soon(time: Seconds) -> Result<Seconds, String> {
    bounded(time, 1, 600)
}

fn is_patient(time: Seconds) -> Result<Seconds, String> {
    bounded(time, 60, 6 * 3600)
}

fn is_pause(time: Seconds) -> Result<Seconds, String> {
    bounded(time, 1, 300)
}

fn bounded(time: Seconds, least: i64, most: i64) -> Result<Seconds, String> {
    match (least..=most).contains(&time.0) {
        true => Ok(time),
        false => Err(format!("it has to be from {least} s to {most} s")),
    }
}

fn machine_fits(machine: MachineRules) -> Result<MachineRules, String> {
    let has_pages = machine.lists.iter().any(|list| list.pages.is_some());
    if machine.show.is_none() && has_pages {
        return Err(
            "`show` is needed where lists have pages: a machine may be missing from them for a moment"
                .to_owned(),
        );
    }
    Ok(machine)
}

/// How a public key is registered.
#[derive(Debug, Clone, Decode)]
pub struct SshKey {
    /// The list of keys of the account.
    pub list: List,
    /// The key of an entry, as a line of `authorized_keys`.
    pub key: Reader,
    /// By what machines are made with it: `ssh_key`.
    pub id: Reader,
    /// The request that adds `key` under `key_name`.
    pub add: Request,
}

/// What machines do at their first start, for cloud-init: `user_data`, which `{{ user_data | base64 }}` sends in Base64.
#[derive(Debug, Clone, Default, Decode)]
pub struct UserData {
    /// Packages of Debian or Ubuntu that are installed, in this order; what is empty when it is filled in is left out.
    #[decode(default)]
    pub install: Vec<Template>,
    /// Shell commands that are run as root before; what is empty when it is filled in is left out.
    #[decode(default)]
    pub commands: Vec<Template>,
    /// The whole configuration of cloud-init instead, in which `keys` and `keep_gpus` are at hand.
    pub cloud_config: Option<JsonTemplate>,
}

/// The request that makes a machine.
#[derive(Debug, Clone, Decode)]
pub struct Make {
    /// Makes one machine, and is never sent again by itself.
    #[decode(flatten)]
    pub request: Request,
    /// The id of the machine in the answer.
    pub id: Reader,
    /// Pause from one such request to the next, in seconds.
    #[decode(default = 0.0, ge = 0.0, le = 60.0)]
    pub interval: f64,
    /// What refusals mean, the first that fits; others mean what their HTTP status says.
    #[decode(default)]
    pub errors: Vec<Rule>,
}

/// The request that shows one machine.
#[derive(Debug, Clone, Decode)]
pub struct Show {
    /// Asks for the machine of `id`.
    #[decode(flatten)]
    pub request: Request,
    /// Where the machine is in the answer; a list has it as its first.
    #[decode(default)]
    pub item: Reader,
    /// By what the vendor says that it does not have the machine.
    pub missing: Missing,
}

/// The request that removes a machine.
#[derive(Debug, Clone, Decode)]
pub struct Remove {
    /// Ends the machine of `id`; asked again until it is gone.
    #[decode(flatten)]
    pub request: Request,
    /// By what the vendor says that it does not have the machine; as `show` says when unset.
    pub missing: Option<Missing>,
    /// What refusals mean.
    #[decode(default)]
    pub errors: Vec<Rule>,
}

/// A pattern (regular expression).
#[derive(Debug, Clone)]
pub struct Pattern(pub(crate) Regex);

impl Decode for Pattern {
    fn decode(value: &Json, cx: &mut Cx) -> Option<Self> {
        let text = String::decode(value, cx)?;
        match Regex::new(&text) {
            Ok(pattern) => Some(Self(pattern)),
            Err(error) => cx.value_error(format!("it is no regular expression: {error}"), value),
        }
    }
}

impl Schema for Pattern {
    fn schema(_: &mut Schemas) -> Json {
        json!({"type": "string", "format": "regex"})
    }
}

/// By what the vendor itself, and no proxy before it, says that something does not exist.
#[derive(Debug, Clone, Decode)]
#[decode(after = is_of_the_vendor)]
pub struct Missing {
    /// HTTP statuses.
    #[decode(default = vec![404])]
    pub status: Vec<i64>,
    /// What has to be in the answer.
    pub at: Option<Reader>,
    /// What it says there, or anywhere in the answer.
    pub says: Option<Pattern>,
}

fn is_of_the_vendor(missing: Missing) -> Result<Missing, String> {
    match missing.at.is_some() || missing.says.is_some() {
        true => Ok(missing),
        false => Err("`at` or `says` is needed: the status alone may be that of a proxy".to_owned()),
    }
}

string_enum! {
    /// What a refusal means.
    pub enum Meaning {
        /// Nothing of this kind is free now.
        NoCapacity = "no-capacity",
        /// The account may not have more of it.
        NoQuota = "no-quota",
        /// The credentials are wrong.
        Credentials = "credentials",
        /// It is refused, and would be again.
        Refused = "refused",
        /// Too many requests.
        RateLimited = "rate-limited",
        /// Something else uses it.
        InUse = "in-use",
        /// Nobody knows whether it was done.
        Unclear = "unclear",
    }
}

/// What a refusal means.
#[derive(Debug, Clone, Decode)]
pub struct Rule {
    /// HTTP statuses; any when empty.
    #[decode(default)]
    pub status: Vec<i64>,
    /// What has to be in the answer.
    pub at: Option<Reader>,
    /// What it says there, or anywhere in the answer.
    pub says: Option<Pattern>,
    /// What it means.
    pub is: Meaning,
    /// What the vendor says of it, for people; the whole answer when unset.
    pub message: Option<Reader>,
}

/// What is read of a machine.
#[derive(Debug, Clone, Decode)]
pub struct MachineReaders {
    /// Its id.
    pub id: Reader,
    /// Its name, as it was asked for: any field that carries it.
    pub name: Reader,
    /// Its state.
    pub state: Reader,
    /// The address at which it is reached.
    pub address: Reader,
    /// The port of its SSH server; 22 when unset.
    pub port: Option<Reader>,
    /// Its address in a private network.
    pub internal_ip: Option<Reader>,
    /// Its region.
    pub region: Option<Reader>,
    /// What it costs an hour, in dollars.
    pub price: Option<Reader>,
    /// When it was made (RFC 3339).
    pub made_at: Option<Reader>,
    /// Why it failed.
    pub reason: Option<Reader>,
}

/// States of a machine, as the vendor calls them.
#[derive(Debug, Clone, Decode)]
pub struct States {
    /// It will run.
    #[decode(default)]
    pub starting: Vec<String>,
    /// It runs.
    #[decode(min_len = 1)]
    pub running: Vec<String>,
    /// The vendor is removing it.
    #[decode(default)]
    pub ending: Vec<String>,
    /// It is gone, and only listed for a while.
    #[decode(default)]
    pub ended: Vec<String>,
    /// It will not run (again), and is still there.
    #[decode(default)]
    pub failed: Vec<String>,
}

/// What machines can do.
#[derive(Debug, Clone, Decode)]
pub struct Abilities {
    /// Containers may have all rights on them.
    #[decode(default = true)]
    pub privileged: bool,
    /// Their folders may be volumes.
    #[decode(default = true)]
    pub instance_volumes: bool,
    /// Several of them reach each other at their `internal_ip`.
    #[decode(default)]
    pub multinode: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            privileged: true,
            instance_volumes: true,
            multinode: false,
        }
    }
}
