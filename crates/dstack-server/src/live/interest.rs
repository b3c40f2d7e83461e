//! Of which changes a follower is told. Pure.

use std::collections::HashSet;

use dstack_model::changes::{Changed, ChangedKind};
use dstack_units::{FleetId, ProjectId, RunId, UserId};

use super::recent::{Batch, is_for_followers_of_run};

/// What the caller may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// Administrators: everything.
    Server,
    /// What these projects have.
    Projects(HashSet<ProjectId>),
}

impl Scope {
    fn has(&self, project: ProjectId) -> bool {
        match self {
            Self::Server => true,
            Self::Projects(projects) => projects.contains(&project),
        }
    }
}

/// What a follower wants to hear of, and may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) user: UserId,
    pub(super) scope: Scope,
    /// Only things of this project.
    pub(super) project: Option<ProjectId>,
    /// Of runs only this, and neither instances, fleets, volumes nor gateways.
    pub(super) run: Option<RunId>,
    /// Of fleets only this, with its instances, and neither runs, volumes nor gateways.
    pub(super) fleet: Option<FleetId>,
}

impl Interest {
    /// Whether something of the batch may concern the follower: quick, and never wrongly no.
    pub(super) fn may_concern(&self, batch: &Batch) -> bool {
        if batch.is_everything || batch.projects.contains(&None) {
            return true;
        }
        match (self.project, &self.scope) {
            (Some(project), _) => batch.projects.contains(&Some(project)),
            (None, Scope::Server) => true,
            (None, Scope::Projects(projects)) => match projects.len() < batch.projects.len() {
                true => projects
                    .iter()
                    .any(|project| batch.projects.contains(&Some(*project))),
                false => batch
                    .projects
                    .iter()
                    .flatten()
                    .any(|project| projects.contains(project)),
            },
        }
    }

    /// Whether the follower is told of it.
    pub(super) fn admits(&self, changed: &Changed) -> bool {
        self.may_see(changed) && self.wants(changed)
    }

    fn may_see(&self, changed: &Changed) -> bool {
        match (changed.project_id, changed.kind) {
            (Some(project), _) => self.scope.has(project),
            (None, ChangedKind::User) => {
                let is_own = changed.id == Some(self.user.uuid());
                self.scope == Scope::Server || is_own || changed.id.is_none()
            }
            // Of which projects, the change does not say; that something happened is all that it says.
            (None, _) => true,
        }
    }

