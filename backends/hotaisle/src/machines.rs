use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, look_by_place};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::runs::JobProvisioningData;
use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::HotAisle;
use crate::client::{Host, Kind};
use crate::naming::not_asked;
use crate::offers::{REGION, specs_of};

/// Longest description of a machine, which carries its marks.
const MARK_LENGTH: usize = 60;

/// The user that the images have.
const USER: &str = "hotaisle";

const SSH_PORT: i64 = 22;

/// Pause while a machine starts.
const START_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
const END_INTERVAL: Duration = Duration::from_secs(5);

/// Pause while another virtual machine is made.
const TURN_INTERVAL: Duration = Duration::from_secs(3);

/// What the place of a machine has besides, as dstack 0.22.5 writes and reads it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Data {
    ip_address: String,
    #[serde(default)]
    bare_metal: bool,
    /// The name of a server, of which `instance_id` is the reservation. Not in rows of dstack 0.22.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

impl Data {
    fn of(place: &JobProvisioningData) -> Self {
        let text = place.backend_data.as_deref().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }

    const fn kind(&self) -> Kind {
        match self.bare_metal {
            true => Kind::BareMetal,
            false => Kind::Virtual,
        }
    }
}

/// The piece under which a machine of this kind is noted.
const fn piece(kind: Kind) -> &'static str {
    match kind {
        Kind::Virtual => "machine",
        Kind::BareMetal => "server",
    }
}

#[async_trait]
impl Lifecycle<Machine> for HotAisle {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let mark = want.marks.name(MARK_LENGTH);
        let (kind, specs) = specs_of(&want.offer)?;
        let underway = |doing: &str, again: Duration| Step::Underway {
            seen: None,
            doing: doing.to_owned(),
            again,
        };
        let made: Made = match kind {
            Kind::Virtual => {
                let Some(_turn) = self.naming.turn() else {
                    return Ok(underway("another machine is made", TURN_INTERVAL));
                };
                let ask = async || {
                    self.register_key(want).await?;
                    self.make_virtual(specs, &mark, call, virtual_refusal).await
                };
                let find = || self.find_virtual(&mark, call);
                call.make(piece(kind), LISTED_WITHIN, ask, find).await
            }
            Kind::BareMetal => {
                let ask = async || {
                    self.register_key(want).await?;
                    let server = self.client.reserve(specs, &mark).await;
                    let server = server.map_err(|error| server_refusal(&error))?;
                    Ok(Made::now(id_of(&server).to_owned(), call))
                };
                call.make(piece(kind), LISTED_WITHIN, ask, || self.find_server(&mark, call))
                    .await
            }
        }
        // What was free is not any more.
        .inspect_err(|error| {
            if matches!(error, ComputeError::NoCapacity(_)) {
                self.rows.forget();
            }
        })?;
        let host = self.host(kind, &made.id).await?;
        let Some(host) = host.filter(|host| is_for(&host.description, &mark)) else {
            return match made.is_new(call) {
                true => Ok(underway("the machine is listed", START_INTERVAL)),
                false => Err(ComputeError::Broken(gone())),
            };
        };
        if host.description != mark && kind == Kind::Virtual {
            self.describe(&host.name, &mark).await?;
        }
        if has_failed(&host) {
            return Err(ComputeError::Broken(not_installed()));
        }
        Ok(match self.is_up(kind, &host).await? {
            true => Step::Ready(place(want, kind, made.id, host)),
            false => underway("the machine starts", START_INTERVAL),
        })
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let is_bare_metal = |known: &Known<Machine>| Some(Data::of(known.place.as_ref()?).bare_metal);
        look_by_place(known, is_bare_metal, |is_bare_metal, known| async move {
            match is_bare_metal {
                true => self.look_at_servers(&known).await,
                false => self.look_at_virtual(&known).await,
            }
        })
        .await
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let mark = known.marks.name(MARK_LENGTH);
        let noted = |kind: Kind| {
            let place = known
                .place
                .as_ref()
                .filter(|place| Data::of(place).kind() == kind);
            place.map(|place| Made::long_ago(place.instance_id.clone()))
        };
        let find = || self.find_server(&mark, call);
        let release = async |server: Made| {
            let told = self.release(&server.id).await?;
            Ok(server.removal(call, told, END_INTERVAL))
        };
        let server = noted(Kind::BareMetal);
        let removal = call
            .unmake(piece(Kind::BareMetal), server, LISTED_WITHIN, find, release)
            .await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        // Only what has to be looked for may be taken for another one.
        let turn = self.naming.turn();
        if turn.is_none() && call.asked_at(piece(Kind::Virtual)).is_some() {
            return Ok(Removal::Underway { again: TURN_INTERVAL });
        }
        let find = || self.find_virtual(&mark, call);
        let delete = async |machine: Made| {
            let told = self.delete_virtual(&machine.id, &mark).await?;
            Ok(machine.removal(call, told, END_INTERVAL))
        };
        let machine = noted(Kind::Virtual);
        call.unmake(piece(Kind::Virtual), machine, LISTED_WITHIN, find, delete)
            .await
    }
}

