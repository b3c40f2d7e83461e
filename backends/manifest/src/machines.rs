use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{KEEP_GPUS, Made, apt_install, cloud_config, listed_signs, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, Lifecycle, Machine, MachineRequest, Owned, OwnedKind, OwnedMark, Removal,
    Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::{AcceleratorVendor, Time};
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use crate::backend::Machines;
use crate::client::{Failure, of_manifest};
use crate::errors::{is_missing, refusal};
use crate::manifest::{List, States, UserData};
use crate::template::{Item, JsonTemplate, Scope};

/// What is noted of a machine.
const MACHINE: &str = "machine";

const SSH_PORT: i64 = 22;

/// How a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Running,
    /// The vendor is removing it, and may bill it still.
    Ending,
    /// Gone, and only listed.
    Ended,
    /// Not to be used, and still there.
    Failed,
}

impl State {
    fn of(text: &str, states: &States) -> Self {
        let is_in = |texts: &[String]| texts.iter().any(|one| one == text);
        match () {
            () if is_in(&states.running) => Self::Running,
            () if is_in(&states.ending) => Self::Ending,
            () if is_in(&states.ended) => Self::Ended,
            () if is_in(&states.failed) => Self::Failed,
            // Those that nobody has written down as well.
            () => Self::Starting,
        }
    }
}

/// A machine, as far as it is read.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    id: String,
    name: String,
    state: State,
    reason: Option<String>,
    json: Json,
}

#[async_trait]
impl Lifecycle<Machine> for Machines {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = self.name_of(&want.marks);
        let made: Made = call
            .make(
                MACHINE,
                self.listed_within(),
                async || Ok(Made::now(self.make(want, &name).await?, call)),
                || self.find(&name, call),
            )
            .await?;
        let underway = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: self.rules().start_interval.to_duration(),
        };
        let Some(machine) = self.machine(&made.id).await? else {
            return match made.is_new_within(self.listed_within(), call) {
                true => Ok(underway("the machine is listed".to_owned())),
                false => Err(ComputeError::Broken(self.gone())),
            };
        };
        if let Some(end) = self.end_of(&machine) {
            return Err(ComputeError::Broken(end));
        }
        if machine.state != State::Running {
            return Ok(underway("the machine starts".to_owned()));
        }
        match self.place(&want.offer, &machine)? {
            Some(place) => Ok(Step::Ready(place)),
            None => {
                let address = &self.rules().read.address;
                Ok(underway(format!(
                    "the machine has an address, of which {address} finds nothing"
                )))
            }
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let all = self.all_machines().await?;
        let (placed, at): (Vec<&Known<Machine>>, Vec<usize>) = known
            .iter()
            .enumerate()
            .filter(|(_, known)| known.place.is_some())
            .map(|(at, known)| (known, at))
            .unzip();
        let told = listed_signs(
            placed,
            |known| all.iter().find(|machine| machine.id == id_of(known)).cloned(),
            |known| self.machine(id_of(known)),
            |_, machine| match machine {
                None => Sign::Lost(self.gone()),
                Some(machine) => self.end_of(&machine).map_or(Sign::Well, Sign::Lost),
            },
        )
        .await;
        let mut signs = vec![None; known.len()];
        for (at, sign) in at.into_iter().zip(told) {
            if let Some(place) = signs.get_mut(at) {
                *place = sign;
            }
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = self.name_of(&known.marks);
        let place = known.place.as_ref();
        let machine = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let (within, again) = (self.listed_within(), self.rules().end_interval.to_duration());
        let find = || self.find(&name, call);
        let delete = async |machine: Made| {
            let told = self.terminate_all(&machine.id, &name).await?;
            Ok(machine.removal_within(within, call, told, again))
        };
        call.unmake(MACHINE, machine, within, find, delete).await
    }
}

impl Machines {
    /// The id of the machine that was made.
    async fn make(&self, want: &MachineRequest, name: &str) -> Result<String, ComputeError> {
        let rules = &self.rules().make;
        let scope = self.request_scope(want, name).await.map_err(not_asked)?;
        self.wait_for_making().await?;
        let answer = self.client.send_now(&rules.request, &scope).await;
        let answer = answer.map_err(|failure| match failure {
            Failure::NotAsked(text) => of_manifest(&text),
            Failure::Api(error) => refusal(&error, &rules.errors),
        });
        if matches!(answer, Err(ComputeError::Refused(_))) {
            // Somebody may have removed the key.
            self.keys.lock().await.clear();
        }
        // It says that it made something: that is looked for.
        let answer = answer?;
        let id = rules.id.text(&Item::new(&answer, &scope));
        id.ok_or_else(|| self.unread("a machine that was made", "machine.make.id", &rules.id))
    }