    fn wants(&self, changed: &Changed) -> bool {
        if let (Some(wanted), Some(project)) = (self.project, changed.project_id)
            && wanted != project
        {
            return false;
        }
        if is_for_followers_of_run(changed) {
            return self.run.map(RunId::uuid) == changed.id;
        }
        let is_filtered = self.run.is_some() || self.fleet.is_some();
        // Whoever shows one thing shows who one is, and where, as well.
        let is_of_all = matches!(
            changed.kind,
            ChangedKind::Event | ChangedKind::User | ChangedKind::Project
        );
        if !is_filtered || is_of_all {
            return true;
        }
        match changed.kind {
            ChangedKind::Run => self.run.is_some() && self.run.map(RunId::uuid) == changed.id,
            ChangedKind::Fleet => self.fleet.is_some() && self.fleet.map(FleetId::uuid) == changed.id,
            ChangedKind::Instance => self.fleet.is_some() && self.fleet == changed.fleet_id,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;
    use crate::live::recent::Recent;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn member(projects: &[u128]) -> Interest {
        Interest {
            user: id(100).into(),
            scope: Scope::Projects(projects.iter().map(|one| id(*one).into()).collect()),
            project: None,
            run: None,
            fleet: None,
        }
    }

    fn changed(kind: ChangedKind, project: u128, number: u128) -> Changed {
        Changed::of(kind, id(project).into(), id(number))
    }

    fn instance(project: u128, fleet: u128) -> Changed {
        Changed {
            fleet_id: Some(id(fleet).into()),
            ..changed(ChangedKind::Instance, project, 50)
        }
    }

    fn of_no_project(kind: ChangedKind, number: Option<u128>) -> Changed {
        Changed {
            kind,
            id: number.map(id),
            project_id: None,
            fleet_id: None,
        }
    }

    #[test]
    fn nobody_hears_of_projects_and_users_that_they_do_not_see() {
        let one = member(&[1]);
        assert!(one.admits(&changed(ChangedKind::Run, 1, 5)));
        assert!(!one.admits(&changed(ChangedKind::Run, 2, 5)));
        assert!(!one.admits(&changed(ChangedKind::Project, 2, 2)));
        assert!(one.admits(&of_no_project(ChangedKind::User, Some(100))));
        assert!(!one.admits(&of_no_project(ChangedKind::User, Some(101))));
        let admin = Interest {
            scope: Scope::Server,
            ..member(&[])
        };
        assert!(admin.admits(&changed(ChangedKind::Run, 2, 5)));
        assert!(admin.admits(&of_no_project(ChangedKind::User, Some(101))));
        let asks_for_another = Interest {
            project: Some(id(2).into()),
            ..member(&[1])
        };
        assert!(!asks_for_another.admits(&changed(ChangedKind::Run, 2, 5)));
        assert!(!asks_for_another.admits(&changed(ChangedKind::Run, 1, 5)));
    }

    #[test]
    fn who_asks_for_a_run_hears_of_it_alone_and_of_its_output() {
        let run = Interest {
            run: Some(id(5).into()),
            ..member(&[1])
        };
        assert!(run.admits(&changed(ChangedKind::Run, 1, 5)));
        assert!(run.admits(&changed(ChangedKind::Logs, 1, 5)));
        assert!(!run.admits(&changed(ChangedKind::Run, 1, 6)));
        assert!(!run.admits(&changed(ChangedKind::Logs, 1, 6)));
        assert!(!run.admits(&instance(1, 9)));
        assert!(run.admits(&changed(ChangedKind::Event, 1, 0)));
        assert!(
            !member(&[1]).admits(&changed(ChangedKind::Logs, 1, 5)),
            "output is for those who asked for its run"
        );
        let foreign = Interest {
            run: Some(id(5).into()),
            ..member(&[2])
        };
        assert!(!foreign.admits(&changed(ChangedKind::Logs, 1, 5)));
    }

    #[test]
    fn who_asks_for_a_fleet_hears_of_its_instances() {
        let fleet = Interest {
            fleet: Some(id(9).into()),
            ..member(&[1])
        };
        assert!(fleet.admits(&changed(ChangedKind::Fleet, 1, 9)));
        assert!(fleet.admits(&instance(1, 9)));
        assert!(!fleet.admits(&instance(1, 8)));
        assert!(!fleet.admits(&changed(ChangedKind::Run, 1, 5)));
    }

    #[test]
    fn who_is_told_of_something_is_woken_for_it() {
        let kinds = ChangedKind::ALL;
        let interests = [
            member(&[]),
            member(&[1]),
            member(&[2, 3, 4, 5, 6, 7]),
            Interest {
                scope: Scope::Server,
                ..member(&[])
            },
            Interest {
                project: Some(id(2).into()),
                ..member(&[1, 2])
            },
            Interest {
                run: Some(id(5).into()),
                ..member(&[1])
            },
        ];
        let mut admitted = 0;
        for kind in kinds {
            for project in 0..4 {
                let one = match project {
                    0 => of_no_project(*kind, Some(5)),
                    project => changed(*kind, project, 5),
                };
                let mut recent = Recent::new(id(0), false);
                recent.add(BTreeSet::from([one]));
                let batch = recent.close_batch().unwrap();
                for interest in &interests {
                    if interest.admits(&one) {
                        admitted += 1;
                        assert!(interest.may_concern(&batch), "{interest:?} {one:?}");
                    }
                }
            }
        }
        assert!(admitted > 50, "{admitted}");
    }
}