impl HotAisle {
    /// Machines take over the keys of the account's user when they are made. Only that of the project is added: keys of others could log
    /// in to all machines of the user.
    async fn register_key(&self, want: &MachineRequest) -> Result<(), ComputeError> {
        let key = want.authorized_keys.first().map_or("", String::as_str);
        let added = self.client.add_ssh_key(key).await;
        added.map_err(|error| not_asked(compute_error(&error)))
    }

    async fn hosts(&self, kind: Kind) -> Result<Vec<Host>, ComputeError> {
        let hosts = self.client.hosts(kind).await;
        hosts.map_err(|error| compute_error(&error))
    }

    async fn host(&self, kind: Kind, id: &str) -> Result<Option<Host>, ComputeError> {
        let host = self.client.host(kind, id).await;
        host.map_err(|error| compute_error(&error))
    }

    async fn find_server(&self, mark: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let servers = self.hosts(Kind::BareMetal).await?;
        let found = servers.iter().find(|server| server.description == mark);
        Ok(found.map(|server| Made::now(id_of(server).to_owned(), call)))
    }

    async fn is_up(&self, kind: Kind, host: &Host) -> Result<bool, ComputeError> {
        if kind == Kind::BareMetal {
            let status = host.os_status.as_ref();
            return Ok(status.is_some_and(|status| status.os_install_status == "installed"));
        }
        let state = self.client.state(&host.name).await;
        let state = state.map_err(|error| compute_error(&error))?;
        Ok(state.as_deref() == Some("running"))
    }

    async fn look_at_virtual(
        &self,
        known: &[&Known<Machine>],
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let hosts = self.hosts(Kind::Virtual).await?;
        let sign = |known: &&Known<Machine>| {
            let mark = known.marks.name(MARK_LENGTH);
            let id = known.place.as_ref().map(|place| place.instance_id.as_str());
            let is_it = |host: &Host| Some(host.name.as_str()) == id && is_for(&host.description, &mark);
            match hosts.iter().any(is_it) {
                true => Sign::Well,
                false => Sign::Lost(gone()),
            }
        };
        Ok(known.iter().map(sign).collect())
    }

    async fn look_at_servers(
        &self,
        known: &[&Known<Machine>],
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let mut signs = Vec::new();
        for known in known {
            let id = known
                .place
                .as_ref()
                .map_or("", |place| place.instance_id.as_str());
            signs.push(match self.host(Kind::BareMetal, id).await? {
                None => Sign::Lost(gone()),
                Some(server) if has_failed(&server) => Sign::Lost(not_installed()),
                Some(_) => Sign::Well,
            });
        }
        Ok(signs)
    }

    /// Names are given to others once a machine is gone: those are left alone.
    async fn delete_virtual(&self, name: &str, mark: &str) -> Result<Removal, ComputeError> {
        let host = self.host(Kind::Virtual, name).await?;
        if host.is_none_or(|host| !is_for(&host.description, mark)) {
            return Ok(Removal::Gone);
        }
        let deleted = self.client.delete_virtual(name).await;
        deleted.map_err(|error| compute_error(&error))?;
        self.forget_virtual(name);
        Ok(Removal::Gone)
    }

