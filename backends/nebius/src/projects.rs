//! Projects: each is in one region, and of each region one is used.

use std::collections::BTreeMap;

use crate::client::{Client, Kind};
use crate::grpc::{Code, Error, Refusal};
use crate::messages::{self, ServiceError, Thing};

/// How the names of projects begin that Nebius makes by itself.
const DEFAULT: &str = "default";

/// A project of the tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: String,
    name: String,
    pub(crate) region: String,
}

/// The project of each region; `None`: there are several, and none is named.
pub(crate) type ByRegion = BTreeMap<String, Option<String>>;

/// All that may be seen, and those that are used.
#[derive(Debug)]
pub(crate) struct Projects {
    pub(crate) all: Vec<Project>,
    pub(crate) by_region: ByRegion,
}

/// The field of a configuration that is wrong, and what is wrong with it.
pub(crate) type Wrong = (&'static str, String);

/// Those of the tenant of the service account.
pub(crate) async fn all(client: &Client) -> Result<Vec<Project>, Error> {
    let tenants: Vec<Thing> = client.list(Kind::Tenant, "").await?;
    let [
        Thing {
            metadata: Some(tenant),
            ..
        },
    ] = tenants.as_slice()
    else {
        let count = tenants.len();
        return Err(Error::Status(Refusal {
            code: Code::PermissionDenied,
            message: format!("the service account has to be in one tenant, and sees {count}"),
            service: ServiceError::default(),
        }));
    };
    let projects: Vec<messages::Project> = client.list(Kind::Project, &tenant.id).await?;
    let read = |project: messages::Project| {
        let (metadata, region) = (project.metadata?, project.spec?.region);
        let state = project.status.map_or(0, |status| status.state);
        let is_there = !Kind::Project.is_ending(state) && !region.is_empty();
        is_there.then_some(Project {
            id: metadata.id,
            name: metadata.name,
            region,
        })
    };
    Ok(projects.into_iter().filter_map(read).collect())
}

/// Of those that are named, or else the only one of a region, or the only one that Nebius has made there; and what is wrong with those
/// that are named, which leaves only their regions without one.
pub(crate) fn by_region(all: &[Project], named: &[String]) -> (ByRegion, Option<Wrong>) {
    let (mut chosen, mut wrong) = (ByRegion::new(), None);
    for id in named {
        let Some(project) = all.iter().find(|project| project.id == *id) else {
            wrong = Some(("projects", format!("the tenant has no project {id}")));
            continue;
        };
        let region = &project.region;
        let before = chosen.insert(region.clone(), Some(id.clone()));
        if let Some(before) = before.filter(|before| before.as_ref() != Some(id)) {
            let before = before.unwrap_or_else(|| "another one".to_owned());
            let why = format!("{before} and {id} are both in {region}: name one project of a region");
            wrong = Some(("projects", why));
            chosen.insert(region.clone(), None);
        }
    }
    if !named.is_empty() {
        return (chosen, wrong);
    }
    let mut of_region: BTreeMap<&str, Vec<&Project>> = BTreeMap::new();
    for project in all {
        of_region.entry(&project.region).or_default().push(project);
    }
    for (region, mut projects) in of_region {
        if projects.len() > 1 {
            projects.retain(|project| project.name.starts_with(DEFAULT));
        }
        let only = match projects.as_slice() {
            [only] => Some(only.id.clone()),
            _ => None,
        };
        chosen.insert(region.to_owned(), only);
    }
    (chosen, wrong)
}

/// Whether those of the regions that are wanted (none: of all) are known.
pub(crate) fn check(chosen: &ByRegion, all: &[Project], wanted: &[String]) -> Result<(), Wrong> {
    let unknown = |region: &&String| !all.iter().any(|project| project.region == **region);
    let unknown: Vec<&str> = wanted.iter().filter(unknown).map(String::as_str).collect();
    if !unknown.is_empty() {
        let regions: std::collections::BTreeSet<&str> =
            all.iter().map(|project| project.region.as_str()).collect();
        let regions: Vec<&str> = regions.into_iter().collect();
        let (unknown, regions) = (unknown.join(", "), regions.join(", "));
        let why = format!("the tenant has no project in {unknown}; it has some in {regions}");
        return Err(("regions", why));
    }
    for (region, project) in chosen {
        if project.is_none() && (wanted.is_empty() || wanted.contains(region)) {
            let why = format!("several projects are in {region}: name the one to use in `projects`");
            return Err(("regions", why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(id: &str, name: &str, region: &str) -> Project {
        let [id, name, region] = [id, name, region].map(str::to_owned);
        Project { id, name, region }
    }

    #[test]
    fn each_region_has_one_project() {
        let all = [
            project("p1", "default-project-a", "eu-north1"),
            project("p2", "research", "eu-north1"),
            project("p3", "only", "eu-west1"),
            project("p4", "one", "us-central1"),
            project("p5", "two", "us-central1"),
        ];
        let names = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let of = |ids: &[&str]| by_region(&all, &names(ids));
        let (chosen, wrong) = of(&[]);
        assert_eq!(wrong, None);
        let told: Vec<_> = chosen
            .iter()
            .map(|(region, id)| (&**region, id.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("eu-north1", Some("p1")),
                ("eu-west1", Some("p3")),
                ("us-central1", None)
            ]
        );
        assert_eq!(check(&chosen, &all, &names(&["eu-north1", "eu-west1"])), Ok(()));
        let fields = |regions: &[&str]| check(&chosen, &all, &names(regions)).unwrap_err().0;
        assert_eq!(fields(&[]), "regions");
        assert_eq!(fields(&["us-central1"]), "regions");
        assert_eq!(fields(&["nowhere"]), "regions");

        let (chosen, wrong) = of(&["p2", "p5"]);
        assert_eq!(wrong, None);
        assert_eq!(chosen.len(), 2);
        assert_eq!(chosen["eu-north1"].as_deref(), Some("p2"));
        assert_eq!(check(&chosen, &all, &[]), Ok(()));
        assert_eq!(of(&["p1", "p1"]).1, None);
        // The others are still used.
        let (chosen, wrong) = of(&["p9", "p3"]);
        assert_eq!(wrong.unwrap().0, "projects");
        assert_eq!(chosen, [("eu-west1".to_owned(), Some("p3".to_owned()))].into());
        let (chosen, wrong) = of(&["p1", "p2", "p3"]);
        assert_eq!(wrong.unwrap().0, "projects");
        assert_eq!(chosen["eu-north1"], None);
        assert_eq!(chosen["eu-west1"].as_deref(), Some("p3"));
        assert_eq!(of(&["p9"]).0, ByRegion::new());
    }
}
