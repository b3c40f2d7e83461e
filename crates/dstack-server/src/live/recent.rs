//! What was told last, in batches that are numbered. Pure.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use dstack_model::changes::{Changed, ChangedKind};
use dstack_units::ProjectId;
use uuid::Uuid;

/// Changes that are gathered at most. Beyond that, whoever follows reads everything again, which is less then.
pub(super) const MAX_GATHERED: usize = 2_000;

/// Changes that are kept, for those who were away.
const MAX_KEPT: usize = 20_000;

/// What is told together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) changed: BTreeSet<Changed>,
    /// Anything may have changed: more than is kept, or nobody knows what.
    pub(super) is_everything: bool,
    /// `None` among them: something that is of no project.
    pub(super) projects: HashSet<Option<ProjectId>>,
}

impl Batch {
    fn of(number: u64, gathered: Gathered) -> Self {
        let changed = gathered.changed;
        Self {
            number,
            is_everything: gathered.is_everything,
            projects: changed.iter().map(|one| one.project_id).collect(),
            changed,
        }
    }
}

/// What was told after a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// These batches; none: nothing.
    Batches(Vec<Arc<Batch>>),
    /// Nobody knows any more: everything is to be read again. The number is that of the last batch.
    Unknown(u64),
}

/// Runs whose output is told to other servers together.
const MAX_OUTPUT_FOR_OTHERS: usize = 200;

#[derive(Debug, Default)]
struct Gathered {
    changed: BTreeSet<Changed>,
    is_everything: bool,
}

impl Gathered {
    fn add(&mut self, changed: impl IntoIterator<Item = Changed>) {
        if !self.is_everything {
            self.changed.extend(changed);
            if self.changed.len() > MAX_GATHERED {
                self.lose_track();
            }
        }
    }

    fn lose_track(&mut self) {
        self.changed.clear();
        self.is_everything = true;
    }

    fn is_empty(&self) -> bool {
        self.changed.is_empty() && !self.is_everything
    }
}

#[derive(Debug)]
pub(super) struct Recent {
    /// Tells batches of this process from those of another: numbers begin anew with each.
    process: String,
    gathered: Gathered,
    /// The same, for servers that share the database; `None`: there are none.
    for_others: Option<Gathered>,
    /// Output that was stored, for them: some of them may have those who follow it.
    output_for_others: BTreeSet<Changed>,
    batches: VecDeque<Arc<Batch>>,
    /// Changes in all batches that are kept.
    kept: usize,
    /// Number of the last batch, the first being 1.
    last: u64,
}

impl Recent {
    pub(super) fn new(process: Uuid, is_shared: bool) -> Self {
        Self {
            process: process.simple().to_string(),
            gathered: Gathered::default(),
            for_others: is_shared.then(Gathered::default),
            output_for_others: BTreeSet::new(),
            batches: VecDeque::new(),
            kept: 0,
            last: 0,
        }
    }

    /// What this server has written.
    pub(super) fn add(&mut self, changed: BTreeSet<Changed>) {
        if let Some(for_others) = &mut self.for_others {
            for_others.add(changed.iter().copied());
        }
        self.gathered.add(changed);
    }

    /// Output was stored; `is_followed`: by somebody here. What is too much for others they find when they look by themselves.
    pub(super) fn add_output(&mut self, stored: Changed, is_followed: bool) {
        if is_followed {
            self.gathered.add([stored]);
        }
        if self.for_others.is_some() && self.output_for_others.len() < MAX_OUTPUT_FOR_OTHERS {
            self.output_for_others.insert(stored);
        }
    }

    /// What another server has.
    pub(super) fn hear(&mut self, changed: BTreeSet<Changed>) {
        self.gathered.add(changed);
    }

    /// Something may have been written of which nobody has told.
    pub(super) fn lose_track(&mut self) {
        self.gathered.lose_track();
    }

    /// What is to be told to others, once; an inner `None`: anything may have changed.
    pub(super) fn take_for_others(&mut self) -> Option<Option<BTreeSet<Changed>>> {
        let mut gathered = std::mem::take(self.for_others.as_mut()?);
        gathered.add(std::mem::take(&mut self.output_for_others));
        match gathered.is_empty() {
            true => None,
            false => Some((!gathered.is_everything).then_some(gathered.changed)),
        }
    }

    /// Makes a batch of what was gathered; `None`: nothing was.
    pub(super) fn close_batch(&mut self) -> Option<Arc<Batch>> {
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.is_empty() {
            return None;
        }
        self.last += 1;
        let batch = Arc::new(Batch::of(self.last, gathered));
        self.kept += batch.changed.len().max(1);
        self.batches.push_back(Arc::clone(&batch));
        while self.kept > MAX_KEPT
            && let Some(oldest) = self.batches.pop_front()
        {
            self.kept -= oldest.changed.len().max(1);
        }
        Some(batch)
    }

