//! What replicas tell of themselves on their pages in the text format of Prometheus (its documentation, "Exposition formats").

use std::collections::VecDeque;
use std::time::Duration;

use super::signals::{Observed, Times};

/// A page tells how its replica is for so long.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// Pages of one replica that are remembered: those of the longest window, and one before.
const MAX_PAGES: usize = 40;

/// Requests that wait in a replica, as vLLM, SGLang and Text Generation Inference name them.
const QUEUES: [&str; 3] = [
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "tgi_queue_size",
];

/// Histograms of the time until the first token, in seconds, of vLLM and SGLang.
const FIRST_TOKENS: [&str; 2] = [
    "vllm:time_to_first_token_seconds",
    "sglang:time_to_first_token_seconds",
];

/// What is looked at of a page.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Page {
    /// Requests that wait; `None`: it does not say.
    pub queue: Option<f64>,
    /// Times until the first token since the replica began; `None`: it does not say.
    pub first_tokens: Option<Times>,
}

impl Page {
    /// Reads a page; of several models and engines all together. What cannot be read is left out.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let (mut seconds, mut count): (Option<f64>, Option<u64>) = (None, None);
        for (name, value) in text.lines().filter_map(sample) {
            let is_of = |suffix: &str| {
                let name = name.strip_suffix(suffix);
                name.is_some_and(|name| FIRST_TOKENS.contains(&name))
            };
            if QUEUES.contains(&name) {
                page.queue = Some(page.queue.unwrap_or(0.0) + value);
            } else if is_of("_sum") {
                seconds = Some(seconds.unwrap_or(0.0) + value);
            } else if is_of("_count") {
                count = Some(count.unwrap_or(0).saturating_add(whole(value)));
            }
        }
        page.first_tokens = count
            .zip(seconds)
            .map(|(count, seconds)| Times { count, seconds });
        page
    }
}

/// Name and value of a line; `None`: it has none, or one that is no number of anything.
fn sample(line: &str) -> Option<(&str, f64)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at_checked(end)?;
    let rest = match rest.strip_prefix('{') {
        Some(labels) => after_labels(labels)?,
        None => rest,
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((name, value))
}

/// What follows the brace that closes labels; one in a quoted value does not.
fn after_labels(text: &str) -> Option<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '}' if !is_quoted => return text.get(at + 1..),
            _ => {}
        }
    }
    None
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates, and is not negative
const fn whole(value: f64) -> u64 {
    value as u64
}

/// The last pages of one replica. Times are those since any beginning.
#[derive(Debug, Default)]
pub struct History(VecDeque<(Duration, Page)>);

impl History {
    /// A page was read. Of a replica that has begun anew, what it said before counts no more.
    pub fn note(&mut self, at: Duration, page: Page) {
        let before = self.0.back().and_then(|(_, page)| page.first_tokens);
        let has_begun_anew = before.is_some_and(|before| {
            let is_less = |now: Times| now.count < before.count || now.seconds < before.seconds;
            page.first_tokens.is_none_or(is_less)
        });
        if has_begun_anew {
            self.0.clear();
        }
        self.0.push_back((at, page));
        while self.0.len() > MAX_PAGES {
            self.0.pop_front();
        }
    }

    fn fresh(&self, now: Duration) -> Option<Page> {
        let (at, page) = self.0.back()?;
        (now <= *at + FRESH_FOR).then_some(*page)
    }

    /// Requests that wait there now.
    fn queue(&self, now: Duration) -> Option<f64> {
        self.fresh(now)?.queue
    }

    /// Times until the first token within the last `window`, as far as pages were read in it.
    fn first_tokens(&self, now: Duration, window: Duration) -> Option<Times> {
        let last = self.fresh(now)?.first_tokens?;
        let since = now.saturating_sub(window);
        let mut latest_first = self.0.iter().rev();
        let first = latest_first
            .find(|(at, _)| *at <= since)
            .or_else(|| self.0.front());
        let first = first.and_then(|(_, page)| page.first_tokens)?;
        Some(Times {
            count: last.count.saturating_sub(first.count),
            seconds: last.seconds - first.seconds,
        })
    }
}

/// What replicas tell together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// Requests that wait in all of them.
    pub queue: Observed,
    /// Times until the first token within the window; `None`: one of them does not say.
    pub first_tokens: Option<Times>,
}

/// Nothing is told.
impl Default for Told {
    fn default() -> Self {
        Self {
            queue: Observed::UNKNOWN,
            first_tokens: None,
        }
    }
}

