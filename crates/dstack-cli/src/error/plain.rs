//! Messages of servers in plain words. The API keeps the words of dstack 0.22.5, through which its programming language shows.

use std::io::ErrorKind;

/// Returns the message as people would write it.
pub(crate) fn plain_words(message: &str) -> String {
    let lines: Vec<String> = message.split('\n').map(plain_line).collect();
    lines.join("\n")
}

/// Words of the argument parser and of number parsers, and ours. A text that ends in a space is followed by what was
/// meant, up to the end of the line.
const PARSER_WORDS: [(&str, &str); 9] = [
    ("a similar value exists: ", "did you mean "),
    ("a similar argument exists: ", "did you mean "),
    ("a similar subcommand exists: ", "did you mean "),
    ("some similar values exist: ", "did you mean "),
    ("some similar arguments exist: ", "did you mean "),
    ("some similar subcommands exist: ", "did you mean "),
    ("invalid float literal", "not a number"),
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "not a whole number"),
];

/// Returns the argument parser's message as people would write it.
pub(crate) fn plain_usage(message: &str) -> String {
    let plain = |line: &str| {
        let line = plain_line(line);
        match PARSER_WORDS.iter().find(|(theirs, _)| line.contains(theirs)) {
            Some((theirs, ours)) if theirs.ends_with(' ') => format!("{}?", line.replace(theirs, ours)),
            Some((theirs, ours)) => line.replace(theirs, ours),
            None => line,
        }
    };
    let lines: Vec<String> = message.split('\n').map(plain).collect();
    lines.join("\n")
}

fn plain_line(line: &str) -> String {
    let line = plain_lists(line);
    let line = match line.split_once("could not convert string to float: ") {
        Some((before, value)) => format!("{before}{value} is not a number"),
        None => line,
    };
    if line.contains("Cannot parse the duration ") {
        return format!("{line} (durations are written 30s, 5m, 2h, 3d or 1w)");
    }
    match line.strip_suffix("{1,200}$") {
        Some(before) => format!("{before}{{1,200}}$'"),
        None => line,
    }
}

/// What the system says, without its number: `Connection refused (os error 111)`.
pub(crate) fn without_number(message: &str) -> String {
    match message.split_once(" (os error ") {
        Some((before, after)) => {
            let after = after.split_once(')').map_or("", |(_, after)| after);
            format!("{before}{after}")
        }
        None => message.to_owned(),
    }
}

/// Why a file cannot be used.
pub(crate) fn of_io(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::IsADirectory => "it is a directory".to_owned(),
        ErrorKind::InvalidData => "it is not a text file".to_owned(),
        kind => kind.to_string(),
    }
}

/// `['a', 'b']` becomes `a, b`; an empty list `none`.
fn plain_lists(message: &str) -> String {
    let mut plain = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(start) = rest.find("['").or_else(|| rest.find("[]")) {
        let (before, list) = rest.split_at(start);
        let Some((names, after)) = list.trim_start_matches('[').split_once(']') else {
            break;
        };
        let names: Vec<&str> = names
            .split(", ")
            .map(|name| name.trim_matches('\''))
            .filter(|name| !name.is_empty())
            .collect();
        plain.push_str(before);
        match names.as_slice() {
            [] => plain.push_str("none"),
            names => plain.push_str(&names.join(", ")),
        }
        rest = after;
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_quoted_without_its_numbers() {
        assert_eq!(
            without_number("Connection refused (os error 111)"),
            "Connection refused"
        );
        assert_eq!(without_number("x (os error 2): y"), "x: y");
        assert_eq!(without_number("plain"), "plain");
        assert_eq!(of_io(ErrorKind::NotFound), "there is no such file");
    }

    #[test]
    fn no_other_language_shows() {
        for (said, shown) in [
            ("Available backends: [].", "Available backends: none."),
            ("Volume ['vol1'] not found", "Volume vol1 not found"),
            (
                "Cannot delete active runs: ['a', 'b-2']",
                "Cannot delete active runs: a, b-2",
            ),
            (
                "memory: could not convert string to float: 'lots'",
                "memory: 'lots' is not a number",
            ),
            (
                "Cannot parse the duration 3 weeks",
                "Cannot parse the duration 3 weeks (durations are written 30s, 5m, 2h, 3d or 1w)",
            ),
            (
                "Secret name should match regex '^[A-Za-z0-9-_]{1,200}$",
                "Secret name should match regex '^[A-Za-z0-9-_]{1,200}$'",
            ),
            (
                "a: Cannot parse the duration x\nb: bad",
                "a: Cannot parse the duration x (durations are written 30s, 5m, 2h, 3d or 1w)\nb: bad",
            ),
            ("Run [x] ended", "Run [x] ended"),
            ("broken ['list", "broken ['list"),
        ] {
            assert_eq!(plain_words(said), shown);
        }
    }
}
