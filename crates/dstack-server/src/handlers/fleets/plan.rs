//! Plans of fleets: what applying one would do, and the offers for it.

use dstack_control::fleets::hosts::{opened, without_keys};
use dstack_control::fleets::validate;
use dstack_model::common::ApplyAction;
use dstack_model::fleets::{Fleet, FleetPlan, FleetSpec};
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::requests::GetFleetPlanRequest;
use dstack_plan::combine::fleet_requirements;
use dstack_plan::fleet_diff::check_updatable;
use dstack_plan::offers::Query;
use dstack_plan::plans::{OFFERS_SHOWN, max_price};
use dstack_plan::validate::fill_fleet_defaults;

use super::with_instances;
use crate::api::Call;
use crate::error::Result;
use crate::handlers::runs::OfferSource;

pub(super) async fn get_plan(call: Call, request: GetFleetPlanRequest) -> Result<FleetPlan> {
    let project = call.project()?;
    let mut effective = call
        .state
        .edge
        .plugins
        .on_apply(&call, request.spec.clone())
        .await?;
    validate::check(&effective)?;
    fill_fleet_defaults(&mut effective);
    let (current, action) = current(&call, &effective).await?;
    let own = current.as_ref().map(|fleet| fleet.id);
    call.state.control.fleets.check_free(&effective, own).await?;
    let (mut offers, missing) = offers(&call, &effective).await?;
    let (total_offers, max_offer_price) = (offers.len(), max_price(&offers));
    offers.truncate(OFFERS_SHOWN);
    Ok(FleetPlan {
        project_name: project.row.name.clone(),
        user: call.user()?.name.clone(),
        effective_spec: Some(without_keys(effective)),
        spec: request.spec,
        current_resource: current,
        offers,
        total_offers: u64::try_from(total_offers).unwrap_or(u64::MAX),
        max_offer_price,
        action: Some(action),
        notices: missing,
    })
}

/// The fleet of that name, and whether it could be changed in place.
async fn current(call: &Call, effective: &FleetSpec) -> Result<(Option<Fleet>, ApplyAction)> {
    let (state, project) = (&call.state, call.project()?);
    let Some(name) = &effective.configuration.name else {
        return Ok((None, ApplyAction::Create));
    };
    let found = state
        .data
        .database
        .views()
        .fleet_by_name(project.row.id, name)
        .await?;
    let Some(found) = found else {
        return Ok((None, ApplyAction::Create));
    };
    let mut old = opened(FleetSpec::clone(&found.fleet.spec), &state.data.encryption)?;
    fill_fleet_defaults(&mut old);
    let action = if check_updatable(&old, effective).is_ok() {
        ApplyAction::Update
    } else {
        ApplyAction::Create
    };
    let mut shown = with_instances(&state.data, &[found]).await?.pop();
    if let Some(fleet) = &mut shown {
        fleet.spec = without_keys(old);
    }
    Ok((shown, action))
}

/// Of clouds, and what is missing of them; hosts of SSH fleets are named in the configuration.
async fn offers(call: &Call, spec: &FleetSpec) -> Result<(Vec<Offer>, Vec<String>)> {
    if spec.configuration.ssh_config.is_some() {
        return Ok(Default::default());
    }
    let mut query = Query::new(&spec.merged_profile(), fleet_requirements(spec));
    query.blocks = spec.configuration.blocks;
    // A fleet that starts empty gets its instances from runs, also where there are only containers.
    let starts_empty = spec.configuration.nodes.is_some_and(|nodes| nodes.target == 0);
    query.needs.create_instance = !starts_empty;
    let mut market = OfferSource::of_project(&call.state.control, call.project()?.row.id).await?;
    let offers = market.offers(&query, None).await;
    Ok((offers, market.missing()))
}
