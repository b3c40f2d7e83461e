//! Answers of `runs/list` that are still true: whoever watches runs asks for the same list again and again.

use std::collections::HashMap;

use axum::body::Bytes;
use dstack_store::Database;
use dstack_store::queries::Page;
use dstack_store::queries::views::RunFilter;
use dstack_system::Locked;

use super::runs::View;

/// What was asked for. Two callers who may see the same runs ask for the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) filter: RunFilter,
    pub(crate) page: Page,
    pub(crate) view: View,
}

/// Bytes of answers that are kept.
const KEPT_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Default)]
struct Kept {
    /// Writes before these answers were made: they end with the next one.
    writes: u64,
    answers: HashMap<Question, Bytes>,
    bytes: usize,
}

/// Answers since the last write to the database. Empty where other servers write, too.
#[derive(Debug, Default)]
pub struct RunLists(Locked<Kept>);

/// A moment between two writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(Option<u64>);

impl RunLists {
    /// To be taken before anything is read for an answer.
    pub(crate) fn moment(database: &Database) -> Moment {
        Moment(database.writes())
    }

    /// The answer, if nothing was written since it was made.
    pub(crate) fn find(&self, moment: Moment, question: &Question) -> Option<Bytes> {
        let kept = self.0.lock();
        match moment.0 {
            Some(writes) if writes == kept.writes => kept.answers.get(question).cloned(),
            _ => None,
        }
    }

    /// Keeps an answer made of what was read since the moment.
    pub(crate) fn keep(&self, moment: Moment, question: Question, answer: Bytes) {
        let mut kept = self.0.lock();
        let Some(writes) = moment.0.filter(|writes| *writes >= kept.writes) else {
            return;
        };
        if writes > kept.writes || kept.bytes + answer.len() > KEPT_BYTES {
            *kept = Kept {
                writes,
                ..Kept::default()
            };
        }
        if answer.len() <= KEPT_BYTES {
            kept.bytes += answer.len();
            if let Some(old) = kept.answers.insert(question, answer) {
                kept.bytes -= old.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(limit: i64) -> Question {
        Question {
            filter: RunFilter::default(),
            page: Page::newest(limit),
            view: View::single(),
        }
    }

    #[test]
    fn an_answer_is_good_until_the_next_write() {
        let lists = RunLists::default();
        let (one, two) = (Moment(Some(1)), Moment(Some(2)));
        lists.keep(one, question(5), Bytes::from_static(b"[1]"));
        assert_eq!(lists.find(one, &question(5)).unwrap(), "[1]");
        assert_eq!(lists.find(one, &question(6)), None);
        assert_eq!(lists.find(two, &question(5)), None);
        lists.keep(two, question(5), Bytes::from_static(b"[2]"));
        assert_eq!(lists.find(two, &question(5)).unwrap(), "[2]");
        // It was made of what was read before a write that others have seen.
        lists.keep(one, question(5), Bytes::from_static(b"[1]"));
        assert_eq!(lists.find(two, &question(5)).unwrap(), "[2]");
        assert_eq!(lists.find(one, &question(5)), None);
    }

    #[test]
    fn nothing_is_kept_where_others_write() {
        let lists = RunLists::default();
        lists.keep(Moment(None), question(5), Bytes::from_static(b"[1]"));
        assert_eq!(lists.find(Moment(None), &question(5)), None);
    }

    #[test]
    fn it_is_bounded() {
        let lists = RunLists::default();
        let moment = Moment(Some(1));
        for limit in 0..100 {
            lists.keep(moment, question(limit), Bytes::from(vec![b' '; KEPT_BYTES / 10]));
        }
        let bytes = lists.0.lock().bytes;
        assert!((1..=KEPT_BYTES).contains(&bytes), "{bytes}");
        lists.keep(moment, question(100), Bytes::from(vec![b' '; KEPT_BYTES + 1]));
        assert_eq!(lists.find(moment, &question(100)), None);
    }
}
