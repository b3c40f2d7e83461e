//! The life of an Application Load Balancer with its target group and listeners, and which machines are behind it.
//!
//! AWS makes each name once, and lists what is there by it: pieces whose answers were lost are found so. Listeners have no costs, and
//! go with their load balancer.

use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Balancing, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, LoadBalancer, LoadBalancerRequest,
    LoadBalancers, Marks, Removal, Step,
};
use dstack_model::gateways::{
    AnyGatewayCertificate, GatewayLoadBalancerData, GatewayReplicaProvisioningData,
};
use dstack_units::path::GATEWAY_HEALTH_PATH;
use serde::{Deserialize, Serialize};

use crate::Aws;
use crate::client::{Form, Service};
use crate::elb::{Balancer, Nothing, TargetHealthOf};
use crate::errors::AwsError;
use crate::machines::{ENDS_INTERVAL, Purpose};
use crate::network::places_to_try;
use crate::tags::tags;

const BALANCER: &str = "load balancer";

const TARGETS: &str = "target group";

/// The listener that clients use.
const LISTENER: &str = "listener";

/// With a certificate: the one that sends clients to HTTPS.
const REDIRECT: &str = "HTTP listener";

/// Longest name of a load balancer and a target group ("CreateLoadBalancer", Elastic Load Balancing API reference).
const NAME_LENGTH: usize = 32;

/// A load balancer needs subnets in so many zones ("Application Load Balancers", User Guide).
const LEAST_ZONES: usize = 2;

/// As dstack 0.22.5 has it.
const TLS_POLICY: &str = "ELBSecurityPolicy-2016-08";

const HTTP: u16 = 80;

const HTTPS: u16 = 443;

/// Pause before a load balancer is looked at again: it takes two minutes to be set up, and targets half a minute to be found healthy.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of a load balancer (the fields of dstack 0.22.5).
#[derive(Debug, Serialize, Deserialize)]
struct BackendData {
    lb_arn: String,
    tg_arn: String,
    listener_arn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http_listener_arn: Option<String>,
    /// Its zones: machines elsewhere get no requests. Unset: made by dstack 0.22.5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    zones: Vec<String>,
}

impl BackendData {
    fn read(place: &GatewayLoadBalancerData) -> Result<Self, ComputeError> {
        serde_json::from_str(&place.backend_data).map_err(|error| {
            ComputeError::Refused(format!(
                "what is stored of the load balancer cannot be read: {error}"
            ))
        })
    }
}

/// A load balancer, as it is noted.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Made {
    arn: String,
    dns_name: String,
    zones: Vec<String>,
}

impl From<Balancer> for Made {
    fn from(made: Balancer) -> Self {
        Self {
            arn: made.load_balancer_arn,
            dns_name: made.dns_name,
            zones: made
                .availability_zones
                .member
                .into_iter()
                .map(|zone| zone.zone_name)
                .collect(),
        }
    }
}

/// The zones of a load balancer, in which machines have to be; `None`: in any.
pub(crate) fn zones(place: &GatewayLoadBalancerData) -> Result<Option<Vec<String>>, ComputeError> {
    Ok(Some(BackendData::read(place)?.zones).filter(|zones| !zones.is_empty()))
}

