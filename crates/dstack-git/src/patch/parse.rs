//! Reading a diff.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::binary::{self, Encoded};
use super::{Change, FilePatch, Hunk, PatchError};

/// Parses a whole diff. Text between the patches of files is ignored, as git does.
pub(crate) fn parse(diff: &[u8]) -> Result<Vec<FilePatch>, PatchError> {
    let mut lines = Lines::new(diff);
    let mut patches = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(names) = line.strip_prefix(b"diff --git ") {
            patches.push(parse_file(&mut lines, names)?);
        }
    }
    Ok(patches)
}

/// Lines of the diff without their line feeds; remembers where it is.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            rest: text,
            number: 0,
        }
    }

    fn peek(&self) -> Option<&'a [u8]> {
        self.rest
            .split(|byte| *byte == b'\n')
            .next()
            .filter(|_| !self.rest.is_empty())
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.peek()?;
        self.rest = self.rest.get(line.len().saturating_add(1)..).unwrap_or_default();
        self.number += 1;
        Some(line)
    }

    fn error(&self, reason: &'static str) -> PatchError {
        PatchError::Malformed {
            line: self.number,
            reason,
        }
    }
}

/// What the head of a file's patch says.
#[derive(Default)]
struct Head {
    old_mode: Option<u32>,
    new_mode: Option<u32>,
    created: bool,
    deleted: bool,
    copied: bool,
    moved_from: Option<Vec<u8>>,
    moved_to: Option<Vec<u8>>,
    old_name: Option<Vec<u8>>,
    new_name: Option<Vec<u8>>,
}

fn parse_file(lines: &mut Lines<'_>, names: &[u8]) -> Result<FilePatch, PatchError> {
    let header = header_names(names);
    let mut head = Head::default();
    parse_head(lines, &mut head)?;
    let change = parse_change(
        lines,
        &mut head,
        header.as_ref().is_some_and(|header| header.prefixed),
    )?;
    let same = header.map(|header| header.name);
    let old = head.moved_from.or(head.old_name).or_else(|| same.clone());
    let new = head.moved_to.or(head.new_name).or(same);
    let missing = || lines.error("the name of the changed file cannot be told");
    Ok(FilePatch {
        old: if head.created {
            None
        } else {
            Some(path(old.ok_or_else(missing)?))
        },
        new: if head.deleted {
            None
        } else {
            Some(path(new.ok_or_else(missing)?))
        },
        copied: head.copied,
        old_mode: head.old_mode,
        new_mode: head.new_mode,
        change,
    })
}

fn path(name: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(name))
}

/// Lines between `diff --git` and the content.
fn parse_head(lines: &mut Lines<'_>, head: &mut Head) -> Result<(), PatchError> {
    while let Some(line) = lines.peek() {
        let mode = |text: &[u8]| parse_number(text, 8).ok_or_else(|| lines.error("not a file mode"));
        if let Some(text) = line.strip_prefix(b"old mode ") {
            head.old_mode = Some(mode(text)?);
        } else if let Some(text) = line.strip_prefix(b"new mode ") {
            head.new_mode = Some(mode(text)?);
        } else if let Some(text) = line.strip_prefix(b"deleted file mode ") {
            head.old_mode = Some(mode(text)?);
            head.deleted = true;
        } else if let Some(text) = line.strip_prefix(b"new file mode ") {
            head.new_mode = Some(mode(text)?);
            head.created = true;
        } else if let Some(text) = line.strip_prefix(b"rename from ") {
            head.moved_from = Some(unquote(text));
        } else if let Some(text) = line.strip_prefix(b"rename to ") {
            head.moved_to = Some(unquote(text));
        } else if let Some(text) = line.strip_prefix(b"copy from ") {
            head.moved_from = Some(unquote(text));
            head.copied = true;
        } else if let Some(text) = line.strip_prefix(b"copy to ") {
            head.moved_to = Some(unquote(text));
        } else if let Some(text) = line.strip_prefix(b"index ") {
            // `index OLD..NEW MODE`: the mode stands here when it does not change.
            if let Some(text) = text.split(|byte| *byte == b' ').nth(1) {
                head.old_mode = Some(mode(text)?);
            }
        } else if !line.starts_with(b"similarity index ") && !line.starts_with(b"dissimilarity index ") {
            break;
        }
        lines.next();
    }
    Ok(())
}

