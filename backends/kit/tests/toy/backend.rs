//! The backend for the toy cloud, as one is to be written, with at most one mistake planted in it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{CloudKind, Env, Kind, Made, compute_error, configure_error, look_by_place};
use dstack_compute::config::CudoConfig;
use dstack_compute::{
    Backend, BackendKind, Call, Capabilities, ComputeError, ConfigureError, Known, LISTED_WITHIN, Lifecycle,
    Machine, MachineRequest, Marks, Owned, OwnedKind, OwnedMark, Removal, Sign, Step,
};
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, Requirements};
use http::{HeaderName, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::vendor::REGIONS;

/// A mistake of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    /// There is none.
    Nothing,
    /// The machine is looked for and asked for, but not noted first.
    NotNoted,
    /// After a lost answer, nothing is looked for.
    NoFind,
    /// What is not listed at once is taken for not made.
    LagIgnored,
    /// A disk's token is that of the row, the same in each attempt.
    SameToken,
    /// What is over is taken for what was asked for.
    OverIsFound,
    /// Any error is the cloud's refusal: the call has made nothing.
    AllIsDefinite,
    /// It is ready before it has an address.
    ReadyTooSoon,
    /// A call waits until the machine runs.
    Waits,
    /// What is to end is gone.
    GoneAtOnce,
    /// What cannot be removed is gone.
    ErrorIsGone,
    /// The disk stays.
    DiskStays,
    /// That nothing is free is told as a cloud that does not answer.
    SoldOutIsUnclear,
    /// A machine that has failed is well.
    LossUnseen,
    /// A machine of which the cloud does not tell is lost.
    AwayIsLost,
    /// An error shows the key.
    KeyInErrors,
    /// The backend shows the key.
    KeyInDebug,
    /// A cloud that is away refuses the key.
    AwayIsWrongKey,
    /// The inventory is of one region.
    OneRegion,
    /// The inventory is the first page.
    OnePage,
    /// The inventory has no disks without a machine.
    NoHalfMade,
    /// The inventory is what the cloud tells, however little.
    PartOfInventory,
    /// Another installation's machine for the same row is taken.
    KeyAlone,
    /// It is taken where something is looked for that is to be removed.
    KeyAloneInRemoval,
    /// What the cloud does not know yet is gone.
    NewIsGone,
    /// What is in a region that is away is well.
    AwayIsWell,
    /// A region that is away hides the others.
    OneAwayAllAway,
    /// Orphans that are disks are not removed.
    OrphanDisksStay,
}

/// The kind of backends for the toy cloud, with a mistake.
///
/// Its configurations are those of Cudo, for which there is no backend.
pub(crate) fn kind(env: Env, planted: Planted) -> Arc<dyn BackendKind> {
    Kind::of(ToyKind { env, planted })
}

#[derive(Debug)]
struct ToyKind {
    env: Env,
    planted: Planted,
}

impl ToyKind {
    fn client(&self, config: &CudoConfig) -> Result<ApiClient, String> {
        let client = self
            .env
            .api(BackendType::Cudo, "https://toy.invalid", ApiLimits::default())?;
        let key = config.creds.api_key.expose();
        let client = client.with_secret_header(HeaderName::from_static("x-api-key"), key);
        client.map_err(|_| "the API key has characters that no key has".to_owned())
    }
}

#[async_trait]
impl CloudKind for ToyKind {
    type Config = CudoConfig;

    fn capabilities() -> Capabilities {
        Capabilities {
            create_instance: true,
            ..Capabilities::default()
        }
    }

    async fn check(&self, config: CudoConfig) -> Result<CudoConfig, ConfigureError> {
        let client = self.client(&config).map_err(ConfigureError::Invalid)?;
        let field: &[&str] = &["creds", "api_key"];
        match client.get("account").send::<Value>().await {
            Ok(_) => Ok(config),
            Err(error) if self.planted == Planted::AwayIsWrongKey => Err(ConfigureError::Credentials {
                fields: vec![field.iter().map(|part| (*part).to_owned()).collect()],
                details: Some(error.to_string()),
            }),
            Err(error)
                if self.planted == Planted::KeyInErrors
                    && error.status() != Some(StatusCode::UNAUTHORIZED) =>
            {
                Err(ConfigureError::Invalid(format!(
                    "{error} to {}",
                    config.creds.api_key.expose()
                )))
            }
            Err(error) => Err(configure_error(&error, &[field])),
        }
    }