#[async_trait]
impl Lifecycle<LoadBalancer> for Aws {
    async fn ensure(
        &self,
        want: &LoadBalancerRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayLoadBalancerData>, ComputeError> {
        let certificate = certificate(want)?;
        let region = &want.region;
        let network = self.network(region, want.is_public).await?;
        let made = self.make_balancer(want, call).await?;
        let group = self.make_target_group(want, &network.vpc, call).await?;
        let (listener_arn, http_listener_arn) = match certificate {
            None => (
                self.make_listener(region, &made.arn, HTTP, forward(&group), LISTENER, call)
                    .await?,
                None,
            ),
            Some(arn) => {
                let https = forward(&group)
                    .with("SslPolicy", TLS_POLICY)
                    .with("Certificates.member.1.CertificateArn", arn);
                let listener = self.make_listener(region, &made.arn, HTTPS, https, LISTENER, call);
                let listener = listener.await?;
                let redirect = self.make_listener(region, &made.arn, HTTP, to_https(), REDIRECT, call);
                (listener, Some(redirect.await?))
            }
        };
        let data = BackendData {
            lb_arn: made.arn,
            tg_arn: group,
            listener_arn,
            http_listener_arn,
            zones: made.zones,
        };
        Ok(Step::Ready(GatewayLoadBalancerData {
            hostname: made.dns_name,
            backend_data: serde_json::to_string(&data).unwrap_or_default(),
        }))
    }

    async fn remove(&self, known: &Known<LoadBalancer>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let (region, name) = (known.site.as_str(), name(&known.marks));
        let data = known.place.as_ref().map(BackendData::read).transpose()?;
        let made = data.as_ref().map(|data| Made {
            arn: data.lb_arn.clone(),
            dns_name: String::new(),
            zones: Vec::new(),
        });
        let removal = call
            .unmake(
                BALANCER,
                made,
                LISTED_WITHIN,
                || self.find_balancer(region, &name),
                async |made: Made| self.delete_balancer(region, &made.arn).await,
            )
            .await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        call.unmake(
            TARGETS,
            data.map(|data| data.tg_arn),
            LISTED_WITHIN,
            || self.find_target_group(region, &name),
            async |arn: String| self.delete_target_group(region, &arn).await,
        )
        .await
    }
}

#[async_trait]
impl LoadBalancers for Aws {
    async fn set_machines(
        &self,
        balancer: &Known<LoadBalancer>,
        machines: &[GatewayReplicaProvisioningData],
    ) -> Result<Balancing, ComputeError> {
        let Some(place) = &balancer.place else {
            return Err(ComputeError::Unclear(
                "the load balancer is not made yet".to_owned(),
            ));
        };
        let (region, data) = (balancer.site.as_str(), BackendData::read(place)?);
        if let Some(doing) = self.is_set_up(region, &data.lb_arn).await? {
            return Ok(underway(doing));
        }
        let wanted: Vec<&str> = machines
            .iter()
            .map(|machine| machine.instance_id.as_str())
            .collect();
        let targets = self.targets(region, &data.tg_arn).await?;
        let plan = plan(&targets, &wanted);
        for (action, ids) in [
            ("RegisterTargets", &plan.add),
            ("DeregisterTargets", &plan.remove),
        ] {
            if !ids.is_empty() {
                self.change_targets(action, region, &data.tg_arn, ids).await?;
            }
        }
        Ok(match plan.is_changed() {
            true => underway("the load balancer to take the machines".to_owned()),
            false => plan.waits_for.map_or(Balancing::Set, underway),
        })
    }
}

fn underway(doing: String) -> Balancing {
    Balancing::Underway {
        doing,
        again: LOOK_INTERVAL,
    }
}

impl Aws {
    async fn make_balancer(&self, want: &LoadBalancerRequest, call: &Call<'_>) -> Result<Made, ComputeError> {
        let (region, name) = (&want.region, name(&want.marks));
        let network = self.network(region, want.is_public).await?;
        let subnets: Vec<&str> = places_to_try(&network, None, None, &[])
            .into_iter()
            .map(|place| place.subnet.as_str())
            .collect();
        if subnets.len() < LEAST_ZONES {
            return Err(ComputeError::Refused(format!(
                "a load balancer needs subnets in {LEAST_ZONES} availability zones at least, and VPC {} has them in {} in \
                 {region}: add one, or take another VPC (`vpc_ids`)",
                network.vpc,
                subnets.len()
            )));
        }
        let purpose = Purpose::Gateway {
            is_public: want.is_public,
        };
        let group = self
            .security_group(region, &network.vpc, &want.owner.project, purpose)
            .await?;
        let create = async || {
            let form = Form::new("CreateLoadBalancer")
                .with("Name", &name)
                .with("Type", "application")
                .with("IpAddressType", "ipv4")
                .with(
                    "Scheme",
                    if want.is_public {
                        "internet-facing"
                    } else {
                        "internal"
                    },
                )
                .list("Subnets.member", subnets.iter().copied())
                .with("SecurityGroups.member.1", &group);
            let form = tagged(form, &tags(&want.marks, &want.owner, self.config.tags.as_ref()));
            match self.client.create_balancer(region, form).await {
                Ok(made) => Ok(made.into()),
                // The name is ours only.
                Err(error) if error.is(&["DuplicateLoadBalancerName"]) => {
                    let found = self.find_balancer(region, &name).await?;
                    found.ok_or_else(|| ComputeError::Unclear(error.to_string()))
                }
                Err(error) => Err(error.compute_error()),
            }
        };
        call.make(BALANCER, LISTED_WITHIN, create, || {
            self.find_balancer(region, &name)
        })
        .await
    }