    async fn release(&self, id: &str) -> Result<Removal, ComputeError> {
        match self.client.release(id).await {
            Ok(()) => Ok(Removal::Gone),
            Err(error) if error.status() == Some(StatusCode::BAD_REQUEST) => {
                Err(ComputeError::InUse(format!(
                    "Hot Aisle releases the server when the time is over that it is paid for: {}",
                    error.body()
                )))
            }
            Err(error) => Err(compute_error(&error)),
        }
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let mut hosts = self.hosts(Kind::Virtual).await?;
        hosts.extend(self.hosts(Kind::BareMetal).await?);
        let owned = |host: Host| {
            Some(Owned {
                kind: OwnedKind::Machine,
                id: id_of(&host).to_owned(),
                mark: OwnedMark::of_name(&host.description)?,
                name: host.description,
                region: REGION.to_owned(),
                price: None,
                made_at: None,
            })
        };
        Ok(hosts.into_iter().filter_map(owned).collect())
    }

    pub(crate) async fn end_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match self.host(Kind::Virtual, &owned.id).await? {
            Some(_) => self.delete_virtual(&owned.id, &owned.name).await,
            None => self.release(&owned.id).await,
        }
    }
}

/// Whether it is the one at a place: the inventory knows servers by name.
pub(crate) fn is_at(owned: &Owned, place: &JobProvisioningData) -> bool {
    owned.id == place.instance_id || Data::of(place).server.as_ref() == Some(&owned.id)
}

/// By what it is asked for: of a server, the reservation, as the server goes to others afterwards.
fn id_of(host: &Host) -> &str {
    host.deployment_id.as_deref().unwrap_or(&host.name)
}

/// Whether a machine with this description may be that with these marks: those that are new have none yet, and those of dstack 0.22.5 never.
fn is_for(description: &str, mark: &str) -> bool {
    description == mark || OwnedMark::of_name(description).is_none()
}

fn has_failed(host: &Host) -> bool {
    let status = host.os_status.as_ref();
    status.is_some_and(|status| status.os_install_status == "failed")
}

fn not_installed() -> String {
    "Hot Aisle could not install the operating system of the server".to_owned()
}

fn gone() -> String {
    "Hot Aisle does not have the machine any more".to_owned()
}

/// What a refusal to make a virtual machine means.
fn virtual_refusal(error: &ApiError) -> ComputeError {
    let text = error.body().trim().to_owned();
    let is_about_number = text.to_ascii_lowercase().contains("maximum");
    match error.status() {
        Some(StatusCode::NOT_FOUND) => ComputeError::NoCapacity(text),
        Some(StatusCode::UNAUTHORIZED) if is_about_number => ComputeError::NoQuota(text),
        _ => compute_error(error),
    }
}

/// What a refusal to reserve a server means.
fn server_refusal(error: &ApiError) -> ComputeError {
    let text = error.body().trim().to_owned();
    match error.status() {
        Some(StatusCode::NOT_FOUND) => ComputeError::NoCapacity(text),
        // The limit of the team, or a role that is missing.
        Some(StatusCode::FORBIDDEN) => ComputeError::NoQuota(text),
        Some(StatusCode::BAD_REQUEST) if text.to_ascii_lowercase().contains("insufficient") => {
            ComputeError::NoCapacity(text)
        }
        _ => compute_error(error),
    }
}

fn place(want: &MachineRequest, kind: Kind, id: String, host: Host) -> JobProvisioningData {
    let offer = &want.offer;
    let bare_metal = kind == Kind::BareMetal;
    let data = Data {
        ip_address: host.ip_address.clone(),
        bare_metal,
        server: bare_metal.then_some(host.name),
    };
    // The address of a server is a private one.
    let (hostname, port) = match host.ssh_access {
        Some(access) => (access.ip_address, access.port),
        None => (host.ip_address, SSH_PORT),
    };
    JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: id,
        hostname: Some(hostname),
        internal_ip: None,
        public_ip_enabled: true,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: offer.price,
        username: USER.to_owned(),
        ssh_port: Some(port),
        dockerized: true,
        ssh_proxy: None,
        backend_data: serde_json::to_string(&data).ok(),
        gpu_driver: None,
    }
}