    /// Until it is the turn of a request that makes a machine. Who asks before the next one may be sent comes again later.
    async fn wait_for_making(&self) -> Result<(), ComputeError> {
        let interval = Duration::from_secs_f64(self.rules().make.interval);
        if interval.is_zero() {
            self.client.wait_for_turn().await;
            return Ok(());
        }
        let not_yet = |after: Duration| ComputeError::Throttled {
            after,
            details: format!(
                "{} makes one machine in {} s",
                self.title(),
                interval.as_secs_f64()
            ),
        };
        // Another one that waits to be sent has the next turn.
        let mut next = self.next_making.try_lock().map_err(|_| not_yet(interval))?;
        let wait = next.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Err(not_yet(wait));
        }
        self.client.wait_for_turn().await;
        *next = Instant::now() + interval;
        Ok(())
    }

    /// All that is at hand when a machine is asked for.
    async fn request_scope(&self, want: &MachineRequest, name: &str) -> Result<Scope, ComputeError> {
        let key = want.authorized_keys.first().map_or("", String::as_str);
        let marks = &want.marks;
        let scope = self
            .scope
            .with("name", name)
            .with(
                "mark",
                json!({"installation": marks.installation.to_string(), "key": marks.key.to_string()}),
            )
            .with("region", &*want.offer.region)
            .with("type", &want.offer.instance.name)
            .with("offer", offer_json(&want.offer))
            .with("keys", &want.authorized_keys)
            .with("key", key)
            .with("project", &want.owner.project)
            .with("user", &want.owner.user)
            .with("tags", &want.owner.tags);
        let scope = self.look_up(&scope).await?;
        let scope = match &self.rules().ssh_key {
            None => scope,
            Some(_) if key.is_empty() => {
                let text = format!("{} makes no machine without a public key", self.title());
                return Err(ComputeError::Refused(text));
            }
            Some(rules) => scope.with("ssh_key", self.known_key(rules, key).await?),
        };
        let user_data = user_data(&self.rules().user_data, &scope, &want.authorized_keys);
        Ok(scope.with("user_data", user_data.map_err(|text| of_manifest(&text))?))
    }

    /// One of this name that the vendor is not removing.
    async fn find(&self, name: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let named = self.named(name).await?;
        let found = named.into_iter().find(|machine| machine.state != State::Ending);
        Ok(found.map(|machine| Made::now(machine.id, call)))
    }

    /// All of this name that are there.
    async fn named(&self, name: &str) -> Result<Vec<Seen>, ComputeError> {
        let scope = self.scope.with("name", name);
        let rules = self.rules();
        let lists = if rules.find.is_empty() {
            &rules.lists
        } else {
            &rules.find
        };
        let has_pages = lists.iter().any(|list| list.pages.is_some());
        // What moves from one page to another while they are asked for is on none of them.
        let times = if has_pages { 2 } else { 1 };
        let mut named = Vec::new();
        for _ in 0..times {
            named = self.machines_of(lists, &scope).await?;
            named.retain(|machine| machine.name == name && machine.state != State::Ended);
            if !named.is_empty() {
                break;
            }
        }
        Ok(named)
    }

    async fn all_machines(&self) -> Result<Vec<Seen>, ComputeError> {
        self.machines_of(&self.rules().lists, &self.scope).await
    }

    async fn machines_of(&self, lists: &[List], scope: &Scope) -> Result<Vec<Seen>, ComputeError> {
        let mut all = Vec::new();
        for list in lists {
            let entries = self.client.list(list, scope).await?;
            for entry in entries {
                all.push(self.seen(entry)?);
            }
        }
        Ok(all)
    }

    /// `None`: the vendor says that it does not have it.
    async fn machine(&self, id: &str) -> Result<Option<Seen>, ComputeError> {
        let Some(show) = &self.rules().show else {
            let all = self.all_machines().await?;
            return Ok(all.into_iter().find(|machine| machine.id == id));
        };
        let scope = self.scope.with("id", id);
        let answer = match self.client.send(&show.request, &scope).await {
            Err(Failure::Api(error)) if is_missing(&error, &show.missing) => return Ok(None),
            answer => answer?,
        };
        let found = show.item.find(&Item::new(&answer, &scope));
        let entries = match found {
            Some(Json::Array(entries)) => entries,
            other => other.into_iter().collect(),
        };
        if entries.is_empty() {
            return Err(self.unread("a machine", "machine.show.item", &show.item));
        }
        let seen: Vec<Seen> = entries
            .into_iter()
            .map(|entry| self.seen(entry))
            .collect::<Result<_, _>>()?;
        match seen.into_iter().find(|machine| machine.id == id) {
            Some(machine) => Ok(Some(machine)),
            None => {
                let reader = &self.rules().read.id;
                let text = format!(
                    "machine.show was asked for {id}, and {reader} (machine.read.id) finds another id in its answer"
                );
                Err(self.odd(text))
            }
        }
    }

    fn seen(&self, json: Json) -> Result<Seen, ComputeError> {
        let readers = &self.rules().read;
        let item = Item::new(&json, &self.scope);
        let id = readers.id.text(&item);
        let id = id.ok_or_else(|| self.unread("a machine", "machine.read.id", &readers.id))?;
        let state = readers.state.text(&item);
        let state = state.ok_or_else(|| self.unread("a machine", "machine.read.state", &readers.state))?;
        Ok(Seen {
            id,
            name: readers.name.text(&item).unwrap_or_default(),
            state: State::of(&state, &self.rules().states),
            reason: readers.reason.as_ref().and_then(|reader| reader.text(&item)),
            json,
        })
    }

    /// Why a machine will never work (again).
    fn end_of(&self, machine: &Seen) -> Option<String> {
        let title = self.title();
        match (machine.state, &machine.reason) {
            (State::Failed, Some(reason)) => {
                Some(format!("{title} says that the machine has failed: {reason}"))
            }
            (State::Failed, None) => Some(format!("{title} says that the machine has failed")),
            (State::Ending | State::Ended, _) => Some(format!("{title} has ended the machine")),
            (State::Starting | State::Running, _) => None,
        }
    }

    fn gone(&self) -> String {
        format!("{} does not have the machine any more", self.title())
    }

    /// `None`: it has no address yet.
    fn place(
        &self,
        offer: &InstanceOfferWithAvailability,
        machine: &Seen,
    ) -> Result<Option<JobProvisioningData>, ComputeError> {
        let readers = &self.rules().read;
        let item = Item::new(&machine.json, &self.scope).with("offer", offer_json(offer));
        let Some(address) = readers.address.text(&item) else {
            return Ok(None);
        };
        let port = match &readers.port {
            None => SSH_PORT,
            Some(reader) => match reader.text(&item).and_then(|port| port.parse::<u16>().ok()) {
                Some(port) if port > 0 => i64::from(port),
                _ => return Ok(None),
            },
        };
        let user = self
            .rules()
            .user
            .text(item.scope())
            .map_err(|text| of_manifest(&text))?;
        let internal_ip = readers.internal_ip.as_ref().and_then(|reader| reader.text(&item));
        if internal_ip.is_none() && self.manifest().capabilities.multinode {
            return Ok(None);
        }
        Ok(Some(JobProvisioningData {
            internal_ip,
            ..machine_place(offer, machine.id.clone(), address, &user, port)
        }))
    }

    /// As [`Machines::terminate`], of whatever else is there under the name as well: the id that was noted may not be that of the machine,
    /// where the manifest reads another one.
    async fn terminate_all(&self, id: &str, name: &str) -> Result<Removal, ComputeError> {
        let told = self.terminate(id).await;
        if matches!(
            told,
            Ok(Removal::Underway { .. }) | Err(ComputeError::Throttled { .. })
        ) {
            return told;
        }
        let mut others = self.named(name).await?;
        others.retain(|machine| machine.id != id);
        for other in &others {
            self.terminate(&other.id).await?;
        }
        match others.is_empty() {
            true => told,
            false => Ok(Removal::Underway {
                again: self.rules().end_interval.to_duration(),
            }),
        }
    }

    /// Gone when it is not there any more, or only listed.
    pub(crate) async fn terminate(&self, id: &str) -> Result<Removal, ComputeError> {
        let rules = self.rules();
        let underway = Removal::Underway {
            again: rules.end_interval.to_duration(),
        };
        let machine = match self.machine(id).await {
            Err(error) if !matches!(error, ComputeError::Throttled { .. }) => {
                // It is to go, also where nobody understands how it is. Gone it is only when the vendor says so.
                self.ask_to_remove(id).await?;
                return Err(error);
            }
            machine => machine?,
        };
        match machine.map(|machine| machine.state) {
            None | Some(State::Ended) => Ok(Removal::Gone),
            Some(State::Ending) => Ok(underway),
            Some(State::Starting | State::Running | State::Failed) => {
                self.ask_to_remove(id).await?;
                Ok(underway)
            }
        }
    }

    async fn ask_to_remove(&self, id: &str) -> Result<(), ComputeError> {
        let rules = self.rules();
        let missing = rules.remove.missing.as_ref();
        let missing = missing.or_else(|| rules.show.as_ref().map(|show| &show.missing));
        let scope = self.scope.with("id", id);
        match self
            .client
            .send_for_any_answer(&rules.remove.request, &scope)
            .await
        {
            Ok(()) => Ok(()),
            Err(Failure::Api(error)) if missing.is_some_and(|missing| is_missing(&error, missing)) => Ok(()),
            Err(Failure::Api(error)) => Err(refusal(&error, &rules.remove.errors)),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let all = self.all_machines().await?;
        let there = all.into_iter().filter(|machine| machine.state != State::Ended);
        Ok(there.filter_map(|machine| self.owned(machine)).collect())
    }

    /// `None`: it has no marks.
    fn owned(&self, machine: Seen) -> Option<Owned> {
        let readers = &self.rules().read;
        let item = Item::new(&machine.json, &self.scope);
        let region = readers.region.as_ref().and_then(|reader| reader.text(&item));
        let made_at = readers.made_at.as_ref().and_then(|reader| reader.text(&item));
        Some(Owned {
            kind: OwnedKind::Machine,
            mark: OwnedMark::of_name(&machine.name)?,
            region: region.unwrap_or_default(),
            price: readers.price.as_ref().and_then(|reader| reader.number(&item)),
            made_at: made_at.and_then(|text| text.parse::<Time>().ok()),
            id: machine.id,
            name: machine.name,
        })
    }

    fn name_of(&self, marks: &dstack_compute::Marks) -> String {
        marks.name(usize::try_from(self.rules().name_length).unwrap_or_default())
    }

    fn listed_within(&self) -> Duration {
        self.rules().listed_within.to_duration()
    }
}

