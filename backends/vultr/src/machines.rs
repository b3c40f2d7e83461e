use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend::{Made, cloud_config, compute_error, listed_signs, look_by_place, machine_place};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Owned, OwnedKind,
    OwnedMark, Removal, Sign, Step,
};
use dstack_http::ApiError;
use dstack_model::runs::JobProvisioningData;
use http::StatusCode;
use serde_json::json;

use crate::Vultr;
use crate::client::{NewServer, PlanType, Server, System, Vpc};

/// Longest label.
const LABEL_LENGTH: usize = 64;

/// Docker on Ubuntu 22.04.
const DOCKER: System = System::ImageId("docker");

/// Ubuntu 22.04. On virtual machines with GPUs, the vendor adds Docker, driver and container toolkit to it.
const UBUNTU: System = System::OsId(1743);

/// Pause while a machine starts, which takes one of bare metal a quarter of an hour and more.
const fn starts_interval(kind: PlanType) -> Duration {
    match kind {
        PlanType::Vm => Duration::from_secs(10),
        PlanType::BareMetal => Duration::from_secs(30),
    }
}

const ENDS_INTERVAL: Duration = Duration::from_secs(5);

#[async_trait]
impl Lifecycle<Machine> for Vultr {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let kind = PlanType::of(&want.offer.instance.name);
        let label = want.marks.name(LABEL_LENGTH);
        let network = self.network(&want.offer.region, call).await?;
        let made: Made = call
            .make(
                piece(kind),
                LISTED_WITHIN,
                async || Ok(Made::now(self.create(kind, want, &label, &network).await?, call)),
                || self.find(kind, &label, call),
            )
            .await?;
        let server = self.server(kind, &made.id).await?;
        let waiting = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: starts_interval(kind),
            })
        };
        let Some(server) = server else {
            return match made.is_new(call) {
                true => waiting("the machine is listed"),
                false => Err(ComputeError::Broken(GONE.to_owned())),
            };
        };
        if has_failed(&server) {
            return Err(ComputeError::Broken(FAILED.to_owned()));
        }
        let address = given(server.main_ip.as_ref()).filter(|_| server.status == "active");
        let Some(hostname) = address else {
            return waiting("the machine starts");
        };
        match self.internal_ip(kind, &server, &network).await? {
            Internal::None => waiting("the machine gets its address in the VPC"),
            Internal::Untold => Ok(Step::Ready(place(kind, want, made.id, hostname, None))),
            Internal::At(address) => Ok(Step::Ready(place(kind, want, made.id, hostname, Some(address)))),
        }
    }

    /// Both kinds of machines are asked for apart.
    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let kind_of = |known: &Known<Machine>| known.place.as_ref().map(kind_of);
        look_by_place(known, kind_of, |kind, things| async move {
            let servers = self.client.servers(kind).await;
            let servers = servers.map_err(|error| compute_error(&error))?;
            let signs = listed_signs(
                things,
                |known| servers.iter().find(|server| server.id == id_of(known)).cloned(),
                |known| self.server(kind, id_of(known)),
                |_, server| match server {
                    None => Sign::Lost(GONE.to_owned()),
                    Some(server) if has_failed(&server) => Sign::Lost(FAILED.to_owned()),
                    Some(_) => Sign::Well,
                },
            )
            .await;
            Ok(signs)
        })
        .await
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let label = known.marks.name(LABEL_LENGTH);
        for kind in PlanType::ALL {
            let place = known.place.as_ref().filter(|place| kind_of(place) == kind);
            let machine = place.map(|place| Made::long_ago(place.instance_id.clone()));
            let find = || self.find(kind, &label, call);
            let delete = async |machine: Made| {
                let told = self.delete(kind, &machine.id).await?;
                Ok(machine.removal(call, told, ENDS_INTERVAL))
            };
            let removal = call.unmake(piece(kind), machine, LISTED_WITHIN, find, delete);
            match removal.await? {
                Removal::Gone => {}
                underway => return Ok(underway),
            }
        }
        Ok(Removal::Gone)
    }
}

impl Vultr {
    async fn create(
        &self,
        kind: PlanType,
        want: &MachineRequest,
        label: &str,
        network: &Vpc,
    ) -> Result<String, ComputeError> {
        let plan = want.offer.instance.name.as_str();
        let user_data = cloud_config(&want.authorized_keys, &[firewall(network)]);
        let ask = NewServer {
            region: &want.offer.region,
            plan,
            label,
            user_data: STANDARD.encode(user_data),
            attach_vpc: [&network.id],
            system: match kind == PlanType::Vm && !want.offer.instance.resources.gpus.is_empty() {
                true => UBUNTU,
                false => DOCKER,
            },
        };
        let made = self.client.create(kind, &ask).await;
        made.map_err(|error| not_made(&error))
    }

    async fn server(&self, kind: PlanType, id: &str) -> Result<Option<Server>, ComputeError> {
        let server = self.client.server(kind, id).await;
        server.map_err(|error| compute_error(&error))
    }

    async fn internal_ip(
        &self,
        kind: PlanType,
        server: &Server,
        network: &Vpc,
    ) -> Result<Internal, ComputeError> {
        if let Some(address) = given(server.internal_ip.as_ref()) {
            return Ok(Internal::At(address));
        }
        let attached = self.client.vpcs_of(kind, &server.id).await;
        let Some(attached) = attached.map_err(|error| compute_error(&error))? else {
            return Ok(Internal::Untold);
        };
        let own = attached.into_iter().find(|vpc| vpc.id == network.id);
        let address = own.map(|vpc| vpc.ip_address);
        Ok(given(address.as_ref()).map_or(Internal::None, Internal::At))
    }

