//! How the replicas of a service are replaced by those of a new deployment. Not part of dstack 0.22.5's configurations.

use std::fmt;

use dstack_units::Seconds;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::ServiceConfiguration;
use crate::decode::{Cx, Refusal};
use crate::schema::{Schema, Schemas};
use crate::{Decode, string_enum};

string_enum! {
    /// How replicas are replaced.
    literal pub enum RolloutStrategy {
        /// One after another.
        Rolling = "rolling",
        /// A few new ones get a share of the requests and are watched before the others follow.
        Canary = "canary",
        /// All new ones beside all old ones; then all requests go to the new ones at once.
        BlueGreen = "blue_green",
    }
}

string_enum! {
    /// When requests go to the new replicas of `blue_green`.
    literal pub enum RolloutSwitch {
        /// As soon as all of them are ready.
        Auto = "auto",
        /// When told to.
        Manual = "manual",
    }
}

/// How the replicas of a service are replaced by those of a new deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
#[decode(after = check)]
pub struct RolloutSpec {
    /// `rolling` (the default), `canary` or `blue_green`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RolloutStrategy>,
    /// Canary: the number of new replicas of each group while they are watched. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(ge = 1)]
    pub replicas: Option<i64>,
    /// Canary: the share of requests that go to the new replicas while they are watched. Defaults to `10%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Percent>,
    /// Canary: how long the new replicas are watched before the others follow. Defaults to `10m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(check = not_negative)]
    pub duration: Option<Seconds>,
    /// Canary: more failed answers of the new replicas than this, and they are rolled back. Unset: any number may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_error_rate: Option<Percent>,
    /// Canary: if more than 5% of the answers of the new replicas take longer than this to begin, they are rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(check = is_some_time)]
    pub max_latency: Option<Latency>,
    /// Canary: the number of answers of the new replicas before they are judged. Defaults to 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(ge = 0)]
    pub min_requests: Option<i64>,
    /// Requests with this header go to the new replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<RolloutHeader>,
    /// Blue/green: whether requests go to the new replicas as soon as all are ready (`auto`, the default), or when told to (`manual`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<RolloutSwitch>,
    /// Blue/green: how long the old replicas stay after the switch. Defaults to `10m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(check = not_negative)]
    pub keep: Option<Seconds>,
}

impl RolloutSpec {
    /// The strategy, the default if unset.
    pub fn effective_strategy(&self) -> RolloutStrategy {
        self.strategy.unwrap_or(RolloutStrategy::Rolling)
    }

    /// New replicas of a group while they are watched.
    pub fn effective_replicas(&self) -> i64 {
        self.replicas.unwrap_or(1)
    }

    /// The share of requests that go to new replicas while they are watched.
    pub fn effective_share(&self) -> Percent {
        self.share.unwrap_or(Percent::of(10))
    }

    /// How long new replicas are watched.
    pub fn effective_duration(&self) -> Seconds {
        self.duration.unwrap_or(Seconds(600))
    }

    /// Answers of new replicas before they are judged.
    pub fn effective_min_requests(&self) -> u64 {
        u64::try_from(self.min_requests.unwrap_or(20)).unwrap_or(0)
    }

    /// How long old replicas stay after the switch.
    pub fn effective_keep(&self) -> Seconds {
        self.keep.unwrap_or(Seconds(600))
    }

    /// Whether the new replicas are judged by their answers.
    pub const fn has_bounds(&self) -> bool {
        self.max_error_rate.is_some() || self.max_latency.is_some()
    }
}

/// A header that picks the new replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct RolloutHeader {
    /// The name of the HTTP header.
    #[decode(pattern = "^[a-zA-Z0-9-_]+$", max_len = 256)]
    pub name: String,
    /// The value of the HTTP header.
    #[decode(pattern = "^[!-~]([ -~]*[!-~])?$", max_len = 2048)]
    pub value: String,
}

/// A percentage between 0% and 100%, in hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u16);

impl Percent {
    /// All of it.
    pub const ALL: Self = Self(10_000);
    /// Nothing of it.
    pub const NONE: Self = Self(0);

    /// Whole percents, 100 at most.
    pub fn of(percents: u8) -> Self {
        Self(u16::from(percents.min(100)) * 100)
    }

    /// Of ten thousand, so many.
    pub const fn of_ten_thousand(self) -> u16 {
        self.0
    }

    /// Of one.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }

    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 2 {
            return None;
        }
        let part: u32 = format!("{part:0<2}").parse().ok()?;
        let hundredths = whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part)?;
        u16::try_from(hundredths)
            .ok()
            .map(Self)
            .filter(|percent| *percent <= Self::ALL)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part.is_multiple_of(10) => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Decode for Percent {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        match value.as_str().and_then(Self::parse) {
            Some(percent) => Some(percent),
            None => cx.value_error("Give a percentage between `0%` and `100%`, such as `10%`", value),
        }
    }
}

impl Schema for Percent {
    fn schema(_: &mut Schemas) -> Value {
        json!({"type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,2})? *%$"})
    }
}

