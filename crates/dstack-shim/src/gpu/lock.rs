//! Which GPUs are taken.

use std::collections::BTreeSet;

/// Fewer GPUs are free than were asked for. The text is dstack 0.22.5's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no capacity: {requested} GPUs requested, {available} available")]
pub struct NoCapacity {
    /// Number of GPUs that were asked for.
    pub requested: i64,
    /// Number of GPUs that were free.
    pub available: usize,
}

/// The lock table: each GPU belongs to at most one task.
#[derive(Debug, Clone, Default)]
pub struct GpuLock {
    // In host order.
    ids: Vec<String>,
    busy: BTreeSet<String>,
}

impl GpuLock {
    /// All free; `ids` in host order.
    pub fn new(ids: Vec<String>) -> Self {
        Self {
            ids,
            busy: BTreeSet::new(),
        }
    }

    /// Takes `wanted` free GPUs in host order, or none at all; -1 takes every free one and never fails.
    pub fn acquire(&mut self, wanted: i64) -> Result<Vec<String>, NoCapacity> {
        let free: Vec<String> = self
            .ids
            .iter()
            .filter(|id| !self.busy.contains(*id))
            .cloned()
            .collect();
        let count = match usize::try_from(wanted) {
            Ok(count) if count > free.len() => {
                return Err(NoCapacity {
                    requested: wanted,
                    available: free.len(),
                });
            }
            Ok(count) => count,
            Err(_) => free.len(),
        };
        let taken: Vec<String> = free.into_iter().take(count).collect();
        self.busy.extend(taken.iter().cloned());
        Ok(taken)
    }

    /// Takes particular GPUs (of a container found at start): only those known and free; returns them.
    pub fn claim(&mut self, ids: &[String]) -> Vec<String> {
        ids.iter()
            .filter(|id| self.ids.contains(id) && self.busy.insert((*id).clone()))
            .cloned()
            .collect()
    }

    /// Gives GPUs back.
    pub fn release(&mut self, ids: &[String]) {
        for id in ids {
            self.busy.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lock(count: usize) -> GpuLock {
        GpuLock::new((0..count).map(|index| index.to_string()).collect())
    }

    #[test]
    fn all_or_nothing_in_host_order() {
        let mut gpus = lock(4);
        assert_eq!(gpus.acquire(0).unwrap(), Vec::<String>::new());
        assert_eq!(gpus.acquire(2).unwrap(), ["0", "1"]);
        let refused = gpus.acquire(3).unwrap_err();
        assert_eq!(refused.to_string(), "no capacity: 3 GPUs requested, 2 available");
        assert_eq!(gpus.acquire(-1).unwrap(), ["2", "3"]);
        assert_eq!(gpus.acquire(-1).unwrap(), Vec::<String>::new());
        gpus.release(&["1".into()]);
        assert_eq!(gpus.claim(&["0".into(), "1".into(), "9".into()]), ["1"]);
    }

    proptest! {
        /// Whatever is taken and given back, no GPU is ever held twice.
        #[test]
        fn no_gpu_is_held_twice(steps in proptest::collection::vec((any::<bool>(), -1i64..5), 0..60)) {
            let mut gpus = lock(4);
            let mut held: Vec<Vec<String>> = Vec::new();
            for (take, count) in steps {
                if take {
                    if let Ok(ids) = gpus.acquire(count) { held.push(ids); }
                } else if let Some(ids) = held.pop() {
                    gpus.release(&ids);
                }
                let mut all: Vec<&String> = held.iter().flatten().collect();
                let before = all.len();
                all.sort();
                all.dedup();
                prop_assert_eq!(all.len(), before);
            }
        }
    }
}
