//! Patches made by the real git: random edits of a random tree, applied to a fresh copy, must give the edited tree.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::{apply, parse};

/// Whether git is installed; says so when the test is skipped.
fn have_git() -> bool {
    let found = Command::new("git").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: no `git` here");
    }
    found
}

fn git(dir: &Path, args: &[&str]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.current_dir(dir).args([
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "-c",
        "init.defaultBranch=main",
    ]);
    command
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir);
    let output = command.output().unwrap();
    // A no-index diff exits with 1 when there is a difference.
    assert!(
        output.status.code() < Some(2),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The diff as dstack 0.22.5's CLI makes it: against the commit, then each untracked file against nothing.
fn diff(dir: &Path, options: &[&str]) -> Vec<u8> {
    let mut diff = git(dir, &[options, &["diff", "--binary", "HEAD"]].concat());
    let untracked = git(dir, &["ls-files", "-z", "--others", "--exclude-standard"]);
    for name in untracked.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).unwrap();
        diff.extend(git(
            dir,
            &[options, &["diff", "--binary", "--no-index", "/dev/null", name]].concat(),
        ));
    }
    diff
}

/// Path → what is there: kind and execute bit, content.
fn snapshot(root: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs_err::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let kind = entry.file_type().unwrap();
            if name == ".git" {
            } else if kind.is_dir() {
                todo.push(path);
            } else if kind.is_symlink() {
                let target = fs_err::read_link(path).unwrap();
                found.insert(
                    name,
                    ("link".to_owned(), target.to_str().unwrap().as_bytes().to_vec()),
                );
            } else {
                let executable = fs_err::metadata(&path).unwrap().permissions().mode() & 0o111 != 0;
                found.insert(name, (format!("file {executable}"), fs_err::read(path).unwrap()));
            }
        }
    }
    found
}

#[derive(Debug, Clone)]
enum Content {
    Text(Vec<String>, bool),
    Binary(Vec<u8>),
    Link(String),
}

#[derive(Debug, Clone)]
enum Edit {
    Put(String, Content, bool),
    Delete(usize),
    Rename(usize, String),
    ChangeLine(usize, usize, String),
    ChangeByte(usize, usize, u8),
    Flip(usize),
    Stage,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-d]",
        "[a-c]/[a-c]",
        "[a-b]/[a-b]/[a-b] x",
        Just("spaß \"quoted\"\t.txt".to_owned()),
        Just("b/x b/y".to_owned())
    ]
}

fn content() -> impl Strategy<Value = Content> {
    let text = proptest::collection::vec(
        "[a-z]{0,3}|--- a/x|\\+\\+\\+ b/y|@@ -1 \\+1 @@|diff --git a/a b/a|\t",
        0..30,
    );
    prop_oneof![
        4 => (text, any::<bool>()).prop_map(|(lines, end)| Content::Text(lines, end)),
        2 => proptest::collection::vec(any::<u8>(), 0..3000).prop_map(Content::Binary),
        // Never to something there is: git's no-index diff follows an untracked link to a directory.
        1 => "nowhere/[a-z/.]{0,10}".prop_map(Content::Link),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => (name(), content(), any::<bool>()).prop_map(|(name, content, mode)| Edit::Put(name, content, mode)),
        2 => any::<usize>().prop_map(Edit::Delete),
        2 => (any::<usize>(), name()).prop_map(|(file, name)| Edit::Rename(file, name)),
        3 => (any::<usize>(), any::<usize>(), "[a-z]{0,3}").prop_map(|(file, line, text)| Edit::ChangeLine(file, line, text)),
        3 => (any::<usize>(), any::<usize>(), any::<u8>()).prop_map(|(file, at, byte)| Edit::ChangeByte(file, at, byte)),
        1 => any::<usize>().prop_map(Edit::Flip),
        1 => Just(Edit::Stage),
    ]
}

/// Makes room for `path`: what stands there or where its directories must be goes away.
fn clear(root: &Path, path: &Path) {
    for parent in path.ancestors().take_while(|parent| *parent != root) {
        match fs_err::symlink_metadata(parent) {
            Ok(found) if found.is_dir() && parent == path => fs_err::remove_dir_all(parent).unwrap(),
            Ok(found) if !found.is_dir() => fs_err::remove_file(parent).unwrap(),
            _ => {}
        }
    }
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
}

