//! The life of a load balancer before gateways: pieces that are made one after the other, and removed in reverse.

use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, look_by_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, LoadBalancer, LoadBalancerRequest, Removal, Sign,
    Step,
};
use dstack_model::gateways::{AnyGatewayCertificate, GatewayLoadBalancerData};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Gcp;
use crate::client::{ForwardingRule, Outcome, last, plain};
use crate::errors::known;
use crate::machines::{ENDS_INTERVAL, Launched, NAME_LENGTH, PARALLEL};
use crate::pieces::{BalancerSite, Piece, Plan, Stored};

/// What is noted before anything is asked for. It is no piece of Google's.
const CHOICE: &str = "choice of the load balancer";

/// Pause while a piece is made, which takes some seconds.
const MAKES_INTERVAL: Duration = Duration::from_secs(5);

/// Where the group is.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Choice {
    zone: String,
}

type Balancer = Step<GatewayLoadBalancerData>;

#[async_trait]
impl Lifecycle<LoadBalancer> for Gcp {
    async fn ensure(&self, want: &LoadBalancerRequest, call: &Call<'_>) -> Result<Balancer, ComputeError> {
        let plan = self.plan(want, call).await?;
        let mut before: Option<(Piece, Launched)> = None;
        for piece in plan.pieces() {
            if let Some(made) = call.made(piece.what())? {
                before = Some((piece, made));
                continue;
            }
            // Each names the one before it, which Google has to know by then.
            match &before {
                Some((piece, made)) => {
                    if let Some(step) = self.await_piece(&plan, *piece, made).await? {
                        return Ok(step);
                    }
                }
                None => self
                    .balancer_network(&plan.site.region)
                    .await
                    .map_err(not_asked)?,
            }
            return self.make_piece(&plan, piece, before.as_ref(), call).await;
        }
        match before {
            Some((piece, made)) => self.balancer_reached(&plan, piece, &made, call).await,
            None => Err(ComputeError::Broken("a load balancer without pieces".to_owned())),
        }
    }

    async fn look(
        &self,
        known: &[Known<LoadBalancer>],
    ) -> Result<Vec<Option<Sign<GatewayLoadBalancerData>>>, ComputeError> {
        let region = |known: &Known<LoadBalancer>| known.place.as_ref().map(|_| known.site.clone());
        look_by_place(known, region, |region, known| self.balancer_signs(region, known)).await
    }

    async fn remove(&self, known: &Known<LoadBalancer>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let stored = known.place.as_ref().map(Stored::read).transpose()?;
        let choice: Option<Choice> = call.made(CHOICE)?;
        let zone = stored.as_ref().map(|stored| stored.zone.clone());
        let Some(zone) = zone.or_else(|| choice.map(|choice| choice.zone)) else {
            // Before anything is asked for, it is noted where.
            return Ok(Removal::Gone);
        };
        let site = BalancerSite {
            region: known.site.clone(),
            zone,
        };
        let name = known.marks.name(NAME_LENGTH);
        for piece in Piece::ALL.into_iter().rev() {
            let stored = stored.as_ref().and_then(|stored| stored.name_of(piece));
            let removal = self.remove_piece(&site, piece, &name, stored, call).await?;
            if removal != Removal::Gone {
                return Ok(removal);
            }
        }
        let gone = async |_: Choice| Ok(Removal::Gone);
        call.unmake(CHOICE, None, Duration::ZERO, async || Ok(None), gone)
            .await
    }
}

