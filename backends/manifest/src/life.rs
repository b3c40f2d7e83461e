//! One machine from its making to its removal, step by step, for whoever writes a manifest.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend::Env;
use dstack_compute::config::BackendConfig;
use dstack_compute::{
    Backend, BackendKind, Call, ComputeError, ConfigureError, Journal, Known, Lifecycle, Machine,
    MachineRequest, Marks, Owned, OwnedKind, Owner, Removal, Sign, Step,
};
use dstack_decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::kind::{config_of, kind};
use crate::manifest::Manifest;

/// A key that no vendor has given to anybody.
const WRONG_KEY: &str = "wrong-0123456789abcdef";

/// Pause before a call that failed for a while is made again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time until a machine is gone.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30 * 60);

/// What a step has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub step: &'static str,
    /// What is so, or what is wrong.
    pub result: Result<String, String>,
}

/// Which machine is made.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Of this type; the first that is free when unset.
    pub instance_type: Option<String>,
    /// In this region; any when unset.
    pub region: Option<String>,
}

/// Makes a machine as a manifest says, looks at it and removes it; `tell` gets each step when it is over. Ends what it made whatever
/// happens, also when somebody wants it to stop (`stop` returns once for each time); who wants that twice does not wait until
/// it is gone, and is told what to look for. Returns whether everything is as it has to be.
pub async fn check_life(
    env: &Env,
    manifest: &Manifest,
    fields: &[(String, String)],
    choice: &Choice,
    mut stop: impl AsyncFnMut(),
    tell: &mut dyn FnMut(&Finding),
) -> bool {
    let mut report = Report { tell, is_right: true };
    let Some((backend, offer)) = prepare(env, manifest, fields, choice, &mut report).await else {
        return false;
    };
    let Some(machines) = backend.machines() else {
        return report.wrong("machines", "the backend makes none");
    };
    let life = Life {
        env,
        manifest,
        backend: &*backend,
        machines,
        want: request(env, offer),
        notes: Notes::default(),
    };
    let place = Mutex::new(None);
    let mut times = 2;
    tokio::select! {
        () = life.be_made(&place, &mut report) => {}
        () = stop() => {
            times = 1;
            report.wrong("interrupted", "what was made is removed; who does not want to wait for that interrupts once more");
        }
    }
    let place = place.into_inner().unwrap_or_else(PoisonError::into_inner);
    let stopped = async {
        for _ in 0..times {
            stop().await;
        }
    };
    tokio::select! {
        biased;
        () = life.be_removed(place, &mut report) => {}
        () = stopped => {
            report.wrong("removal interrupted", life.to_be_removed("it may not be gone yet"));
        }
    }
    report.is_right
}

/// What is told, and whether all of it is right.
struct Report<'a> {
    tell: &'a mut dyn FnMut(&Finding),
    is_right: bool,
}

impl Report<'_> {
    /// Whether it is right.
    fn add(&mut self, step: &'static str, result: Result<String, String>) -> bool {
        let is_right = result.is_ok();
        self.is_right &= is_right;
        (self.tell)(&Finding { step, result });
        is_right
    }

    fn right(&mut self, step: &'static str, text: impl Into<String>) -> bool {
        self.add(step, Ok(text.into()))
    }

    fn wrong(&mut self, step: &'static str, text: impl Into<String>) -> bool {
        self.add(step, Err(text.into()))
    }
}

/// All that has to be so before a machine is made.
async fn prepare(
    env: &Env,
    manifest: &Manifest,
    fields: &[(String, String)],
    choice: &Choice,
    report: &mut Report<'_>,
) -> Option<(Arc<dyn Backend>, InstanceOfferWithAvailability)> {
    let kind = match kind(env.clone(), manifest.clone()) {
        Ok(kind) => kind,
        Err(error) => {
            report.wrong("type", error.to_string());
            return None;
        }
    };
    let refused = wrong_fields(manifest, fields);
    match configure(&*kind, manifest, &refused).await {
        Err(ConfigureError::Credentials { fields, .. }) => {
            let paths: Vec<String> = fields.iter().map(|path| path.join(".")).collect();
            report.right("wrong credentials", format!("refused, at {}", paths.join(", ")))
        }
        Err(ConfigureError::Invalid(text)) => report.wrong("wrong credentials", text),
        Ok(_) => report.wrong(
            "wrong credentials",
            "they are taken: `check` has no request that needs them",
        ),
    };
    let opened = match configure(&*kind, manifest, fields).await {
        Ok(stored) => kind.open(&stored).map_err(|error| error.to_string()),
        Err(ConfigureError::Credentials { fields, details }) => {
            let paths: Vec<String> = fields.iter().map(|path| path.join(".")).collect();
            Err(format!("{}: {}", paths.join(", "), details.unwrap_or_default()))
        }
        Err(ConfigureError::Invalid(text)) => Err(text),
    };
    let backend = match opened {
        Ok(backend) => backend,
        Err(text) => {
            report.wrong("credentials", text);
            return None;
        }
    };
    report.right("credentials", "taken");
    let offer = match chosen_offer(&*backend, choice).await {
        Ok((count, offer)) => {
            let text = format!(
                "{count}; {} in {} at ${} an hour is made",
                offer.instance.name, offer.region, offer.price
            );
            report.right("offers", text);
            offer
        }
        Err(text) => {
            report.wrong("offers", text);
            return None;
        }
    };
    Some((backend, offer))
}