    pub(super) fn since(&self, number: u64) -> Since {
        if number == self.last {
            return Since::Batches(Vec::new());
        }
        let first = self.batches.front().map_or(self.last + 1, |batch| batch.number);
        if number > self.last || number + 1 < first {
            return Since::Unknown(self.last);
        }
        // Their numbers follow one another.
        let known = usize::try_from(number + 1 - first).unwrap_or(usize::MAX);
        let later: Vec<_> = self.batches.iter().skip(known).cloned().collect();
        match later.iter().any(|batch| batch.is_everything) {
            true => Since::Unknown(self.last),
            false => Since::Batches(later),
        }
    }

    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// How clients name a batch.
    pub(super) fn name(&self, number: u64) -> String {
        format!("{}-{number}", self.process)
    }

    /// The number of a batch that a client names; `None`: it is of another process, or nothing.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let (process, number) = name.split_once('-')?;
        (process == self.process).then(|| number.parse().ok()).flatten()
    }
}

/// Whether it is told to those only who follow one run.
pub(super) fn is_for_followers_of_run(changed: &Changed) -> bool {
    changed.kind == ChangedKind::Logs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(number: u128) -> Changed {
        Changed::of(
            ChangedKind::Run,
            ProjectId::from(Uuid::from_u128(1)),
            Uuid::from_u128(number),
        )
    }

    fn recent(is_shared: bool) -> Recent {
        Recent::new(Uuid::from_u128(7), is_shared)
    }

    fn told(recent: &mut Recent, ids: impl IntoIterator<Item = u128>) -> Option<Arc<Batch>> {
        recent.add(ids.into_iter().map(changed).collect());
        recent.close_batch()
    }

    #[test]
    fn who_was_away_hears_what_came_since() {
        let mut recent = recent(false);
        assert_eq!(recent.close_batch(), None, "nothing was gathered");
        let first = told(&mut recent, [1, 2, 1]).unwrap();
        assert_eq!((first.number, first.changed.len()), (1, 2));
        let second = told(&mut recent, [3]).unwrap();
        assert_eq!(
            recent.since(0),
            Since::Batches(vec![Arc::clone(&first), Arc::clone(&second)])
        );
        assert_eq!(recent.since(1), Since::Batches(vec![second]));
        assert_eq!(recent.since(2), Since::Batches(Vec::new()));
        assert_eq!(recent.since(3), Since::Unknown(2), "it is not there yet");
    }

    #[test]
    fn who_was_away_for_long_reads_everything() {
        let mut recent = recent(false);
        for batch in 0..30 {
            told(&mut recent, (0..1000).map(|one| batch * 1000 + one));
        }
        assert!(recent.kept <= MAX_KEPT);
        assert_eq!(recent.since(0), Since::Unknown(30));
        assert_eq!(recent.since(9), Since::Unknown(30));
        assert!(matches!(recent.since(10), Since::Batches(later) if later.len() == 20));
    }

    #[test]
    fn too_much_at_once_is_everything() {
        let mut recent = recent(true);
        let batch = told(&mut recent, 0..5000).unwrap();
        assert!(batch.is_everything && batch.changed.is_empty());
        assert_eq!(recent.since(0), Since::Unknown(1));
        assert_eq!(recent.take_for_others(), Some(None));
        assert_eq!(recent.take_for_others(), None, "it is told once");
        told(&mut recent, [1]);
        assert!(
            matches!(recent.since(1), Since::Batches(_)),
            "later ones are known"
        );
    }

    #[test]
    fn what_others_told_is_not_told_to_them() {
        let mut recent = recent(true);
        recent.hear(BTreeSet::from([changed(1)]));
        assert_eq!(recent.take_for_others(), None);
        recent.add(BTreeSet::from([changed(2)]));
        assert_eq!(recent.take_for_others(), Some(Some(BTreeSet::from([changed(2)]))));
        assert_eq!(recent.close_batch().unwrap().changed.len(), 2);
    }

    #[test]
    fn output_that_nobody_follows_here_is_told_to_others_alone_and_not_without_end() {
        let mut recent = recent(true);
        for run in 0..5_000 {
            let stored = Changed {
                kind: ChangedKind::Logs,
                ..changed(run)
            };
            recent.add_output(stored, run == 7);
        }
        assert_eq!(recent.close_batch().unwrap().changed.len(), 1);
        let told = recent.take_for_others().unwrap();
        assert_eq!(told.map(|told| told.len()), Some(MAX_OUTPUT_FOR_OTHERS));
    }

    #[test]
    fn clients_name_batches_of_this_process() {
        let recent = recent(false);
        assert_eq!(recent.number(&recent.name(12)), Some(12));
        assert_eq!(
            Recent::new(Uuid::from_u128(8), false).number(&recent.name(12)),
            None
        );
        for odd in ["", "-", "12", "a-b-c", "00000000000000000000000000000007-x"] {
            assert_eq!(recent.number(odd), None, "{odd}");
        }
    }
}
