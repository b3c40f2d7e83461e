//! Routers of services: workers remember where theirs is, so that it must stay.

use dstack_model::configurations::{ReplicaGroup, RouterType, ServiceConfiguration};
use dstack_model::runs::RunSpec;

use super::{SERVICE_FIELDS, SERVICE_SPEC_FIELDS, changed};
use crate::PlanError;

/// Fields that concern replicas' numbers, not what they are.
const NOT_OF_ROUTERS: &[&str] = &["replicas", "groups", "scaling", "gateway"];

pub(super) fn check_kept(
    old: &RunSpec,
    new: &RunSpec,
    old_service: &ServiceConfiguration,
    new_service: &ServiceConfiguration,
) -> Result<(), PlanError> {
    let (before, after) = (router(old_service), router(new_service));
    let kinds = [kind(before.as_ref()), kind(after.as_ref())];
    if let [Some(before), Some(after)] = kinds
        && before != after
    {
        return Err(PlanError::new(
            "Cannot change router.type in place. Stop the run with `dstack stop` and re-apply.",
        ));
    }
    if kinds.contains(&Some(RouterType::Dynamo)) {
        if before != after {
            return Err(PlanError::new(
                "Cannot update a Dynamo router replica group in place. Stop the run with `dstack stop` and re-apply.",
            ));
        }
        check_dynamo(old, new)?;
    }
    let name = |group: &Option<ReplicaGroup>| group.as_ref().and_then(|group| group.name.clone());
    if name(&before) != name(&after) {
        return Err(PlanError::new(
            "Cannot update router replica groups in-place (adding/removing `router` or changing which replica group is \
             the router is not supported). Stop the run and apply again.",
        ));
    }
    Ok(())
}

fn router(service: &ServiceConfiguration) -> Option<ReplicaGroup> {
    service
        .replica_groups()
        .into_iter()
        .find(|group| group.router.is_some())
}

fn kind(group: Option<&ReplicaGroup>) -> Option<RouterType> {
    group?.router.as_ref().map(|router| router.kind)
}

/// Whatever replaces all replicas would replace a Dynamo router, too.
fn check_dynamo(old: &RunSpec, new: &RunSpec) -> Result<(), PlanError> {
    let of_configuration = changed(&old.configuration, &new.configuration);
    let replaced = of_configuration
        .iter()
        .find(|field| SERVICE_FIELDS.contains(&field.as_str()) && !NOT_OF_ROUTERS.contains(&field.as_str()));
    let of_spec = changed(old, new);
    let replaced = replaced.or_else(|| {
        let fields = &mut of_spec.iter();
        fields.find(|field| SERVICE_SPEC_FIELDS.contains(&field.as_str()))
    });
    match replaced {
        None => Ok(()),
        Some(field) => Err(PlanError::new(format!(
            "Cannot change top-level `{field}` in place when the service has a Dynamo router (would re-provision the \
             router and invalidate workers' cached DSTACK_ROUTER_INTERNAL_IP). Stop the run with `dstack stop` and \
             re-apply."
        ))),
    }
}