/// The fields with credentials that nobody has.
fn wrong_fields(manifest: &Manifest, fields: &[(String, String)]) -> Vec<(String, String)> {
    let is_secret = |name: &str| manifest.fields.get(name).is_some_and(|field| field.secret);
    let wrong = |(name, value): &(String, String)| match is_secret(name) {
        true => (name.clone(), WRONG_KEY.to_owned()),
        false => (name.clone(), value.clone()),
    };
    fields.iter().map(wrong).collect()
}

async fn configure(
    kind: &dyn BackendKind,
    manifest: &Manifest,
    fields: &[(String, String)],
) -> Result<dstack_compute::config::SplitConfig, ConfigureError> {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let config = BackendConfig::read(&config_of(manifest, fields)).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        ConfigureError::Invalid(texts.join("; "))
    })?;
    kind.configure("check", &config).await
}

/// How many offers there are, and the first that is wanted and free.
async fn chosen_offer(
    backend: &dyn Backend,
    choice: &Choice,
) -> Result<(usize, InstanceOfferWithAvailability), String> {
    let any = json!({"resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB..", "gpu": "0.."}});
    let any: Requirements =
        decode_strict(&any).map_err(|_| "requirements of nothing are refused".to_owned())?;
    let offers = backend.offers(&any).await.map_err(|error| error.to_string())?;
    let count = offers.len();
    let is_wanted = |offer: &InstanceOfferWithAvailability| {
        let is_type = choice
            .instance_type
            .as_ref()
            .is_none_or(|name| *name == offer.instance.name);
        let is_there = choice
            .region
            .as_ref()
            .is_none_or(|region| **region == *offer.region);
        is_type && is_there && offer.availability != InstanceAvailability::NotAvailable
    };
    let found = offers.into_iter().find(is_wanted);
    found
        .map(|offer| (count, offer))
        .ok_or_else(|| format!("of {count} offers, none is free that is asked for"))
}

/// A machine that is asked for under marks of nobody, with a public key of nobody.
fn request(env: &Env, offer: InstanceOfferWithAvailability) -> MachineRequest {
    let id = || env.random.uuid();
    MachineRequest {
        marks: Marks {
            installation: id().into(),
            key: env.random.ordered_uuid(env.clock.now()),
            name: "check".to_owned(),
            project: id().into(),
        },
        owner: Owner {
            project: "check".to_owned(),
            ..Owner::default()
        },
        reservation: None,
        offer,
        authorized_keys: vec![public_key(env)],
        placement_group: None,
    }
}

/// The line of a public key to which nobody has the private one.
fn public_key(env: &Env) -> String {
    const KIND: &[u8] = b"ssh-ed25519";
    let key: [u8; 32] = env.random.bytes();
    let blob = [&[0, 0, 0, 11][..], KIND, &[0, 0, 0, 32], &key].concat();
    format!("ssh-ed25519 {} dstack-check", STANDARD.encode(blob))
}

/// What the calls have noted.
#[derive(Debug, Default)]
struct Notes(Mutex<Json>);

impl Notes {
    fn kept(&self) -> Json {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn call(&self, env: &Env) -> Result<Call<'_>, ComputeError> {
        Call::new(Arc::clone(&env.clock), self, &self.kept())
    }
}

#[async_trait]
impl Journal for Notes {
    async fn keep(&self, notes: &Json) -> Result<(), String> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = notes.clone();
        Ok(())
    }
}

/// Takes what is noted, and says that it cannot be kept: nothing is asked for then.
#[derive(Debug, Default)]
struct Refusing(Notes);

