//! Which replicas have seen which beginnings of prompts. Pure, and bounded: what was not seen for longest is forgotten.

use std::collections::HashMap;

use dstack_units::JobId;

use super::prompt::Prompt;

/// Bytes that the prompts of one service may take here.
const MAX_BYTES: usize = 16 << 20;

/// Bytes that a block takes: the key and the entry, in a table that is between half and almost full.
const BLOCK_BYTES: usize = 200;

/// Replicas that are remembered of a block: those that had it last.
const MAX_OWNERS: usize = 4;

/// The blocks of prompts.
#[derive(Debug)]
pub(super) struct Memory {
    blocks: HashMap<u64, Block>,
    most: usize,
    /// Prompts that were noted.
    noted: u64,
}

/// A block that some replicas have seen, with all that came before it.
#[derive(Debug)]
struct Block {
    /// The last one first.
    owners: [Option<JobId>; MAX_OWNERS],
    /// When it was seen last, in prompts.
    seen: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            most: MAX_BYTES / BLOCK_BYTES,
            noted: 0,
        }
    }
}

impl Memory {
    /// A replica gets a prompt.
    pub(super) fn note(&mut self, prompt: &Prompt, replica: JobId) {
        self.noted += 1;
        for block in prompt.blocks() {
            let block = self.blocks.entry(*block).or_insert(Block {
                owners: [None; MAX_OWNERS],
                seen: 0,
            });
            block.seen = self.noted;
            let before = block.owners.iter().position(|owner| *owner == Some(replica));
            let upto = before.unwrap_or(MAX_OWNERS - 1);
            if let Some(moved) = block.owners.get_mut(..=upto) {
                moved.rotate_right(1);
            }
            if let Some(first) = block.owners.first_mut() {
                *first = Some(replica);
            }
        }
        if self.blocks.len() > self.most {
            self.forget_oldest();
        }
    }

    /// The replica did not answer a prompt: it may have computed nothing of it.
    pub(super) fn forget(&mut self, prompt: &Prompt, replica: JobId) {
        for block in prompt.blocks() {
            let Some(block) = self.blocks.get_mut(block) else {
                continue;
            };
            let mut left = block.owners.iter().flatten().filter(|owner| **owner != replica);
            block.owners = std::array::from_fn(|_| left.next().copied());
        }
    }

    /// Of the blocks of a prompt that were seen, with all before them, the last one whose replicas `choose` something: that. At least
    /// half of the prompt is to have been seen: for less, as for a short beginning that all prompts have, no replica is to be busier
    /// than others.
    pub(super) fn longest<T>(
        &self,
        prompt: &Prompt,
        choose: impl Fn(&mut dyn Iterator<Item = JobId>) -> Option<T>,
    ) -> Option<T> {
        let seen = prompt.blocks().iter().map_while(|block| self.blocks.get(block));
        let seen: Vec<&Block> = seen.collect();
        let too_short = prompt.blocks().len().div_ceil(2).saturating_sub(1);
        let mut longest_first = seen.into_iter().skip(too_short).rev();
        longest_first.find_map(|block| choose(&mut block.owners.iter().flatten().copied()))
    }

    /// At least a quarter of all blocks.
    fn forget_oldest(&mut self) {
        let mut seen: Vec<u64> = self.blocks.values().map(|block| block.seen).collect();
        let quarter = seen.len() / 4;
        let (_, last, _) = seen.select_nth_unstable(quarter);
        let last = *last;
        self.blocks.retain(|_, block| block.seen > last);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::prompt::BLOCK;
    use super::*;

    fn job(number: u128) -> JobId {
        JobId::new(Uuid::from_u128(number))
    }

    fn prompt(text: &str) -> Prompt {
        let body = serde_json::json!({"model": "m", "prompt": text}).to_string();
        Prompt::read(body.as_bytes()).unwrap()
    }

    fn owners(memory: &Memory, prompt: &Prompt) -> Option<Vec<JobId>> {
        memory.longest(prompt, |owners| Some(owners.collect()))
    }

    #[test]
    fn the_last_owners_come_first_and_only_some_are_remembered() {
        let mut memory = Memory::default();
        let same = prompt(&"a".repeat(BLOCK * 3));
        for number in [1, 2, 3, 2, 4, 5] {
            memory.note(&same, job(number));
        }
        assert_eq!(owners(&memory, &same), Some([5, 4, 2, 3].map(job).to_vec()));
    }

    #[test]
    fn the_longest_beginning_counts() {
        let mut memory = Memory::default();
        let begin = "a".repeat(BLOCK * 4);
        memory.note(&prompt(&begin), job(1));
        memory.note(&prompt(&format!("{begin}{}", "b".repeat(BLOCK * 2))), job(2));
        let of = |end: &str| owners(&memory, &prompt(&format!("{begin}{end}")));
        assert_eq!(of(&"b".repeat(BLOCK * 6)), Some(vec![job(2)]));
        assert_eq!(of(&"c".repeat(BLOCK * 4)), Some(vec![job(2), job(1)]));
        assert_eq!(of(&"c".repeat(BLOCK * 5)), None, "most of it is new");
        assert_eq!(owners(&memory, &prompt(&"z".repeat(BLOCK * 9))), None);
        // One that may not get it leaves it to one that has seen less.
        let chosen = memory.longest(&prompt(&format!("{begin}{}", "b".repeat(BLOCK * 2))), |owners| {
            let owners: Vec<JobId> = owners.collect();
            owners.contains(&job(1)).then(|| job(1))
        });
        assert_eq!(chosen, Some(job(1)));
    }

    #[test]
    fn who_did_not_answer_has_not_seen_it() {
        let mut memory = Memory::default();
        let same = prompt(&"a".repeat(BLOCK * 3));
        for number in [1, 2, 3] {
            memory.note(&same, job(number));
        }
        memory.forget(&same, job(2));
        assert_eq!(owners(&memory, &same), Some([3, 1].map(job).to_vec()));
    }

    #[test]
    fn what_was_not_seen_for_longest_is_forgotten() {
        let mut memory = Memory {
            most: 100,
            ..Memory::default()
        };
        let of = |number: usize| prompt(&format!("{number} ").repeat(BLOCK * 5));
        for number in 0..1000 {
            memory.note(&of(number), job(1));
            memory.note(&of(0), job(2));
            assert!(memory.blocks.len() <= 100);
        }
        assert!(owners(&memory, &of(0)).is_some() && owners(&memory, &of(999)).is_some());
        assert_eq!(owners(&memory, &of(1)), None);
    }

    #[test]
    fn a_block_takes_no_more_than_is_accounted_for() {
        // Tables grow to twice their size.
        assert!(2 * (size_of::<(u64, Block)>() + 1) <= BLOCK_BYTES);
    }
}