    async fn make_target_group(
        &self,
        want: &LoadBalancerRequest,
        vpc: &str,
        call: &Call<'_>,
    ) -> Result<String, ComputeError> {
        let (region, name) = (&want.region, name(&want.marks));
        let create = async || {
            let form = Form::new("CreateTargetGroup")
                .with("Name", &name)
                .with("Protocol", "HTTP")
                .with("Port", HTTP.to_string())
                .with("VpcId", vpc)
                .with("TargetType", "instance")
                .with("HealthCheckPath", GATEWAY_HEALTH_PATH);
            let form = tagged(form, &tags(&want.marks, &want.owner, self.config.tags.as_ref()));
            match self.client.create_target_group(region, form).await {
                Ok(made) => Ok(made.target_group_arn),
                Err(error) if error.is(&["DuplicateTargetGroupName"]) => {
                    let found = self.find_target_group(region, &name).await?;
                    found.ok_or_else(|| ComputeError::Unclear(error.to_string()))
                }
                Err(error) => Err(error.compute_error()),
            }
        };
        call.make(TARGETS, LISTED_WITHIN, create, || {
            self.find_target_group(region, &name)
        })
        .await
    }

    /// `rule` says what is done with requests.
    async fn make_listener(
        &self,
        region: &str,
        balancer: &str,
        port: u16,
        rule: Form,
        piece: &str,
        call: &Call<'_>,
    ) -> Result<String, ComputeError> {
        let create = async || {
            let protocol = if port == HTTPS { "HTTPS" } else { "HTTP" };
            let form = rule
                .with("LoadBalancerArn", balancer)
                .with("Protocol", protocol)
                .with("Port", port.to_string());
            match self.client.create_listener(region, form).await {
                Ok(made) => Ok(made.listener_arn),
                Err(error) if error.is(&["DuplicateListener"]) => {
                    let found = self.find_listener(region, balancer, port).await?;
                    found.ok_or_else(|| ComputeError::Unclear(error.to_string()))
                }
                Err(error) => Err(error.compute_error()),
            }
        };
        call.make(piece, LISTED_WITHIN, create, || {
            self.find_listener(region, balancer, port)
        })
        .await
    }

    async fn find_balancer(&self, region: &str, name: &str) -> Result<Option<Made>, ComputeError> {
        let form = Form::new("DescribeLoadBalancers").with("Names.member.1", name);
        let found = self.client.balancers(region, form).await;
        let found = found.map_err(|error| error.compute_error())?.into_iter().next();
        Ok(found.map(Made::from))
    }

    async fn find_target_group(&self, region: &str, name: &str) -> Result<Option<String>, ComputeError> {
        let form = Form::new("DescribeTargetGroups").with("Names.member.1", name);
        let found = self.client.target_groups(region, form).await;
        let found = found.map_err(|error| error.compute_error())?.into_iter().next();
        Ok(found.map(|found| found.target_group_arn))
    }

    async fn find_listener(
        &self,
        region: &str,
        balancer: &str,
        port: u16,
    ) -> Result<Option<String>, ComputeError> {
        let found = self.client.listeners(region, balancer).await;
        let found = found.map_err(|error| error.compute_error())?;
        let mut found = found.into_iter().filter(|listener| listener.port == port);
        Ok(found.next().map(|listener| listener.listener_arn))
    }

