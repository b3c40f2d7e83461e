//! Reading nextest's JUnit report: how tests ended, and what skipped tests said.

use crate::report::Tally;

/// Reads a report. Only what nextest writes is understood; this is no general XML parser.
pub(crate) fn read(xml: &str) -> Tally {
    let mut tally = Tally::default();
    for case in cases(xml) {
        let (head, body) = case.split_once('>').unwrap_or((case, ""));
        let name = format!("{} {}", attribute(head, "classname"), attribute(head, "name"));
        if body.contains("<failure") || body.contains("<error") || body.contains("<flakyFailure") {
            tally.fail(name);
        } else if let Some(reason) = skip_reason(&unescape(body)) {
            tally.skip(name, reason);
        } else {
            tally.passed += 1;
        }
    }
    tally
}

/// The text of each `<testcase ...>...</testcase>`.
fn cases(xml: &str) -> impl Iterator<Item = &str> {
    xml.split("<testcase ")
        .skip(1)
        .map(|rest| rest.split("</testcase>").next().unwrap_or(rest))
}

fn attribute(head: &str, name: &str) -> String {
    let start = format!("{name}=\"");
    let value = head
        .split_whitespace()
        .find_map(|part| part.strip_prefix(&start))
        .and_then(|rest| rest.split('"').next())
        .unwrap_or_default();
    unescape(value)
}

/// What a test that could not run says in its output: a line that starts with `skipped:` or `skip:`.
pub(crate) fn skip_reason(output: &str) -> Option<String> {
    output.lines().find_map(|line| {
        // The tag that holds the output stands at the beginning of its first line.
        let text = line
            .rsplit_once("<system-err>")
            .or(line.rsplit_once("<system-out>"))
            .map_or(line, |p| p.1);
        let text = text.trim();
        let (word, reason) = text.split_once(':')?;
        let word = word.to_ascii_lowercase();
        (word == "skipped" || word == "skip").then(|| reason.trim().to_owned())
    })
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1" errors="0" uuid="1" timestamp="t" time="0.1">
    <testsuite name="a" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="tests::good" classname="a" timestamp="t" time="0.003">
            <system-out>
running 1 test
test tests::good ... ok
</system-out>
        </testcase>
        <testcase name="tests::absent" classname="a" timestamp="t" time="0.003">
            <system-out>running 1 test
</system-out>
            <system-err>skipped: no container engine &amp; no root
</system-err>
        </testcase>
        <testcase name="tests::quiet" classname="a" timestamp="t" time="0.003"/>
        <testcase name="tests::bad" classname="a" timestamp="t" time="0.003">
            <failure message="thread &apos;bad&apos;" type="test failure">skipped: not me</failure>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn counts_each_kind_of_end() {
        let tally = read(REPORT);
        assert_eq!(tally.passed, 2);
        assert_eq!(tally.failed, vec!["a tests::bad"]);
        assert_eq!(
            tally.skipped,
            vec![(
                "a tests::absent".to_owned(),
                "no container engine & no root".to_owned()
            )]
        );
    }

    #[test]
    fn a_test_that_only_mentions_skipping_is_not_skipped() {
        assert_eq!(skip_reason("we skipped: three\nall good"), None);
        assert_eq!(skip_reason("SKIP: no root").as_deref(), Some("no root"));
    }
}