/// How long answers take is told apart up to here only, in milliseconds.
const MAX_LATENCY: u64 = 300_000;

/// How long an answer may take to begin, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency(u64);

impl Latency {
    /// So many milliseconds.
    pub const fn of_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// In seconds.
    #[allow(clippy::cast_precision_loss)] // far fewer than 2^52
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i64::try_from(self.0 / 1000) {
            Ok(seconds) if self.0.is_multiple_of(1000) => write!(f, "{}", Seconds(seconds)),
            _ => write!(f, "{}ms", self.0),
        }
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Decode for Latency {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let millis = value.as_str().and_then(|text| text.strip_suffix("ms"));
        if let Some(millis) = millis.and_then(|millis| millis.trim_end().parse().ok()) {
            return Some(Self(millis));
        }
        let seconds = Seconds::decode(value, cx)?;
        let millis = u64::try_from(seconds.0)
            .ok()
            .and_then(|seconds| seconds.checked_mul(1000));
        match millis {
            Some(millis) => Some(Self(millis)),
            None => cx.value_error("The duration must not be negative", value),
        }
    }
}

impl Schema for Latency {
    fn schema(schemas: &mut Schemas) -> Value {
        let accepted = Seconds::schema(schemas);
        schemas.either(accepted, json!({"type": "string"}))
    }
}

fn not_negative(duration: Option<Seconds>) -> Result<Option<Seconds>, String> {
    match duration {
        Some(Seconds(..0)) => Err("The duration must not be negative".to_owned()),
        duration => Ok(duration),
    }
}

fn is_some_time(latency: Option<Latency>) -> Result<Option<Latency>, String> {
    match latency {
        Some(Latency(0)) => Err("The duration must be longer than nothing".to_owned()),
        Some(Latency(MAX_LATENCY..)) => Err("The duration must be shorter than 5 minutes".to_owned()),
        latency => Ok(latency),
    }
}