fn parse_change(lines: &mut Lines<'_>, head: &mut Head, prefixed: bool) -> Result<Change, PatchError> {
    let Some(line) = lines.peek() else {
        return Ok(Change::Text(Vec::new()));
    };
    if line == b"GIT binary patch" {
        lines.next();
        return parse_binary(lines);
    }
    if line.starts_with(b"Binary files ") {
        lines.next();
        return Err(lines.error("a binary file without its content: the diff must be made with --binary"));
    }
    let Some(old) = line.strip_prefix(b"--- ") else {
        return Ok(Change::Text(Vec::new()));
    };
    head.old_name = file_name(old, prefixed);
    lines.next();
    let new = lines.next().and_then(|line| line.strip_prefix(b"+++ "));
    head.new_name = file_name(new.ok_or_else(|| lines.error("`+++ name` is missing"))?, prefixed);
    let mut hunks = Vec::new();
    while let Some(range) = lines.peek().and_then(|line| line.strip_prefix(b"@@ -")) {
        lines.next();
        hunks.push(parse_hunk(lines, range)?);
    }
    Ok(Change::Text(hunks))
}

fn parse_binary(lines: &mut Lines<'_>) -> Result<Change, PatchError> {
    let kind = lines.next().unwrap_or_default();
    let (text, delta) = match (kind.strip_prefix(b"literal "), kind.strip_prefix(b"delta ")) {
        (Some(text), _) => (text, false),
        (None, Some(text)) => (text, true),
        (None, None) => return Err(lines.error("neither `literal SIZE` nor `delta SIZE`")),
    };
    let size = parse_number(text, 10).ok_or_else(|| lines.error("not a size"))?;
    let mut encoded = Encoded::default();
    while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
        encoded
            .push(line)
            .ok_or_else(|| lines.error("not a line of base-85 data"))?;
    }
    let data = binary::inflate(&encoded.bytes, size as usize)
        .ok_or_else(|| lines.error("the binary data is damaged"))?;
    Ok(if delta {
        Change::Delta(data)
    } else {
        Change::Literal(data)
    })
}

/// `range` is what follows `@@ -`: `start[,count] +start[,count] @@ ...`.
fn parse_hunk(lines: &mut Lines<'_>, range: &[u8]) -> Result<Hunk, PatchError> {
    let bad = || PatchError::Malformed {
        line: lines.number,
        reason: "not a hunk's line numbers",
    };
    let mut ranges = range.split(|byte| *byte == b' ');
    let (old_start, old_count) = ranges.next().and_then(parse_range).ok_or_else(bad)?;
    let new = ranges.next().and_then(|new| new.strip_prefix(b"+"));
    let (_, new_count) = new.and_then(parse_range).ok_or_else(bad)?;
    let mut hunk = Hunk {
        old_start,
        old: Vec::new(),
        new: Vec::new(),
    };
    // Which sides the line before belongs to, for the remark that its line end is missing.
    let (mut in_old, mut in_new) = (false, false);
    loop {
        let remark = lines.peek().is_some_and(|line| line.starts_with(b"\\"));
        if remark {
            lines.next();
            for (present, side) in [(in_old, &mut hunk.old), (in_new, &mut hunk.new)] {
                if let Some(line) = side.last_mut().filter(|_| present) {
                    line.pop();
                }
            }
            continue;
        }
        if hunk.old.len() >= old_count && hunk.new.len() >= new_count {
            return Ok(hunk);
        }
        let line = lines
            .next()
            .ok_or_else(|| lines.error("the diff ends inside a hunk"))?;
        // Some editors strip the space of an empty context line.
        let (mark, text) = line.split_first().unwrap_or((&b' ', &[]));
        (in_old, in_new) = match mark {
            b' ' => (true, true),
            b'-' => (true, false),
            b'+' => (false, true),
            _ => return Err(lines.error("a hunk's line must start with a space, `-` or `+`")),
        };
        let text = [text, b"\n"].concat();
        if in_old {
            hunk.old.push(text.clone());
        }
        if in_new {
            hunk.new.push(text);
        }
    }
}