    fn open(kind: Kind<Self>, config: CudoConfig) -> Result<Arc<dyn Backend>, String> {
        let client = kind.client(&config)?;
        let shown = match kind.planted {
            Planted::KeyInDebug => config.creds.api_key.expose().to_owned(),
            _ => String::new(),
        };
        Ok(Arc::new(Toy { client, shown, kind }))
    }
}

#[derive(Debug)]
struct Toy {
    kind: Kind<ToyKind>,
    client: ApiClient,
    /// What is shown of it besides.
    #[allow(dead_code, reason = "shown by Debug")]
    shown: String,
}

/// A machine or a disk.
#[derive(Debug, Deserialize)]
struct Thing {
    id: String,
    name: String,
    tags: Value,
    state: String,
    address: Option<String>,
}

impl Thing {
    fn mark(&self) -> Option<OwnedMark> {
        OwnedMark::of_tags(|name| self.tags[name].as_str())
    }
}

/// Pause before the machine or disk is looked at again.
const AGAIN: Duration = Duration::from_secs(5);

const NAME_LENGTH: usize = 50;

#[async_trait]
impl Lifecycle<Machine> for Toy {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let token = match self.planted() {
            Planted::SameToken => want.marks.key.to_string(),
            _ => {
                call.make_once("token", async || Ok(self.kind.env.random.uuid().to_string()))
                    .await?
            }
        };
        let disk = json!({"token": token});
        let make = async || Ok(Made::now(self.make("disks", want, disk).await?, call));
        let disk: Made = call.make_once("disk", make).await?;
        let machine = json!({"disk": disk.id});
        let ask = async || {
            Ok(Made::now(
                self.make("machines", want, machine.clone()).await?,
                call,
            ))
        };
        let find = async || match self.planted() {
            Planted::NoFind => Ok(None),
            _ => {
                let found = self.find("machines", &want.offer.region, &want.marks).await?;
                Ok(found.map(|id| Made::now(id, call)))
            }
        };
        let made: Made = match self.planted() {
            Planted::NotNoted => match find().await? {
                Some(made) => made,
                None => ask().await?,
            },
            Planted::LagIgnored => call.make("machine", Duration::ZERO, ask, find).await?,
            _ => call.make("machine", LISTED_WITHIN, ask, find).await?,
        };
        let starts = |doing: &str| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again: AGAIN,
        };
        let id = made.id.clone();
        let Some(mut thing) = self.thing("machines", &id).await? else {
            return match made.is_new(call) {
                true => Ok(starts("the machine is listed")),
                false => Err(ComputeError::Broken("there is no such machine".to_owned())),
            };
        };
        while self.planted() == Planted::Waits && thing.state == "starting" {
            tokio::time::sleep(AGAIN).await;
            thing = self.thing("machines", &id).await?.unwrap_or(thing);
        }
        match (thing.state.as_str(), thing.address) {
            ("running", address @ Some(_)) => Ok(Step::Ready(place(&want.offer, id, address))),
            ("starting", _) if self.planted() == Planted::ReadyTooSoon => {
                Ok(Step::Ready(place(&want.offer, id, None)))
            }
            ("starting", _) => Ok(starts("the machine starts")),
            (state, _) => Err(ComputeError::Broken(format!("the machine is {state}"))),
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let region = |known: &Known<Machine>| known.place.as_ref().map(|_| known.site.clone());
        let signs = look_by_place(known, region, |region, known| self.signs_in(region, known)).await?;
        match self.planted() == Planted::OneAwayAllAway && signs.contains(&None) {
            true => Err(ComputeError::Unclear("a region is away".to_owned())),
            false => Ok(signs),
        }
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let place = known.place.as_ref();
        let place = place.map(|place| Made::long_ago(place.instance_id.clone()));
        let find = || self.find_to_remove("machines", known, call);
        let end = |made| self.unmake("machines", made, call);
        let removal = call.unmake("machine", place, LISTED_WITHIN, find, end).await?;
        match (removal, self.planted()) {
            (_, Planted::DiskStays) => return Ok(removal),
            (Removal::Gone, _) => {}
            (_, Planted::GoneAtOnce) => return Ok(Removal::Gone),
            _ => return Ok(removal),
        }
        let find = || self.find_to_remove("disks", known, call);
        let end = |made| self.unmake("disks", made, call);
        call.unmake("disk", None, LISTED_WITHIN, find, end).await
    }
}