fn put(root: &Path, name: &str, content: &Content, executable: bool) {
    let path = root.join(name);
    clear(root, &path);
    match content {
        Content::Link(target) => return fs_err::os::unix::fs::symlink(target, path).unwrap(),
        Content::Binary(bytes) => fs_err::write(&path, bytes).unwrap(),
        Content::Text(lines, end) => {
            fs_err::write(&path, lines.join("\n") + if *end { "\n" } else { "" }).unwrap();
        }
    }
    let mode = if executable { 0o755 } else { 0o644 };
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn perform(root: &Path, edit: &Edit) {
    let files: Vec<_> = snapshot(root).into_iter().collect();
    let pick = |number: &usize| files.get(number % files.len().max(1));
    match edit {
        Edit::Put(name, content, executable) => put(root, name, content, *executable),
        Edit::Stage => drop(git(root, &["add", "-A"])),
        Edit::Delete(file) => {
            if let Some((name, _)) = pick(file) {
                fs_err::remove_file(root.join(name)).unwrap();
            }
        }
        Edit::Rename(file, to) => {
            if let Some((name, _)) = pick(file) {
                let kept = root.join(".git/kept");
                fs_err::rename(root.join(name), &kept).unwrap();
                clear(root, &root.join(to));
                fs_err::rename(kept, root.join(to)).unwrap();
            }
        }
        Edit::ChangeLine(file, line, text) => {
            if let Some((name, (kind, content))) = pick(file).filter(|(_, (kind, _))| kind != "link") {
                let mut lines: Vec<&[u8]> = content.split(|byte| *byte == b'\n').collect();
                let at = line % lines.len();
                lines[at] = text.as_bytes();
                let mode = if kind == "file true" { 0o755 } else { 0o644 };
                fs_err::write(root.join(name), lines.join(&b'\n')).unwrap();
                fs_err::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        Edit::ChangeByte(file, at, byte) => {
            if let Some((name, (_, content))) = pick(file).filter(|(_, (kind, _))| kind != "link") {
                let mut content = content.clone();
                let at = at % (content.len() + 1);
                content.insert(at, *byte);
                fs_err::write(root.join(name), content).unwrap();
            }
        }
        Edit::Flip(file) => {
            if let Some((name, (kind, _))) = pick(file).filter(|(_, (kind, _))| kind != "link") {
                let mode = if kind == "file true" { 0o644 } else { 0o755 };
                fs_err::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}

/// Git settings users have that change how a diff looks.
const SETTINGS: &[&[&str]] = &[
    &[],
    &["-c", "diff.renames=copies"],
    &["-c", "diff.noprefix=true"],
    &["-c", "diff.mnemonicPrefix=true"],
    &["-c", "diff.context=0"],
    &[
        "-c",
        "core.quotePath=false",
        "-c",
        "diff.algorithm=histogram",
        "-c",
        "diff.interHunkContext=3",
    ],
    &["-c", "diff.renames=false"],
];

fn check(base: &[(String, Content, bool)], edits: &[Edit], settings: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (user, job) = (dir.path().join("user"), dir.path().join("job"));
    fs_err::create_dir(&user).unwrap();
    git(&user, &["init", "-q"]);
    for (name, content, executable) in base {
        put(&user, name, content, *executable);
    }
    git(&user, &["add", "-A"]);
    git(&user, &["commit", "-q", "--allow-empty", "-m", "base"]);
    git(dir.path(), &["clone", "-q", "user", "job"]);
    for edit in edits {
        perform(&user, edit);
    }
    let diff = diff(&user, settings);
    let show = || String::from_utf8_lossy(&diff).into_owned();
    let patches = parse(&diff).unwrap_or_else(|error| panic!("{error}\n{}", show()));
    apply(&job, &patches).unwrap_or_else(|error| panic!("{error}\n{}", show()));
    assert_eq!(snapshot(&job), snapshot(&user), "{}", show());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_diff_by_git_gives_the_edited_tree(
        base in proptest::collection::vec((name(), content(), any::<bool>()), 0..8),
        edits in proptest::collection::vec(edit(), 1..8),
        settings in 0..SETTINGS.len(),
    ) {
        if have_git() {
            check(&base, &edits, SETTINGS[settings]);
        }
    }
}

#[test]
fn large_binary_files_use_deltas_and_literals() {
    if !have_git() {
        return;
    }
    // Incompressible, so that git prefers a delta for a small change.
    let mut state = 1_u32;
    let mut noise = |length: usize| -> Vec<u8> {
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect()
    };
    let (big, other) = (noise(200_000), noise(100_000));
    let base = [
        ("changed".to_owned(), Content::Binary(big.clone()), false),
        ("replaced".to_owned(), Content::Binary(big), true),
    ];
    let edits = [
        Edit::ChangeByte(0, 100_000, 7),
        Edit::ChangeByte(0, 3, 7),
        Edit::Put("replaced".to_owned(), Content::Binary(other.clone()), true),
        Edit::Put("untracked".to_owned(), Content::Binary(other), false),
    ];
    check(&base, &edits, &[]);
}