#[async_trait]
impl Journal for Refusing {
    async fn keep(&self, notes: &Json) -> Result<(), String> {
        self.0.keep(notes).await?;
        Err("nothing is to be asked for".to_owned())
    }
}

/// How the making of a machine goes.
#[derive(Debug, Default)]
struct Way {
    /// What is waited for.
    doing: String,
    /// The first call that failed for a while.
    trouble: Option<String>,
}

/// The machine that is made.
struct Life<'a> {
    env: &'a Env,
    manifest: &'a Manifest,
    backend: &'a dyn Backend,
    machines: &'a dyn Lifecycle<Machine>,
    want: MachineRequest,
    notes: Notes,
}

impl Life<'_> {
    fn known(&self, place: Option<JobProvisioningData>) -> Known<Machine> {
        Known {
            marks: self.want.marks.clone(),
            site: self.want.offer.region.to_string(),
            place,
        }
    }

    /// Made, found by its marks, and looked at.
    async fn be_made(&self, made: &Mutex<Option<JobProvisioningData>>, report: &mut Report<'_>) {
        let limit = self.manifest.machine.start_within.to_duration();
        let mut way = Way::default();
        let place = match timeout(limit, self.until_ready(&mut way)).await {
            Ok(Ok(place)) => place,
            Ok(Err(text)) => {
                report.wrong("make", text);
                return;
            }
            Err(_) => {
                let text = format!(
                    "after {} s it is still waited until {}",
                    limit.as_secs(),
                    way.doing
                );
                report.wrong("make", text);
                return;
            }
        };
        *made.lock().unwrap_or_else(PoisonError::into_inner) = Some(place.clone());
        let (user, port) = (&place.username, place.ssh_port.unwrap_or_default());
        let host = place.hostname.as_deref().unwrap_or_default();
        let ready = format!("{} is ready at {user}@{host}:{port}", place.instance_id);
        match way.trouble {
            None => report.right("make", ready),
            Some(trouble) => report.wrong("make", format!("{ready}, but on the way: {trouble}")),
        };
        report.add("found by its marks", self.find_by_marks(&place.instance_id).await);
        report.add(
            "found after a lost answer",
            self.find_again(&place.instance_id).await,
        );
        self.look_at(place, report).await;
    }

    async fn find_by_marks(&self, id: &str) -> Result<String, String> {
        let found = self.marked().await.map_err(|error| error.to_string())?;
        let ids: Vec<&str> = found.iter().map(|owned| owned.id.as_str()).collect();
        match ids.as_slice() {
            [] => Err(format!(
                "no list has it: {} (machine.read.name) has to be the `{{{{ name }}}}` that it was made with",
                self.manifest.machine.read.name
            )),
            [one] if *one == id => Ok("once, by the same id".to_owned()),
            ids => Err(format!("{} instead of {id}", ids.join(", "))),
        }
    }

    /// Makes it once more from notes that say that it was asked for, and not what came of it: it has to be found, and is not asked for.
    async fn find_again(&self, id: &str) -> Result<String, String> {
        let notes = self.lost_answer().await.map_err(|error| error.to_string())?;
        let mut doing = String::new();
        let find = async {
            loop {
                let call = notes.call(self.env).map_err(|error| error.to_string())?;
                let pause = match self.machines.ensure(&self.want, &call).await {
                    Ok(Step::Ready(place)) if place.instance_id == id => {
                        return Ok("it is, by the same id".to_owned());
                    }
                    Ok(Step::Ready(place)) => return Err(format!("{} instead of {id}", place.instance_id)),
                    Ok(Step::Underway {
                        doing: now, again, ..
                    }) => {
                        doing = now;
                        again
                    }
                    Err(ComputeError::Throttled { after, details }) => {
                        doing = details;
                        after
                    }
                    Err(error) if error.is_transient() || matches!(error, ComputeError::Unclear(_)) => {
                        doing = error.to_string();
                        RETRY_INTERVAL
                    }
                    Err(error) => return Err(error.to_string()),
                };
                tokio::time::sleep(pause).await;
            }
        };
        // It is asked for again only when a call's whole time has passed besides.
        match timeout(self.manifest.machine.listed_within.to_duration(), find).await {
            Ok(found) => found,
            Err(_) => Err(format!(
                "it would be made a second time, as machine.find (or machine.lists) and {} (machine.read.name) \
                 do not find it by its `{{{{ name }}}}`: {doing}",
                self.manifest.machine.read.name
            )),
        }
    }

    /// What is noted when the machine was asked for a moment ago, and nobody knows what came of it.
    async fn lost_answer(&self) -> Result<Notes, ComputeError> {
        let refusing = Refusing::default();
        let call = Call::new(Arc::clone(&self.env.clock), &refusing, &Json::Null)?;
        match self.machines.ensure(&self.want, &call).await {
            Err(ComputeError::NotWritten(_)) | Ok(_) => Ok(refusing.0),
            Err(error) => Err(error),
        }
    }

    async fn until_ready(&self, way: &mut Way) -> Result<JobProvisioningData, String> {
        loop {
            let call = self.notes.call(self.env).map_err(|error| error.to_string())?;
            let pause = match self.machines.ensure(&self.want, &call).await {
                Ok(Step::Ready(place)) => return Ok(place),
                Ok(Step::Underway { doing, again, .. }) => {
                    way.doing = doing;
                    again
                }
                Err(ComputeError::Throttled { after, .. }) => after,
                Err(error) if error.is_transient() => {
                    way.doing = format!("this passes: {error}");
                    way.trouble.get_or_insert_with(|| error.to_string());
                    RETRY_INTERVAL
                }
                Err(error) => return Err(error.to_string()),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// All that carries the marks.
    async fn marked(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self.backend.inventory().await?;
        let own = all
            .into_iter()
            .filter(|owned| owned.kind == OwnedKind::Machine && owned.mark.is_for(&self.want.marks));
        Ok(own.collect())
    }

    async fn look_at(&self, place: JobProvisioningData, report: &mut Report<'_>) {
        match self.machines.look(&[self.known(Some(place))]).await.as_deref() {
            Ok([Some(Sign::Well | Sign::Moved(_))]) => report.right("look", "it is well"),
            Ok([Some(Sign::Ending { why, .. } | Sign::Lost(why))]) => report.wrong("look", why.clone()),
            Ok(_) => report.wrong("look", "it is not told how it is"),
            Err(error) => report.wrong("look", error.to_string()),
        };
    }

    /// Removed, removed again by what is known without notes, and gone from the lists.
    async fn be_removed(&self, place: Option<JobProvisioningData>, report: &mut Report<'_>) {
        let known = self.known(place);
        let no_notes = Notes::default();
        for (step, notes) in [("remove", &self.notes), ("remove again", &no_notes)] {
            let last = Mutex::new(String::new());
            match timeout(REMOVAL_LIMIT, self.until_gone(&known, notes, &last)).await {
                Ok(()) => report.right(step, "gone"),
                Err(_) => {
                    let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
                    report.wrong(step, self.to_be_removed(&last))
                }
            };
        }
        match self.marked().await {
            Ok(left) if left.is_empty() => report.right("inventory", "nothing is left"),
            Ok(left) => report.wrong("inventory", self.rest_is_removed(left).await),
            Err(error) => report.wrong("inventory", error.to_string()),
        };
    }

    /// What is left to whoever reads it, and why.
    fn to_be_removed(&self, reason: &str) -> String {
        let name = self.want.marks.name(usize::MAX);
        format!(
            "look for {name} at {} and remove it: {reason}",
            self.manifest.title
        )
    }

    /// Removes what is left by the ids of the lists; what became of it.
    async fn rest_is_removed(&self, left: Vec<Owned>) -> String {
        let ids: Vec<&str> = left.iter().map(|owned| owned.id.as_str()).collect();
        let ids = ids.join(", ");
        let last = Mutex::new(String::new());
        match timeout(REMOVAL_LIMIT, self.until_none_is_left(&last)).await {
            Ok(()) => format!("{ids} was left, and is removed now by the id of the list"),
            Err(_) => {
                let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
                format!("left: {ids}. Remove it at {}: {last}", self.manifest.title)
            }
        }
    }

    async fn until_none_is_left(&self, last: &Mutex<String>) {
        loop {
            match self.remove_left().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => *last.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string(),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Whether nothing was left.
    async fn remove_left(&self) -> Result<bool, ComputeError> {
        let left = self.marked().await?;
        for owned in &left {
            self.backend.remove_owned(owned).await?;
        }
        Ok(left.is_empty())
    }

    async fn until_gone(&self, known: &Known<Machine>, notes: &Notes, last: &Mutex<String>) {
        loop {
            let removed = match notes.call(self.env) {
                Ok(call) => self.machines.remove(known, &call).await,
                Err(error) => Err(error),
            };
            let pause = match removed {
                Ok(Removal::Gone) => return,
                Ok(Removal::Underway { again }) => again,
                Err(error) => {
                    *last.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
                    match error {
                        ComputeError::Throttled { after, .. } => after,
                        _ => RETRY_INTERVAL,
                    }
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}