/// Fields that mean nothing with the strategy are refused.
fn check(rollout: RolloutSpec) -> Result<RolloutSpec, Refusal> {
    use RolloutStrategy::{BlueGreen, Canary, Rolling};
    let given: [(&'static str, bool, &[RolloutStrategy]); 9] = [
        ("replicas", rollout.replicas.is_some(), &[Canary]),
        ("share", rollout.share.is_some(), &[Canary]),
        ("duration", rollout.duration.is_some(), &[Canary]),
        ("max_error_rate", rollout.max_error_rate.is_some(), &[Canary]),
        ("max_latency", rollout.max_latency.is_some(), &[Canary]),
        ("min_requests", rollout.min_requests.is_some(), &[Canary]),
        ("header", rollout.header.is_some(), &[Canary, BlueGreen]),
        ("switch", rollout.switch.is_some(), &[BlueGreen]),
        ("keep", rollout.keep.is_some(), &[BlueGreen]),
    ];
    let strategy = rollout.effective_strategy();
    for (key, is_given, strategies) in given {
        if is_given && !strategies.contains(&strategy) {
            let meant: Vec<String> = strategies
                .iter()
                .map(|one| format!("`strategy: {one}`"))
                .collect();
            let text = format!("`{key}` means something with {} only", meant.join(" or "));
            return Err(refusal(key, text));
        }
    }
    if strategy != Rolling && rollout.share == Some(Percent::NONE) && rollout.header.is_none() {
        let text =
            "With `share: 0%` no request goes to the new replicas: set `header`, or a share".to_owned();
        return Err(refusal("share", text));
    }
    if rollout.min_requests.is_some() && !rollout.has_bounds() {
        let text = "`min_requests` means something with `max_error_rate` or `max_latency` only".to_owned();
        return Err(refusal("min_requests", text));
    }
    Ok(rollout)
}

/// The rules between a service and its roll-out.
pub(super) fn check_with_service(service: &ServiceConfiguration) -> Result<(), Refusal> {
    let Some(rollout) = &service.rollout else {
        return Ok(());
    };
    let strategy = rollout.effective_strategy();
    let groups = service.replica_groups();
    if strategy != RolloutStrategy::Rolling && groups.iter().any(|group| group.router.is_some()) {
        let text = format!(
            "`strategy: {strategy}` cannot be used with a router: that alone decides which replicas get requests. Use \
             `strategy: rolling`"
        );
        return Err(refusal("rollout", text));
    }
    let most = groups.iter().filter_map(|group| group.replicas.max).max();
    match (rollout.replicas, most) {
        (Some(replicas), Some(most)) if replicas > most => Err(refusal(
            "rollout",
            format!("`rollout.replicas` is {replicas}, and no group has more than {most} replicas"),
        )),
        _ => Ok(()),
    }
}

const fn refusal(key: &'static str, text: String) -> Refusal {
    Refusal { text, at: Some(key) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode_strict;

    fn service(rollout: &Value) -> Result<ServiceConfiguration, String> {
        let all =
            json!({"type": "service", "port": 80, "commands": ["a"], "replicas": 3, "rollout": rollout});
        decode_strict(&all).map_err(|problems| crate::decode::problem::summary(&problems))
    }

    #[test]
    fn what_is_unset_is_left_out() {
        let plain: ServiceConfiguration =
            decode_strict(&json!({"type": "service", "port": 80, "commands": ["a"]})).unwrap();
        assert!(serde_json::to_value(&plain).unwrap().get("rollout").is_none());
        let canary = service(&json!({"strategy": "canary", "share": "2.5 %"})).unwrap();
        assert_eq!(
            serde_json::to_value(&canary).unwrap()["rollout"],
            json!({"strategy": "canary", "share": "2.5%"})
        );
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let rollout = RolloutSpec::default();
        assert_eq!(rollout.effective_strategy(), RolloutStrategy::Rolling);
        assert_eq!(rollout.effective_share().to_string(), "10%");
        assert_eq!(
            (rollout.effective_replicas(), rollout.effective_min_requests()),
            (1, 20)
        );
        assert_eq!(
            (rollout.effective_duration(), rollout.effective_keep()),
            (Seconds(600), Seconds(600))
        );
    }

    #[test]
    fn percentages_and_latencies_are_read_and_written_alike() {
        for (text, hundredths) in [
            ("0%", 0),
            ("5%", 500),
            ("12.5%", 1250),
            ("0.01%", 1),
            ("100%", 10_000),
        ] {
            let percent = Percent::parse(text).unwrap();
            assert_eq!(
                (percent.of_ten_thousand(), percent.to_string().as_str()),
                (hundredths, text)
            );
        }
        for text in [
            "",
            "%",
            "5",
            "-1%",
            "100.01%",
            "1.234%",
            "1.%",
            "x%",
            "99999999999%",
        ] {
            assert_eq!(Percent::parse(text), None, "{text}");
        }
        for (given, shown) in [
            (json!("500ms"), "500ms"),
            (json!(2), "2s"),
            (json!("2000ms"), "2s"),
            (json!("1m"), "1m"),
        ] {
            let latency: Latency = decode_strict(&given).unwrap();
            assert_eq!(latency.to_string(), shown);
        }
    }

    #[test]
    fn what_means_nothing_is_refused_where_it_stands() {
        for (rollout, said) in [
            (
                json!({"share": "10%"}),
                "rollout.share: `share` means something with `strategy: canary` only",
            ),
            (
                json!({"strategy": "blue_green", "max_latency": "1s"}),
                "rollout.max_latency: `max_latency` means",
            ),
            (
                json!({"strategy": "canary", "keep": "1m"}),
                "rollout.keep: `keep` means something with `strategy: blue_green` only",
            ),
            (
                json!({"strategy": "rolling", "header": {"name": "x", "value": "1"}}),
                "rollout.header: `header` means something with `strategy: canary` or `strategy: blue_green` only",
            ),
            (
                json!({"strategy": "canary", "share": "0%"}),
                "rollout.share: With `share: 0%`",
            ),
            (
                json!({"strategy": "canary", "share": 10}),
                "rollout.share: Give a percentage",
            ),
            (
                json!({"strategy": "canary", "min_requests": 5}),
                "rollout.min_requests: `min_requests` means",
            ),
            (json!({"strategy": "canary", "replicas": 0}), "rollout.replicas: "),
            (
                json!({"strategy": "canary", "duration": -1}),
                "rollout.duration: The duration must not",
            ),
            (
                json!({"strategy": "canary", "max_latency": "0s", "share": "1%"}),
                "rollout.max_latency: The duration must be longer",
            ),
            (json!({"strategy": "green"}), "rollout.strategy: "),
            (
                json!({"strategy": "canary", "max_latency": "5m"}),
                "rollout.max_latency: The duration must be shorter",
            ),
            (
                json!({"strategy": "canary", "header": {"name": "x", "value": "é"}}),
                "rollout.header.value: ",
            ),
            (
                json!({"strategy": "canary", "header": {"name": "x", "value": "a\nb"}}),
                "rollout.header.value: ",
            ),
            (
                json!({"strategy": "canary", "header": {"name": "x", "value": " a"}}),
                "rollout.header.value: ",
            ),
            (
                json!({"strategy": "canary", "replicas": 4}),
                "rollout: `rollout.replicas` is 4",
            ),
        ] {
            let refused = service(&rollout).unwrap_err();
            assert!(refused.starts_with(said), "{rollout}: {refused}");
        }
    }

    #[test]
    fn a_service_with_a_router_has_no_shares() {
        let groups = json!([
            {"name": "r", "replicas": 1, "commands": ["a"], "router": {"type": "smg"}},
            {"name": "w", "replicas": 1, "commands": ["b"]},
        ]);
        let all = json!({"type": "service", "port": 80, "groups": groups, "rollout": {"strategy": "canary"}});
        let refused = decode_strict::<ServiceConfiguration>(&all).unwrap_err();
        assert!(
            refused[0]
                .to_string()
                .starts_with("rollout: `strategy: canary` cannot be used with a router")
        );
    }
}