    /// What its setting up waits for; `None`: it is set up.
    async fn is_set_up(&self, region: &str, arn: &str) -> Result<Option<String>, ComputeError> {
        let form = Form::new("DescribeLoadBalancers").with("LoadBalancerArns.member.1", arn);
        let found = self.client.balancers(region, form).await;
        let found = found.map_err(|error| error.compute_error())?.into_iter().next();
        let Some(found) = found else {
            return Err(gone());
        };
        match found.state.code.as_str() {
            "provisioning" => Ok(Some("the load balancer to be set up by AWS".to_owned())),
            "failed" => Err(ComputeError::Refused(format!(
                "AWS has not set up the load balancer: {}",
                found.state.reason
            ))),
            _ => Ok(None),
        }
    }

    async fn targets(&self, region: &str, group: &str) -> Result<Vec<TargetHealthOf>, ComputeError> {
        let listed = self.client.target_health(region, group).await;
        listed.map_err(|error| match error.is(&["TargetGroupNotFound"]) {
            true => gone(),
            false => error.compute_error(),
        })
    }

    async fn change_targets(
        &self,
        action: &'static str,
        region: &str,
        group: &str,
        ids: &[String],
    ) -> Result<(), ComputeError> {
        let form = Form::new(action).with("TargetGroupArn", group);
        let form = (1..).zip(ids).fold(form, |form, (at, id)| {
            form.with(format!("Targets.member.{at}.Id"), id)
                .with(format!("Targets.member.{at}.Port"), HTTP.to_string())
        });
        match self.client.read::<Nothing>(Service::Elb, region, form).await {
            Ok(_) => Ok(()),
            // A machine that does not run yet, or not any more: the control plane finds out.
            Err(error) if error.is(&["InvalidTarget"]) => Err(ComputeError::Unclear(error.to_string())),
            Err(error) => Err(error.compute_error()),
        }
    }

    pub(crate) async fn delete_balancer(&self, region: &str, arn: &str) -> Result<Removal, ComputeError> {
        let form = Form::new("DeleteLoadBalancer").with("LoadBalancerArn", arn);
        // One that does not exist is deleted all the same.
        let deleted = self.client.read::<Nothing>(Service::Elb, region, form).await;
        deleted.map(|_| Removal::Gone).or_else(|error| gone_or(&error))
    }

    /// A group is in use as long as a listener leads to it.
    pub(crate) async fn delete_target_group(&self, region: &str, arn: &str) -> Result<Removal, ComputeError> {
        let form = Form::new("DeleteTargetGroup").with("TargetGroupArn", arn);
        let deleted = self.client.read::<Nothing>(Service::Elb, region, form).await;
        deleted.map(|_| Removal::Gone).or_else(|error| gone_or(&error))
    }
}

fn gone_or(error: &AwsError) -> Result<Removal, ComputeError> {
    if error.is(&["LoadBalancerNotFound", "TargetGroupNotFound"]) {
        return Ok(Removal::Gone);
    }
    match error.is(&["ResourceInUse"]) {
        true => Ok(Removal::Underway { again: ENDS_INTERVAL }),
        false => Err(error.compute_error()),
    }
}

fn gone() -> ComputeError {
    ComputeError::Refused("the load balancer is gone: delete the gateway, and apply it again".to_owned())
}

fn name(marks: &Marks) -> String {
    marks.name(NAME_LENGTH)
}

/// ARN of the certificate that is asked for.
fn certificate(want: &LoadBalancerRequest) -> Result<Option<&str>, ComputeError> {
    match &want.certificate {
        None => Ok(None),
        Some(AnyGatewayCertificate::Acm(certificate)) => Ok(Some(&certificate.arn)),
        Some(_) => Err(ComputeError::Unsupported(
            "a load balancer with such a certificate",
        )),
    }
}

fn tagged(form: Form, tags: &[(String, String)]) -> Form {
    (1..).zip(tags).fold(form, |form, (at, (key, value))| {
        form.with(format!("Tags.member.{at}.Key"), key)
            .with(format!("Tags.member.{at}.Value"), value)
    })
}

fn forward(group: &str) -> Form {
    Form::new("CreateListener")
        .with("DefaultActions.member.1.Type", "forward")
        .with("DefaultActions.member.1.TargetGroupArn", group)
}

fn to_https() -> Form {
    Form::new("CreateListener")
        .with("DefaultActions.member.1.Type", "redirect")
        .with("DefaultActions.member.1.RedirectConfig.Protocol", "HTTPS")
        .with("DefaultActions.member.1.RedirectConfig.Port", HTTPS.to_string())
        .with("DefaultActions.member.1.RedirectConfig.StatusCode", "HTTP_301")
}

/// What is to be changed about the targets of a group.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    add: Vec<String>,
    remove: Vec<String>,
    /// What is waited for where nothing is to be changed; `None`: all is as it shall be.
    waits_for: Option<String>,
}

