//! Texts at which an answer ends: Text Generation Inference sends them, OpenAI's API does not.

/// A text without the stop sequence at its end.
pub(super) fn without_stop<'t>(text: &'t str, stop: &[String]) -> &'t str {
    let stripped = stop.iter().filter(|stop| !stop.is_empty());
    stripped
        .filter_map(|stop| text.strip_suffix(stop.as_str()))
        .next()
        .unwrap_or(text)
}

/// Holds back what may turn out to be the beginning of a stop sequence.
#[derive(Debug)]
pub(super) struct StopFilter {
    stop: Vec<String>,
    held: String,
}

impl StopFilter {
    pub(super) fn new(stop: Vec<String>) -> Self {
        Self {
            stop,
            held: String::new(),
        }
    }

    /// What can be sent now.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let kept = self.held.split_off(self.begin_of_stop());
        std::mem::replace(&mut self.held, kept)
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        without_stop(&held, &self.stop).to_owned()
    }

    /// From where on the text is as stop sequences begin.
    fn begin_of_stop(&self) -> usize {
        let places = self.held.char_indices().map(|(at, _)| at);
        let is_begin = |at: &usize| {
            let rest = self.held.get(*at..).unwrap_or_default();
            self.stop.iter().any(|stop| stop.starts_with(rest))
        };
        places.into_iter().find(is_begin).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(stop: &[&str]) -> StopFilter {
        StopFilter::new(stop.iter().map(|stop| (*stop).to_owned()).collect())
    }

    #[test]
    fn what_may_be_a_stop_sequence_waits() {
        let mut filter = filter(&["</s>", "\n\nUser:"]);
        assert_eq!(filter.push("Hello"), "Hello");
        assert_eq!(filter.push(" a < b\n"), " a < b");
        assert_eq!(filter.push("\nUs"), "");
        assert_eq!(filter.push("é"), "\n\nUsé");
        assert_eq!(filter.push("</"), "");
        assert_eq!(filter.push("s>"), "");
        assert_eq!(filter.finish(), "");
    }

    #[test]
    fn what_was_held_comes_when_the_answer_ends_otherwise() {
        let mut filter = filter(&["", "stop"]);
        assert_eq!(filter.push("non st"), "non ");
        assert_eq!(filter.finish(), "st");
        assert_eq!(filter.push("a stop"), "a ");
        assert_eq!(filter.finish(), "", "an empty one ends nothing");
    }

    proptest! {
        #[test]
        fn a_streamed_answer_is_the_whole_one(
            tokens in proptest::collection::vec("[ab]{1,3}", 0..12),
            stop in proptest::collection::vec("[ab]{1,4}", 0..3),
        ) {
            let mut filter = StopFilter::new(stop.clone());
            let mut streamed: String = tokens.iter().map(|token| filter.push(token)).collect();
            streamed += &filter.finish();
            let whole = tokens.concat();
            prop_assert_eq!(streamed, without_stop(&whole, &stop));
        }
    }
}