/// What these replicas tell together; `None` for one of which no page was read.
pub fn told<'h>(
    replicas: impl Iterator<Item = Option<&'h History>> + Clone,
    now: Duration,
    window: Duration,
) -> Told {
    if replicas.clone().next().is_none() {
        return Told::default();
    }
    let queue = replicas.clone().map(|history| {
        let queue = history.and_then(|history| history.queue(now));
        queue.map_or(Observed::UNKNOWN, Observed::Is)
    });
    let mut first_tokens = replicas.map(|history| history?.first_tokens(now, window));
    Told {
        queue: queue.fold(Observed::Is(0.0), Observed::plus),
        first_tokens: first_tokens.try_fold(Times::default(), |sum, times| Some(sum.plus(times?))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn pages_of_the_known_servers_are_read() {
        let vllm = r#"# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a\"}{b"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a\"}{b"} 4 1700000000000
vllm:num_requests_running{engine="0",model_name="m"} 100.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 7.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 8.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.5
"#;
        let times = |count, seconds| Some(Times { count, seconds });
        let page = |queue, first_tokens| Page { queue, first_tokens };
        assert_eq!(Page::read(vllm), page(Some(7.0), times(8, 2.5)));
        let sglang = "sglang:num_queue_reqs{model_name=\"m\"} 2\nsglang:time_to_first_token_seconds_sum{} 1e1\n\
                      sglang:time_to_first_token_seconds_count{} 20";
        assert_eq!(Page::read(sglang), page(Some(2.0), times(20, 10.0)));
        assert_eq!(
            Page::read("tgi_queue_size 5\ntgi_batch_current_size 9\n"),
            page(Some(5.0), None)
        );
    }

    #[test]
    fn what_is_no_number_is_not_told() {
        for text in [
            "",
            "<html>vllm:num_requests_waiting 1</html>",
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting NaN",
            "vllm:num_requests_waiting -1",
            "vllm:num_requests_waiting{a=\"b\" 1",
            "#vllm:num_requests_waiting 1",
            "vllm:num_requests_waiting_total 1",
            "vllm:time_to_first_token_seconds_sum 1",
        ] {
            assert_eq!(Page::read(text), Page::default(), "{text}");
        }
    }

    fn page(queue: f64, count: u64, seconds: f64) -> Page {
        Page {
            queue: Some(queue),
            first_tokens: Some(Times { count, seconds }),
        }
    }

    #[test]
    fn times_are_those_of_the_window() {
        let mut history = History::default();
        for (at, count, seconds) in [(0, 100, 10.0), (30, 110, 20.0), (60, 120, 40.0), (90, 130, 70.0)] {
            history.note(at * SECOND, page(1.0, count, seconds));
        }
        let of = |history: &History, now: u32, window: u32| {
            let times = history.first_tokens(now * SECOND, window * SECOND);
            times.map(|times| (times.count, times.seconds))
        };
        assert_eq!(of(&history, 90, 60), Some((20, 50.0)));
        assert_eq!(of(&history, 95, 60), Some((20, 50.0)));
        assert_eq!(
            of(&history, 90, 300),
            Some((30, 60.0)),
            "as far as pages were read"
        );
        assert_eq!(of(&history, 121, 60), None, "it is silent");
        history.note(100 * SECOND, page(1.0, 3, 1.0));
        assert_eq!(of(&history, 100, 60), Some((0, 0.0)), "it has begun anew");
        history.note(110 * SECOND, page(1.0, 5, 2.0));
        assert_eq!(of(&history, 110, 60), Some((2, 1.0)));
    }

    #[test]
    fn one_that_tells_nothing_makes_the_sum_at_least_what_is_known() {
        let (mut one, mut other) = (History::default(), History::default());
        one.note(SECOND, page(2.0, 10, 1.0));
        one.note(10 * SECOND, page(3.0, 20, 3.0));
        other.note(
            10 * SECOND,
            Page {
                queue: Some(4.0),
                ..Page::default()
            },
        );
        let told =
            |all: &[Option<&History>], now: u32| super::told(all.iter().copied(), now * SECOND, WINDOW);
        let times = Times {
            count: 10,
            seconds: 2.0,
        };
        assert_eq!(
            told(&[Some(&one)], 10),
            Told {
                queue: Observed::Is(3.0),
                first_tokens: Some(times)
            }
        );
        assert_eq!(
            told(&[Some(&one), Some(&other)], 10),
            Told {
                queue: Observed::Is(7.0),
                first_tokens: None
            }
        );
        assert_eq!(told(&[Some(&one), None], 10).queue, Observed::AtLeast(3.0));
        assert_eq!(told(&[Some(&one)], 41), Told::default(), "it is silent");
        assert_eq!(told(&[], 10), Told::default());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read(text in "[ -~\n]{0,200}", more in r#"vllm:num_requests_waiting[{}"\\a ]{0,9}[0-9.e+-]{0,9}"#) {
            let page = Page::read(&format!("{text}\n{more}"));
            prop_assert!(page.queue.is_none_or(f64::is_finite));
        }
    }
}