/// What templates know of an offer.
fn offer_json(offer: &InstanceOfferWithAvailability) -> Json {
    let resources = &offer.instance.resources;
    let gib = |mib: i64| mib / 1024;
    let first = resources.gpus.first();
    json!({
        "type": offer.instance.name,
        "region": &*offer.region,
        "price": offer.price,
        "spot": resources.spot,
        "cpus": resources.cpus,
        "memory_gib": gib(resources.memory_mib),
        "disk_gib": gib(resources.disk.size_mib),
        "gpu": {
            "count": resources.gpus.len(),
            "name": first.map(|gpu| &gpu.name),
            "memory_gib": first.map(|gpu| gib(gpu.memory_mib)),
            "vendor": first.and_then(|gpu| gpu.vendor).map(AcceleratorVendor::as_str),
        },
        "data": &*offer.backend_data,
    })
}

/// What cloud-init does at the first start.
fn user_data(rules: &UserData, scope: &Scope, keys: &[String]) -> Result<String, String> {
    if let Some(config) = &rules.cloud_config {
        return whole_config(config, scope);
    }
    let mut commands = filled(&rules.commands, scope)?;
    let packages = filled(&rules.install, scope)?;
    commands.extend(packages.iter().map(|package| apt_install(package)));
    Ok(cloud_config(keys, &commands))
}

fn whole_config(config: &JsonTemplate, scope: &Scope) -> Result<String, String> {
    let json = config.json(&scope.with("keep_gpus", KEEP_GPUS))?;
    Ok(format!("#cloud-config\n{json}\n"))
}

/// Those that are not empty.
fn filled(templates: &[crate::Template], scope: &Scope) -> Result<Vec<String>, String> {
    let texts = templates.iter().map(|template| template.text(scope));
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    Ok(texts.into_iter().filter(|text| !text.trim().is_empty()).collect())
}

/// Empty: it has no place.
fn id_of(known: &Known<Machine>) -> &str {
    known.place.as_ref().map_or("", |place| &place.instance_id)
}