impl Plan {
    const fn is_changed(&self) -> bool {
        !self.add.is_empty() || !self.remove.is_empty()
    }
}

/// States of targets: "Health checks for Application Load Balancer target groups", User Guide.
fn plan(targets: &[TargetHealthOf], wanted: &[&str]) -> Plan {
    let is_leaving = |state: &str| state == "draining" || state == "unhealthy.draining";
    let state_of = |id: &str| {
        let found = targets.iter().find(|one| one.target.id == id);
        found.map(|one| &one.target_health)
    };
    let is_missing = |id: &&&str| state_of(id).is_none_or(|health| is_leaving(&health.state));
    let is_surplus = |one: &&TargetHealthOf| !wanted.contains(&one.target.id.as_str());
    let surplus = || targets.iter().filter(is_surplus);
    let leaving = surplus().find(|one| is_leaving(&one.target_health.state));
    let unready = wanted.iter().find_map(|id| {
        let health = state_of(id)?;
        (!matches!(health.state.as_str(), "healthy" | "unavailable")).then_some((id, health))
    });
    Plan {
        add: wanted
            .iter()
            .filter(is_missing)
            .map(|id| (*id).to_owned())
            .collect(),
        remove: surplus()
            .filter(|one| !is_leaving(&one.target_health.state))
            .map(|one| one.target.id.clone())
            .collect(),
        waits_for: match (unready, leaving) {
            (Some((id, health)), _) => Some(format!(
                "the machine {id} to be found healthy by its load balancer ({}{}{})",
                health.state,
                if health.description.is_empty() { "" } else { ": " },
                health.description
            )),
            (None, Some(one)) => Some(format!("requests of the machine {} to end", one.target.id)),
            (None, None) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elb::{Target, TargetHealth};

    fn targets(all: &[(&str, &str)]) -> Vec<TargetHealthOf> {
        let target = |(id, state): &(&str, &str)| TargetHealthOf {
            target: Target { id: (*id).to_owned() },
            target_health: TargetHealth {
                state: (*state).to_owned(),
                description: String::new(),
            },
        };
        all.iter().map(target).collect()
    }

    #[test]
    fn targets_become_those_that_are_wanted() {
        let plan = |all: &[(&str, &str)], wanted: &[&str]| plan(&targets(all), wanted);
        assert_eq!(plan(&[("a", "healthy")], &["a"]), Plan::default());
        let changed = plan(&[("a", "healthy"), ("b", "unused")], &["a", "c"]);
        assert_eq!(
            (changed.add, changed.remove),
            (vec!["c".to_owned()], vec!["b".to_owned()])
        );
        // One that leaves is taken back, or waited for.
        assert_eq!(plan(&[("a", "draining")], &["a"]).add, ["a"]);
        let leaving = plan(&[("a", "healthy"), ("b", "draining")], &["a"]);
        assert!(!leaving.is_changed());
        assert_eq!(leaving.waits_for.unwrap(), "requests of the machine b to end");
        for state in ["initial", "unhealthy", "unused"] {
            let unready = plan(&[("a", state)], &["a"]);
            assert!(!unready.is_changed() && unready.waits_for.unwrap().contains(state));
        }
    }
}