    async fn find(&self, kind: PlanType, label: &str, call: &Call<'_>) -> Result<Option<Made>, ComputeError> {
        let all = self.client.servers(kind).await;
        let all = all.map_err(|error| compute_error(&error))?;
        let found = all.into_iter().find(|server| server.label == label);
        Ok(found.map(|server| Made::now(server.id, call)))
    }

    /// Gone when it is not there any more: that it is being removed, the vendor says as well of what it has not removed yet.
    async fn delete(&self, kind: PlanType, id: &str) -> Result<Removal, ComputeError> {
        let was_there = self.client.delete(kind, id).await;
        Ok(match was_there.map_err(|error| compute_error(&error))? {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }

    /// Of which kind it is, the id does not say.
    pub(crate) async fn delete_any(&self, id: &str) -> Result<Removal, ComputeError> {
        for kind in PlanType::ALL {
            match self.delete(kind, id).await? {
                Removal::Gone => {}
                underway => return Ok(underway),
            }
        }
        Ok(Removal::Gone)
    }

    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let mut all = Vec::new();
        for kind in PlanType::ALL {
            let servers = self.client.servers(kind).await;
            all.extend(servers.map_err(|error| compute_error(&error))?);
        }
        let owned = |server: Server| {
            Some(Owned {
                kind: OwnedKind::Machine,
                mark: OwnedMark::of_name(&server.label)?,
                id: server.id,
                name: server.label,
                region: server.region,
                price: None,
                made_at: server.date_created.parse().ok(),
            })
        };
        Ok(all.into_iter().filter_map(owned).collect())
    }
}

/// The address of a machine in its VPC.
enum Internal {
    At(String),
    /// It has none yet.
    None,
    /// It is not to be had from the API.
    Untold,
}

const GONE: &str = "Vultr does not have the machine any more";

const FAILED: &str = "Vultr could not start the machine";

/// What is noted of the two kinds.
const fn piece(kind: PlanType) -> &'static str {
    match kind {
        PlanType::Vm => "machine",
        PlanType::BareMetal => "bare metal machine",
    }
}

fn kind_of(place: &JobProvisioningData) -> PlanType {
    PlanType::of(&place.instance_type.name)
}

fn has_failed(server: &Server) -> bool {
    server.status == "failed"
}

/// An address, once there is one.
fn given(address: Option<&String>) -> Option<String> {
    address
        .filter(|address| !address.is_empty() && *address != "0.0.0.0")
        .cloned()
}

/// The vendor's images let only SSH in, so that the other nodes of a cluster would not get through.
fn firewall(network: &Vpc) -> String {
    let subnet = format!("{}/{}", network.v4_subnet, network.v4_subnet_mask);
    format!("if command -v ufw; then ufw allow ssh && ufw allow from {subnet} && ufw --force enable; fi")
}

/// The vendor tells in words that nothing is free, or that the account may have no more.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    let refused = [
        StatusCode::BAD_REQUEST,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    if !error.status().is_some_and(|status| refused.contains(&status)) {
        return compute_error(error);
    }
    let text = error.body().to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["maximum", "limit", "quota"]) {
        ComputeError::NoQuota(error.to_string())
    } else if says(&["available", "capacity", "out of stock", "sold out"]) {
        ComputeError::NoCapacity(error.to_string())
    } else {
        compute_error(error)
    }
}

fn place(
    kind: PlanType,
    want: &MachineRequest,
    id: String,
    hostname: String,
    internal_ip: Option<String>,
) -> JobProvisioningData {
    JobProvisioningData {
        internal_ip,
        // As dstack 0.22.5 writes it.
        backend_data: Some(json!({"plan_type": kind}).to_string()),
        ..machine_place(&want.offer, id, hostname, "root", 22)
    }
}

/// Empty: it has no place.
fn id_of(known: &Known<Machine>) -> &str {
    known.place.as_ref().map_or("", |place| &place.instance_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let told = |status: StatusCode, text: &str| {
            not_made(&ApiError::Status {
                api: "api.vultr.com".to_owned(),
                status,
                body: format!("{{\"error\":\"{text}\",\"status\":{}}}", status.as_u16()),
                retry_after: None,
            })
        };
        let bad = StatusCode::BAD_REQUEST;
        let sold_out = "Server add failed: The selected plan is not available in the selected region";
        assert!(matches!(told(bad, sold_out), ComputeError::NoCapacity(_)));
        let limit = "Server add failed: You have reached the maximum monthly fee limit for this account.";
        assert!(matches!(told(bad, limit), ComputeError::NoQuota(_)));
        assert!(matches!(
            told(bad, "Invalid plan chosen."),
            ComputeError::Refused(_)
        ));
        assert!(matches!(
            told(StatusCode::FORBIDDEN, limit),
            ComputeError::NoQuota(_)
        ));
        let forbidden = told(StatusCode::FORBIDDEN, "Forbidden");
        assert!(matches!(forbidden, ComputeError::Credentials(_)));
        let unauthorized = told(StatusCode::UNAUTHORIZED, "Invalid API token.");
        assert!(matches!(unauthorized, ComputeError::Credentials(_)));
        let busy = told(StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded");
        assert!(matches!(busy, ComputeError::Throttled { .. }));
        assert!(!told(StatusCode::INTERNAL_SERVER_ERROR, sold_out).is_definite());
    }

    #[test]
    fn only_real_addresses_count() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(given(None), None);
        assert_eq!(given(text("").as_ref()), None);
        assert_eq!(given(text("0.0.0.0").as_ref()), None);
        assert_eq!(given(text("203.0.113.24").as_ref()), text("203.0.113.24"));
    }
}