impl Toy {
    fn planted(&self) -> Planted {
        self.kind.planted
    }

    fn error(&self, error: &ApiError) -> ComputeError {
        match compute_error(error) {
            ComputeError::Unclear(text) if self.planted() == Planted::AllIsDefinite => {
                ComputeError::Refused(text)
            }
            other => other,
        }
    }

    async fn make(&self, kind: &str, want: &MachineRequest, more: Value) -> Result<String, ComputeError> {
        let tags: serde_json::Map<String, Value> = want
            .marks
            .tags()
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.into()))
            .collect();
        let mut asked =
            json!({"name": want.marks.name(NAME_LENGTH), "region": &*want.offer.region, "tags": tags});
        asked
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let made = self.client.post(kind).json(&asked).send::<Thing>().await;
        made.map(|thing| thing.id).map_err(|error| match error.status() {
            Some(StatusCode::CONFLICT) if self.planted() == Planted::SoldOutIsUnclear => {
                ComputeError::Unclear(error.to_string())
            }
            Some(StatusCode::CONFLICT) => ComputeError::NoCapacity(error.to_string()),
            _ => self.error(&error),
        })
    }

    async fn thing(&self, kind: &str, id: &str) -> Result<Option<Thing>, ComputeError> {
        match self.client.get(&format!("{kind}/{id}")).send().await {
            Ok(thing) => Ok(Some(thing)),
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// How the machines of a region are.
    async fn signs_in(
        &self,
        region: String,
        known: Vec<&Known<Machine>>,
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let listed = match (self.list("machines", &region).await, self.planted()) {
            (Err(_), Planted::AwayIsLost) => Vec::new(),
            (Err(_), Planted::AwayIsWell) => return Ok(known.iter().map(|_| Sign::Well).collect()),
            (listed, _) => listed?,
        };
        let sign = |known: &Known<Machine>| {
            let id = known.place.as_ref().map(|place| place.instance_id.as_str());
            match listed.iter().find(|thing| Some(thing.id.as_str()) == id) {
                Some(_) if self.planted() == Planted::LossUnseen => Sign::Well,
                Some(thing) if thing.state == "running" => Sign::Well,
                Some(thing) => Sign::Lost(format!("the machine is {}", thing.state)),
                None => Sign::Lost("there is no such machine".to_owned()),
            }
        };
        Ok(known.into_iter().map(sign).collect())
    }

    /// All of a region, also what is over.
    async fn list(&self, kind: &str, region: &str) -> Result<Vec<Thing>, ComputeError> {
        #[derive(Deserialize)]
        struct Page {
            things: Vec<Thing>,
            next: Option<usize>,
        }
        let (mut all, mut page) = (Vec::new(), 0);
        loop {
            let ask = self
                .client
                .get(kind)
                .query("region", region)
                .query("page", &page.to_string());
            let told: Page = ask.send().await.map_err(|error| self.error(&error))?;
            all.extend(told.things);
            match told.next {
                Some(next) if self.planted() != Planted::OnePage => page = next,
                _ => return Ok(all),
            }
        }
    }

    async fn find(&self, kind: &str, region: &str, marks: &Marks) -> Result<Option<String>, ComputeError> {
        self.find_by(kind, region, marks, self.planted() == Planted::KeyAlone)
            .await
    }

    async fn find_to_remove(
        &self,
        kind: &str,
        known: &Known<Machine>,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        let key_alone = matches!(self.planted(), Planted::KeyAlone | Planted::KeyAloneInRemoval);
        let found = self.find_by(kind, &known.site, &known.marks, key_alone).await?;
        Ok(found.map(|id| Made::now(id, call)))
    }

    async fn find_by(
        &self,
        kind: &str,
        region: &str,
        marks: &Marks,
        key_alone: bool,
    ) -> Result<Option<String>, ComputeError> {
        let is_marked = |thing: &Thing| match key_alone {
            true => thing.tags["dstack_key"] == *marks.key.to_string(),
            false => thing.mark().is_some_and(|mark| mark.is_for(marks)),
        };
        let is_there = |thing: &Thing| thing.state != "over" || self.planted() == Planted::OverIsFound;
        let all = self.list(kind, region).await?;
        let mut found = all.into_iter().filter(is_there);
        Ok(found.find(is_marked).map(|thing| thing.id))
    }

    /// Removes what is noted.
    async fn unmake(&self, kind: &str, made: Made, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let told = self.end(kind, &made.id).await?;
        Ok(match self.planted() {
            Planted::NewIsGone => told,
            _ => made.removal(call, told, AGAIN),
        })
    }

    async fn end(&self, kind: &str, id: &str) -> Result<Removal, ComputeError> {
        let told = self.client.delete(&format!("{kind}/{id}")).send::<Thing>().await;
        match told {
            Ok(thing) if thing.state == "over" => Ok(Removal::Gone),
            Ok(_) => Ok(Removal::Underway { again: AGAIN }),
            Err(_) if self.planted() == Planted::ErrorIsGone => Ok(Removal::Gone),
            Err(error) => match error.status() {
                Some(StatusCode::NOT_FOUND) => Ok(Removal::Gone),
                Some(StatusCode::CONFLICT) => Err(ComputeError::InUse(error.to_string())),
                _ => Err(self.error(&error)),
            },
        }
    }
}

#[async_trait]
impl Backend for Toy {
    fn backend_kind(&self) -> &dyn BackendKind {
        &self.kind
    }

    async fn offers(&self, _: &Requirements) -> Result<Vec<Offer>, ComputeError> {
        #[derive(Deserialize)]
        struct Account {
            regions: Vec<String>,
            free: bool,
        }
        let account = self.client.get("account").send::<Account>().await;
        let account = account.map_err(|error| self.error(&error))?;
        let availability = if account.free {
            "available"
        } else {
            "not_available"
        };
        let offer = |region: &String| {
            let resources = json!({"cpus": 2, "memory_mib": 4096, "gpus": [], "spot": false});
            let instance = json!({"name": "small", "resources": resources});
            let offer = json!({"backend": "cudo", "instance": instance, "region": region, "price": 0.1,
                "availability": availability});
            decode_strict(&offer).unwrap()
        };
        Ok(account.regions.iter().map(offer).collect())
    }

    fn machines(&self) -> Option<&dyn Lifecycle<Machine>> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        let regions = if self.planted() == Planted::OneRegion {
            &REGIONS[..1]
        } else {
            &REGIONS[..]
        };
        let mut owned = Vec::new();
        for region in regions {
            let mut of_region = Vec::new();
            for (kind, what) in [
                ("machines", OwnedKind::Machine),
                ("disks", OwnedKind::Piece("disk")),
            ] {
                let all = match self.list(kind, region).await {
                    Err(_) if self.planted() == Planted::PartOfInventory => Vec::new(),
                    all => all?,
                };
                let there = all.into_iter().filter(|thing| thing.state != "over");
                of_region.extend(there.filter_map(|thing| {
                    Some(Owned {
                        kind: what.clone(),
                        mark: thing.mark()?,
                        id: thing.id,
                        name: thing.name,
                        region: (*region).to_owned(),
                        price: None,
                        made_at: None,
                    })
                }));
            }
            if self.planted() == Planted::NoHalfMade {
                let marks: Vec<OwnedMark> = of_region
                    .iter()
                    .filter(|one| one.kind == OwnedKind::Machine)
                    .map(|one| one.mark)
                    .collect();
                of_region.retain(|one| marks.contains(&one.mark));
            }
            owned.extend(of_region);
        }
        Ok(owned)
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match owned.kind {
            OwnedKind::Machine => self.end("machines", &owned.id).await,
            _ if self.planted() == Planted::OrphanDisksStay => Ok(Removal::Gone),
            _ => self.end("disks", &owned.id).await,
        }
    }
}

fn place(offer: &Offer, id: String, address: Option<String>) -> JobProvisioningData {
    JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: id,
        hostname: address,
        internal_ip: None,
        public_ip_enabled: true,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: offer.price,
        username: "root".to_owned(),
        ssh_port: Some(22),
        dockerized: true,
        ssh_proxy: None,
        backend_data: None,
        gpu_driver: None,
    }
}