/// `start[,count]`, count 1 when absent.
fn parse_range(text: &[u8]) -> Option<(usize, usize)> {
    let mut parts = text.splitn(2, |byte| *byte == b',');
    let start = parse_number(parts.next()?, 10)?;
    let count = match parts.next() {
        Some(count) => parse_number(count, 10)?,
        None => 1,
    };
    Some((start as usize, count as usize))
}

fn parse_number(text: &[u8], radix: u32) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

/// The name in `diff --git a/NAME b/NAME`, when both are the same.
struct HeaderName {
    name: Vec<u8>,
    // False with `diff.noprefix`; prefixes other than `a/` and `b/` come from `diff.mnemonicPrefix`.
    prefixed: bool,
}

fn header_names(names: &[u8]) -> Option<HeaderName> {
    let (old, new) = split_names(names)?;
    if old == new {
        return Some(HeaderName {
            name: old,
            prefixed: false,
        });
    }
    let (old, new) = (without_prefix(&old)?, without_prefix(&new)?);
    // A renamed file has `rename from` and `rename to` lines: its names are not needed from here.
    let name = if old == new { old.to_vec() } else { Vec::new() };
    Some(HeaderName { name, prefixed: true })
}

fn split_names(names: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    if names.starts_with(b"\"") {
        let (old, rest) = take_quoted(names)?;
        return Some((old, unquote(rest.strip_prefix(b" ")?)));
    }
    if names.ends_with(b"\"") {
        let at = names.windows(2).position(|pair| pair == b" \"")?;
        return Some((names.get(..at)?.to_vec(), unquote(names.get(at + 1..)?)));
    }
    // Names may contain spaces; equal names split in the middle, whatever the (equally long) prefixes.
    let middle = names.len() / 2;
    if names.len() % 2 == 1 && names.get(middle) == Some(&b' ') {
        let (old, new) = (names.get(..middle)?, names.get(middle + 1..)?);
        if old == new || without_prefix(old) == without_prefix(new) {
            return Some((old.to_vec(), new.to_vec()));
        }
    }
    // Different names: only whether there are prefixes can be told.
    let at = names.iter().position(|byte| *byte == b' ')?;
    Some((names.get(..at)?.to_vec(), names.get(at + 1..)?.to_vec()))
}

fn without_prefix(name: &[u8]) -> Option<&[u8]> {
    let at = name.iter().position(|byte| *byte == b'/')?;
    name.get(at + 1..)
}

/// The name after `--- ` or `+++ `; `None` for `/dev/null`.
fn file_name(text: &[u8], prefixed: bool) -> Option<Vec<u8>> {
    // A tab ends a name with spaces.
    let text = text.strip_suffix(b"\t").unwrap_or(text);
    let name = unquote(text);
    if name == b"/dev/null" {
        return None;
    }
    if prefixed {
        without_prefix(&name).map(<[u8]>::to_vec)
    } else {
        Some(name)
    }
}

/// A name, maybe quoted like a C string.
fn unquote(text: &[u8]) -> Vec<u8> {
    match take_quoted(text) {
        Some((name, _)) => name,
        None => text.to_vec(),
    }
}

