//! The repo step: what is put into which directory, and what is left when it fails.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use dstack_agent_api::runner::{RepoCredentials, RepoData};
use dstack_runner::repo::{ExistsAction, RepoError, RepoJob, prepare};
use dstack_runner::users::Owner;

fn text(job: &RepoJob, name: &str) -> String {
    fs_err::read_to_string(job.dir.join(name)).unwrap()
}

/// A repo on a server that is not there.
fn unreachable(dir: &Path) -> RepoJob {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = closed.local_addr().unwrap().port();
    RepoJob {
        dir: dir.join("repo"),
        data: RepoData {
            repo_type: "remote".to_owned(),
            ..RepoData::default()
        },
        credentials: Some(RepoCredentials {
            clone_url: format!("http://127.0.0.1:{port}/x.git"),
            ..RepoCredentials::default()
        }),
        known_hosts: Vec::new(),
        single_branch: false,
        exists_action: ExistsAction::Error,
        blob: None,
        owner: None,
        cancelled: Arc::default(),
    }
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = unreachable(dir.path());
    fs_err::create_dir_all(&job.dir).unwrap();
    fs_err::write(job.dir.join("mine"), "text").unwrap();
    assert!(matches!(prepare(&job), Err(RepoError::NotEmpty { .. })));
    job.exists_action = ExistsAction::Skip;
    prepare(&job).unwrap();
    assert_eq!(text(&job, "mine"), "text");
    job.dir = job.dir.join("mine");
    assert!(matches!(prepare(&job), Err(RepoError::NotDirectory { .. })));
}

#[test]
fn nothing_half_done_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let job = unreachable(dir.path());
    fs_err::create_dir_all(job.dir.join("lost+found")).unwrap();
    assert!(matches!(prepare(&job), Err(RepoError::Git(_))));
    let left: Vec<_> = fs_err::read_dir(&job.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["lost+found"]);
}

#[test]
fn archives_are_unpacked_and_given_to_the_job_user() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs_err::create_dir_all(source.join("sub")).unwrap();
    fs_err::write(source.join("sub/file"), "text").unwrap();
    let tar = dir.path().join("code.tar");
    let mut builder = tar::Builder::new(fs_err::File::create(&tar).unwrap());
    builder.append_dir_all(".", &source).unwrap();
    builder.into_inner().unwrap();
    let root = rustix::process::geteuid().is_root();
    let mut job = RepoJob {
        dir: dir.path().join("deep/repo"),
        data: RepoData {
            repo_type: "virtual".to_owned(),
            ..RepoData::default()
        },
        credentials: None,
        known_hosts: Vec::new(),
        single_branch: false,
        exists_action: ExistsAction::Error,
        blob: None,
        owner: root.then_some(Owner { uid: 1234, gid: 5678 }),
        cancelled: Arc::default(),
    };
    prepare(&job).unwrap();
    assert!(!job.dir.exists(), "without an upload nothing is created");
    fs_err::create_dir_all(job.dir.join("lost+found")).unwrap();
    job.blob = Some(tar);
    prepare(&job).unwrap();
    assert_eq!(text(&job, "sub/file"), "text");
    if root {
        assert_eq!(fs_err::metadata(job.dir.join("sub/file")).unwrap().uid(), 1234);
    }
    job.data.repo_type = "svn".to_owned();
    job.dir = dir.path().join("other");
    assert!(matches!(prepare(&job), Err(RepoError::UnknownType { .. })));
}