impl Gcp {
    async fn plan(&self, want: &LoadBalancerRequest, call: &Call<'_>) -> Result<Plan, ComputeError> {
        let certificate = match &want.certificate {
            None => None,
            Some(AnyGatewayCertificate::GcpCm(certificate)) => Some(certificate.name.clone()),
            Some(_) => {
                let text = "load balancers of Google take certificates of its Certificate Manager only: use `certificate: \
                            {type: gcp-cm, name: ...}`, or `certificate: null`";
                return Err(ComputeError::Refused(text.to_owned()));
            }
        };
        let region = plain(&want.region)?;
        let choice = match call.made::<Choice>(CHOICE)? {
            Some(choice) => choice,
            None => {
                let zones = self.zones_in(region).await.map_err(not_asked)?;
                let zone = zones.into_iter().next();
                let none = || ComputeError::Refused(format!("Google has no region {region}: check `region`"));
                let zone = zone.ok_or_else(none)?;
                call.choose(CHOICE, Choice { zone }).await?
            }
        };
        let nic = self.balancer_nic(region, want.is_public).await?;
        Ok(Plan {
            project: self.client.project.clone(),
            site: BalancerSite {
                region: region.to_owned(),
                zone: choice.zone,
            },
            name: want.marks.name(NAME_LENGTH),
            is_public: want.is_public,
            certificate,
            network: nic.network,
            subnet: nic.subnet,
        })
    }

    /// Asks for the next piece.
    async fn make_piece(
        &self,
        plan: &Plan,
        piece: Piece,
        before: Option<&(Piece, Launched)>,
        call: &Call<'_>,
    ) -> Result<Balancer, ComputeError> {
        let what = piece.what();
        let ask = async || {
            let body = plan.body(piece)?;
            let asked = self
                .client
                .insert(&plan.site.collection(piece)?, None, &body)
                .await;
            let operation = match asked {
                Ok(operation) => Some(last(&operation.name).to_owned()),
                // The name is ours only: an earlier call has made it.
                Err(error) if error.is_conflict() => None,
                Err(error)
                    if error.is_missing() && before.is_some_and(|(_, made)| made.made.is_new(call)) =>
                {
                    let details = error.compute_error().details();
                    return Err(ComputeError::NotReady(details));
                }
                Err(error) => return Err(error.compute_error()),
            };
            Ok(Launched {
                operation,
                made: Made::now(plan.name.clone(), call),
            })
        };
        match call.make_once::<Launched, _>(what, ask).await {
            Ok(_) => Ok(waits_for(format!("the {what} is made"))),
            Err(ComputeError::NotReady(_)) => Ok(waits_for(format!("what the {what} needs is ready"))),
            Err(error) => Err(error),
        }
    }

    /// What is waited for of a piece that was asked for; `None`: nothing.
    ///
    /// # Errors
    /// It has come to nothing.
    async fn await_piece(
        &self,
        plan: &Plan,
        piece: Piece,
        launched: &Launched,
    ) -> Result<Option<Balancer>, ComputeError> {
        let Some(operation) = &launched.operation else {
            return Ok(None);
        };
        let what = piece.what();
        match self.client.failure(&plan.site.scope(piece)?, operation).await? {
            Outcome::Underway => Ok(Some(waits_for(format!("the {what} is made")))),
            Outcome::Over => Ok(None),
            Outcome::Failed(told) => Err(match told.over() {
                // The operation says the same for ever.
                error if error.is_transient() => ComputeError::Broken(error.details()),
                error => error,
            }),
        }
    }

    /// The place, once its last piece has an address.
    async fn balancer_reached(
        &self,
        plan: &Plan,
        piece: Piece,
        launched: &Launched,
        call: &Call<'_>,
    ) -> Result<Balancer, ComputeError> {
        if let Some(step) = self.await_piece(plan, piece, launched).await? {
            return Ok(step);
        }
        let rule = self.forwarding_rule(&plan.site.region, &plan.name).await?;
        if rule.is_none() && !launched.made.is_new(call) {
            return Err(ComputeError::Broken(format!(
                "Google does not have the forwarding rule {} any more",
                plan.name
            )));
        }
        let address = rule
            .map(|rule| rule.address)
            .filter(|address| !address.is_empty());
        let Some(hostname) = address else {
            return Ok(waits_for("an address".to_owned()));
        };
        let backend_data = serde_json::to_string(&plan.stored()).map_err(|error| {
            let text = format!("what is to be stored of the load balancer cannot be written: {error}");
            ComputeError::Broken(text)
        })?;
        Ok(Step::Ready(GatewayLoadBalancerData {
            hostname,
            backend_data,
        }))
    }