/// A quoted name at the start of `text`, and what follows it.
fn take_quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut name = Vec::new();
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((name, rest)),
            b'\\' => {
                let (escape, after) = rest.split_first()?;
                rest = after;
                name.push(match escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'0'..=b'3' => {
                        let (low, after) = rest.split_at_checked(2)?;
                        rest = after;
                        let digits = [&[*escape], low].concat();
                        u8::try_from(parse_number(&digits, 8)?).ok()?
                    }
                    other => *other,
                });
            }
            other => name.push(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(diff: &str) -> FilePatch {
        let mut patches = parse(diff.as_bytes()).unwrap();
        assert_eq!(patches.len(), 1, "{patches:?}");
        patches.remove(0)
    }

    fn names(patch: &FilePatch) -> (Option<&str>, Option<&str>) {
        let text = |path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| path.to_str().unwrap().to_owned().leak() as &str)
        };
        (text(&patch.old), text(&patch.new))
    }

    #[test]
    fn names_with_spaces_quotes_and_other_prefixes() {
        for (header, name) in [
            ("a/plain b/plain", "plain"),
            ("a/with space b/with space", "with space"),
            ("a/x b/x b/x b/x", "x b/x"),
            ("\"a/tab\\there\" \"b/tab\\there\"", "tab\there"),
            ("\"a/\\303\\274\" \"b/\\303\\274\"", "ü"),
            ("c/mnemonic w/mnemonic", "mnemonic"),
            ("dir/noprefix dir/noprefix", "dir/noprefix"),
        ] {
            let patch = one(&format!(
                "diff --git {header}\nold mode 100644\nnew mode 100755\n"
            ));
            assert_eq!(names(&patch), (Some(name), Some(name)), "{header}");
            assert_eq!(
                (patch.old_mode, patch.new_mode),
                (Some(0o100_644), Some(0o100_755))
            );
        }
    }

    #[test]
    fn new_deleted_renamed_and_copied_files() {
        let new = one("diff --git a/n b/n\nnew file mode 100644\nindex 0000000..e69de29\n");
        assert_eq!(
            (names(&new), &new.change),
            ((None, Some("n")), &Change::Text(vec![]))
        );
        let deleted = one(
            "diff --git a/n b/n\ndeleted file mode 120000\nindex 1..0\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        );
        assert_eq!(
            (names(&deleted), deleted.old_mode),
            ((Some("n"), None), Some(0o120_000))
        );
        let renamed = one("diff --git a/o b/n x\nsimilarity index 100%\nrename from o\nrename to n x\n");
        assert_eq!(
            (names(&renamed), renamed.copied),
            ((Some("o"), Some("n x")), false)
        );
        let copied = one(
            "diff --git a/o b/n\nsimilarity index 90%\ncopy from o\ncopy to n\nindex 1..2 100644\n--- a/o\n+++ b/n\n@@ -1 +1 @@\n-x\n+y\n",
        );
        assert_eq!((names(&copied), copied.copied), ((Some("o"), Some("n")), true));
    }

    #[test]
    fn lines_that_look_like_headers_are_content() {
        let patch = one(
            "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n--- a/x\n-diff --git a/y b/y\n+++ b/x\n+@@ -1 +1 @@\n\\ No newline at end of file\n",
        );
        let Change::Text(hunks) = patch.change else {
            panic!()
        };
        assert_eq!(
            hunks[0].old,
            [b"-- a/x\n".to_vec(), b"diff --git a/y b/y\n".to_vec()]
        );
        assert_eq!(hunks[0].new, [b"++ b/x\n".to_vec(), b"@@ -1 +1 @@".to_vec()]);
    }

    #[test]
    fn malformed_diffs_name_the_line() {
        for (diff, line) in [
            ("diff --git a/f b/f\n--- a/f\n", 2),
            ("diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -x +1 @@\n", 4),
            ("diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n", 5),
            ("diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\nx\n", 5),
            ("text\ndiff --git a/f b/f\nBinary files a/f and b/f differ\n", 3),
            ("diff --git a/f b/f\nGIT binary patch\nliteral 5\nzzz\n\n", 4),
        ] {
            match parse(diff.as_bytes()) {
                Err(PatchError::Malformed { line: found, .. }) => assert_eq!(found, line, "{diff}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn text_between_patches_is_ignored() {
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(
            parse(b"warning: LF will be replaced\nSubmodule x contains modified content\n").unwrap(),
            []
        );
    }
}
