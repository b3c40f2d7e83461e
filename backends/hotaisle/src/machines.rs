use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, compute_error, look_by_place, machine_place, not_asked, one_line};
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
use crate::naming::{DESCRIBED, MACHINE};
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

/// Pause where another virtual machine is still made.
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
    /// It is known by its description. Not in rows of dstack 0.22.5.
    #[serde(default)]
    marked: bool,
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

/// Which of those that are listed is meant. Names are given to others once a machine is gone, and so are servers.
struct Meant<'a> {
    kind: Kind,
    id: &'a str,
    mark: &'a str,
    /// The description that it may have instead of the mark.
    or: Option<&'a str>,
}

impl Meant<'_> {
    fn is(&self, host: &Host) -> bool {
        let is_called = match self.kind {
            Kind::Virtual => host.name == self.id,
            // Lists mostly do not tell of which reservation a server is.
            Kind::BareMetal => host.deployment_id.as_deref().is_none_or(|id| id == self.id),
        };
        is_called && (host.description() == self.mark || Some(host.description()) == self.or)
    }

    fn among(&self, hosts: Vec<Host>) -> Option<Host> {
        hosts.into_iter().find(|host| self.is(host))
    }
}

/// The description of a machine of dstack 0.22.5: virtual ones have none, and servers the name of the instance.
const fn older(kind: Kind, name: &str) -> &str {
    match kind {
        Kind::Virtual => "",
        Kind::BareMetal => name,
    }
}