    /// `stored`: its name in what is stored of the load balancer; dstack 0.22.5 has noted nothing.
    async fn remove_piece(
        &self,
        site: &BalancerSite,
        piece: Piece,
        name: &str,
        stored: Option<&str>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let there = |made: Made| Launched {
            operation: None,
            made,
        };
        let known_by = stored.map(|name| there(Made::long_ago(name.to_owned())));
        let find = async || {
            let path = site.path(piece, name)?;
            let found: Option<Value> = known(self.client.get(&path).await)?;
            Ok(found.map(|_| there(Made::now(name.to_owned(), call))))
        };
        let delete = async |launched: Launched| {
            let path = site.path(piece, &launched.made.id)?;
            let told = self.client.remove(&path).await?;
            Ok(launched.made.removal(call, told, ENDS_INTERVAL))
        };
        call.unmake(piece.what(), known_by, LISTED_WITHIN, find, delete)
            .await
    }

    async fn forwarding_rule(
        &self,
        region: &str,
        name: &str,
    ) -> Result<Option<ForwardingRule>, ComputeError> {
        let path = format!("regions/{}/forwardingRules/{}", plain(region)?, plain(name)?);
        known(self.client.get(&path).await)
    }

    /// How load balancers of a region are.
    async fn balancer_signs(
        &self,
        region: String,
        known: Vec<&Known<LoadBalancer>>,
    ) -> Result<Vec<Option<Sign<GatewayLoadBalancerData>>>, ComputeError> {
        let asked = known.into_iter().map(|known| self.balancer_sign(&region, known));
        let asked: Vec<_> = asked.collect();
        let signs = stream::iter(asked).buffered(PARALLEL).collect::<Vec<_>>();
        signs.await.into_iter().collect()
    }

    /// Its address goes when the forwarding rule does.
    async fn balancer_sign(
        &self,
        region: &str,
        known: &Known<LoadBalancer>,
    ) -> Result<Option<Sign<GatewayLoadBalancerData>>, ComputeError> {
        let Some(place) = &known.place else {
            return Ok(None);
        };
        let stored = Stored::read(place)?;
        let name = stored.name_of(Piece::ForwardingRule).unwrap_or_default();
        Ok(Some(match self.forwarding_rule(region, name).await? {
            Some(_) => Sign::Well,
            None => Sign::Lost(format!(
                "Google does not have the forwarding rule {name} any more"
            )),
        }))
    }

    /// Removes a piece that belongs to nobody. What still uses it belongs to nobody either, and goes before it.
    pub(crate) async fn remove_owned_piece(&self, path: &str) -> Result<Removal, ComputeError> {
        match self.client.remove(path).await {
            Err(ComputeError::InUse(_)) => Ok(Removal::Underway { again: ENDS_INTERVAL }),
            told => told,
        }
    }

    /// All pieces of a kind with their scopes and names. An account that may not list them, as in the days of dstack 0.22.5, has none.
    pub(crate) async fn pieces_of(&self, piece: Piece) -> Result<Vec<(String, String)>, ComputeError> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let listed = self
            .client
            .aggregated::<Named>(None, piece.collection(), None)
            .await;
        let error = match listed {
            Ok(all) => return Ok(all.into_iter().map(|(scope, one)| (scope, one.name)).collect()),
            Err(error) => error,
        };
        let is_forbidden = error.is_forbidden();
        match error.compute_error() {
            ComputeError::Credentials(_) if is_forbidden => Ok(Vec::new()),
            error => Err(error),
        }
    }
}

fn waits_for(doing: String) -> Balancer {
    Step::Underway {
        seen: None,
        doing,
        again: MAKES_INTERVAL,
    }
}