/// The piece under which a machine of this kind is noted.
const fn piece(kind: Kind) -> &'static str {
    match kind {
        Kind::Virtual => MACHINE,
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
                let is_made = call.made::<Made>(MACHINE)?.is_some();
                let turn = match is_made {
                    true => None,
                    false => self.naming.turn(&mark, call).await,
                };
                if turn.is_none() && !is_made {
                    return Ok(underway("another machine is made", TURN_INTERVAL));
                }
                let ask = async || {
                    self.register_key(want).await?;
                    self.make_virtual(specs, &mark, call, virtual_refusal).await
                };
                let find = || self.find_virtual(&mark, call);
                let made = call.make(MACHINE, LISTED_WITHIN, ask, find).await;
                if let Some(turn) = turn {
                    turn.end(call.asked_at(MACHINE).is_none());
                }
                made
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
        let is_described = kind == Kind::BareMetal || call.made::<bool>(DESCRIBED)?.is_some();
        let meant = Meant {
            kind,
            id: &made.id,
            mark: &mark,
            or: (!is_described).then_some(""),
        };
        let Some(host) = meant.among(self.hosts(kind).await?) else {
            return match made.is_new(call) {
                true => Ok(underway("the machine is listed", START_INTERVAL)),
                false => Err(ComputeError::Broken(gone())),
            };
        };
        if !is_described {
            self.describe(&host.name, &mark, call).await?;
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
                true => self.look_at(Kind::BareMetal, &known).await,
                false => self.look_at(Kind::Virtual, &known).await,
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
        // What dstack 0.22.5 made has no notes.
        let is_marked = known.place.as_ref().is_some_and(|place| Data::of(place).marked);
        let or = |kind: Kind, is_noted: bool| match is_marked || is_noted {
            true => None,
            false => Some(older(kind, &known.marks.name)),
        };
        let find = || self.find_server(&mark, call);
        let release = async |server: Made| {
            let kind = Kind::BareMetal;
            let or = or(kind, !call.notes().is_null());
            let told = self.end(kind, &server.id, &mark, or).await?;
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
        let is_asked = call.asked_at(MACHINE).is_some();
        let turn = match is_asked {
            true => self.naming.turn(&mark, call).await,
            false => None,
        };
        if turn.is_none() && is_asked {
            return Ok(Removal::Underway { again: TURN_INTERVAL });
        }
        let find = || self.find_virtual(&mark, call);
        let delete = async |machine: Made| {
            let kind = Kind::Virtual;
            let or = or(kind, call.made::<bool>(DESCRIBED)?.is_some());
            let told = self.end(kind, &machine.id, &mark, or).await?;
            Ok(machine.removal(call, told, END_INTERVAL))
        };
        let machine = noted(Kind::Virtual);
        let removal = call.unmake(MACHINE, machine, LISTED_WITHIN, find, delete).await;
        if let Some(turn) = turn {
            turn.end(call.asked_at(MACHINE).is_none());
        }
        removal
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

    async fn find_server(&self, mark: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let servers = self.hosts(Kind::BareMetal).await?;
        let found = servers.iter().find(|server| server.description() == mark);
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

    async fn look_at(
        &self,
        kind: Kind,
        known: &[&Known<Machine>],
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let hosts = self.hosts(kind).await?;
        let sign = |known: &&Known<Machine>| {
            let place = known.place.as_ref();
            let is_marked = place.is_some_and(|place| Data::of(place).marked);
            let meant = Meant {
                kind,
                id: place.map_or("", |place| place.instance_id.as_str()),
                mark: &known.marks.name(MARK_LENGTH),
                or: (!is_marked).then_some(older(kind, &known.marks.name)),
            };
            match hosts.iter().find(|host| meant.is(host)) {
                None => Sign::Lost(gone()),
                Some(host) if has_failed(host) => Sign::Lost(not_installed()),
                Some(_) => Sign::Well,
            }
        };
        Ok(known.iter().map(sign).collect())
    }

    /// It is gone when no list has it: a 404 alone may be of a gateway.
    async fn end(&self, kind: Kind, id: &str, mark: &str, or: Option<&str>) -> Result<Removal, ComputeError> {
        let meant = Meant { kind, id, mark, or };
        let hosts = self.hosts(kind).await?;
        let is_used = |name: &str| hosts.iter().any(|host| host.name == name);
        if !is_used(id) {
            self.naming.forget(id);
        }
        let Some(host) = meant.among(hosts) else {
            return Ok(Removal::Gone);
        };
        // Servers are released by their reservation, or by their name: the description says the one, and dstack 0.22.5 does the other.
        let mut deleted = self.client.delete(kind, id).await;
        if kind == Kind::BareMetal && is_missing(&deleted) && host.name != id {
            deleted = self.client.delete(kind, &host.name).await;
        }
        match deleted {
            Ok(()) => {
                self.naming.forget(id);
                Ok(Removal::Gone)
            }
            Err(error) => match (kind, error.status()) {
                (_, Some(StatusCode::NOT_FOUND)) => Ok(Removal::Underway { again: END_INTERVAL }),
                (Kind::BareMetal, Some(StatusCode::BAD_REQUEST)) => Err(ComputeError::InUse(format!(
                    "Hot Aisle releases the server when the time is over that it is paid for: {}",
                    one_line(error.body())
                ))),
                _ => Err(compute_error(&error)),
            },
        }
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let mut hosts = self.hosts(Kind::Virtual).await?;
        hosts.extend(self.hosts(Kind::BareMetal).await?);
        let owned = |host: Host| {
            Some(Owned {
                kind: OwnedKind::Machine,
                id: id_of(&host).to_owned(),
                mark: OwnedMark::of_name(host.description())?,
                name: host.description().to_owned(),
                region: REGION.to_owned(),
                price: None,
                made_at: None,
            })
        };
        Ok(hosts.into_iter().filter_map(owned).collect())
    }

    pub(crate) async fn end_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        for kind in [Kind::Virtual, Kind::BareMetal] {
            let hosts = self.hosts(kind).await?;
            let is_it = |host: &&Host| id_of(host) == owned.id && host.description() == owned.name;
            if let Some(host) = hosts.iter().find(is_it) {
                return self.end(kind, id_of(host), &owned.name, None).await;
            }
        }
        Ok(Removal::Gone)
    }
}

/// Whether it is the one at a place: the inventory knows servers by name.
pub(crate) fn is_at(owned: &Owned, place: &JobProvisioningData) -> bool {
    owned.id == place.instance_id || Data::of(place).server.as_ref() == Some(&owned.id)
}

fn is_missing(answer: &Result<(), ApiError>) -> bool {
    answer
        .as_ref()
        .is_err_and(|error| error.status() == Some(StatusCode::NOT_FOUND))
}

/// By what it is asked for: of a server, the reservation, as the server goes to others afterwards.
fn id_of(host: &Host) -> &str {
    host.deployment_id.as_deref().unwrap_or(&host.name)
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
    let text = one_line(error.body());
    let is_about_number = text.to_ascii_lowercase().contains("maximum");
    match error.status() {
        Some(StatusCode::NOT_FOUND) => ComputeError::NoCapacity(text),
        Some(StatusCode::UNAUTHORIZED) if is_about_number => ComputeError::NoQuota(text),
        _ => compute_error(error),
    }
}

/// What a refusal to reserve a server means. A 403 is of the team's limit, or of a role that the key lacks.
fn server_refusal(error: &ApiError) -> ComputeError {
    let text = one_line(error.body());
    let says = |word: &str| text.to_ascii_lowercase().contains(word);
    match error.status() {
        Some(StatusCode::NOT_FOUND) => ComputeError::NoCapacity(text),
        Some(StatusCode::FORBIDDEN) if says("limit") || says("maximum") => ComputeError::NoQuota(text),
        Some(StatusCode::BAD_REQUEST) if says("insufficient") => ComputeError::NoCapacity(text),
        _ => compute_error(error),
    }
}

fn place(want: &MachineRequest, kind: Kind, id: String, host: Host) -> JobProvisioningData {
    let bare_metal = kind == Kind::BareMetal;
    let data = Data {
        ip_address: host.ip_address.clone(),
        bare_metal,
        server: bare_metal.then_some(host.name),
        marked: true,
    };
    // The address of a server is a private one.
    let (hostname, port) = match host.ssh_access {
        Some(access) => (access.ip_address, access.port),
        None => (host.ip_address, SSH_PORT),
    };
    JobProvisioningData {
        backend_data: serde_json::to_string(&data).ok(),
        ..machine_place(&want.offer, id, hostname, USER, port)
    }
}
