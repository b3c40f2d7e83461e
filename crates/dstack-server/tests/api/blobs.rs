//! Uploaded code and files in a bucket.

use std::sync::Arc;

use dstack_engine::{Inputs, InputsError, RunJobs};
use dstack_server::blobs::{Blobs, Bucket, BucketError};
use dstack_server::wiring::SqlInputs;
use dstack_store::queries::Page;
use dstack_store::queries::content::Content;
use dstack_store::queries::views::RunFilter;
use dstack_store::{JobSnapshot, Sealed};
use dstack_store_doubles::Fault;
use dstack_store_doubles::objects::{Kind, Objects};
use dstack_units::{ProjectId, RepoRowId};
use object_store::StaticCredentialProvider;
use object_store::aws::AwsCredential;

use dstack_server::Settings;
use serde_json::json;

use super::{ADMIN, PUBLIC_KEY, Server, TestServer, multipart};

const BUCKET: &str = "dstack-bucket";

/// A server with a bucket, and the double behind it.
async fn server(kind: Kind) -> (Server, Objects) {
    let double = Objects::start(kind, BUCKET).await;
    let bucket = match kind {
        Kind::S3 => {
            let keys = StaticCredentialProvider::new(AwsCredential {
                key_id: "AKIA".to_owned(),
                secret_key: "secret".to_owned(),
                token: None,
            });
            Bucket::s3(
                BUCKET,
                Some("eu-west-1"),
                Some(double.url.clone()),
                Arc::new(keys),
            )
        }
        Kind::Gcs => Bucket::gcs(BUCKET, Some(&double.url)),
    };
    let server = TestServer::new().bucket(bucket.unwrap()).start().await;
    (server, double)
}

const REPO: &str = "/api/project/main/repos/upload_code?repo_id=virtual-repo";
const ARCHIVE: &str = "/api/files/upload_archive";

async fn with_repo(server: &Server) {
    let repo = json!({"repo_id": "virtual-repo", "repo_info": {"repo_type": "virtual"}});
    server.main("repos/init", repo).await.ok();
}

/// The rows of the project and of its repo.
async fn repo_of(server: &Server) -> (ProjectId, RepoRowId) {
    let project = server.main_project().await;
    let found = server
        .state
        .data
        .database
        .repo_by_name(project, "virtual-repo")
        .await;
    (project, found.unwrap().unwrap().id)
}

#[tokio::test]
async fn code_and_files_go_to_the_bucket_and_from_there_to_the_job() {
    for kind in [Kind::S3, Kind::Gcs] {
        let (server, double) = server(kind).await;
        with_repo(&server).await;
        let code = "c".repeat(100_000);
        for _ in 0..2 {
            server
                .send(multipart(REPO, ADMIN, "hash1", code.as_bytes()))
                .await
                .ok();
        }
        let archive = server.send(multipart(ARCHIVE, ADMIN, "hash2", b"tar")).await.ok();
        let user = server.post(ADMIN, "/api/users/get_my_user", json!({})).await.ok();
        let keys = [
            "data/projects/main/codes/virtual-repo/hash1".to_owned(),
            format!("data/users/{}/file_archives/hash2", user["id"].as_str().unwrap()),
        ];
        let stored = double.all();
        assert_eq!(stored.keys().collect::<Vec<_>>(), keys.each_ref(), "{kind:?}");
        assert!(stored[&keys[0]] == code.as_bytes() && stored[&keys[1]] == "tar".as_bytes());

        // The database has rows only.
        let (_, repo) = repo_of(&server).await;
        assert_eq!(
            server
                .state
                .data
                .database
                .content()
                .code(repo, "hash1")
                .await
                .unwrap(),
            Some(Content::Elsewhere)
        );

        // A run takes them along.
        let run = json!({"run_spec": {
            "run_name": "hello",
            "repo_id": "virtual-repo",
            "repo_data": {"repo_type": "virtual"},
            "repo_code_hash": "hash1",
            "file_archives": [{"id": archive["id"], "path": "f"}],
            "configuration": {"type": "task", "name": "hello", "commands": ["true"]},
            "ssh_key_pub": PUBLIC_KEY,
        }});
        let plan = json!({"plan": {"run_spec": run["run_spec"]}, "force": false});
        server.main("runs/apply", plan).await.ok();
        let inputs = SqlInputs::new(
            server.state.control.jobs.clone(),
            server.state.data.blobs.clone(),
            &server.state.edge.settings,
        );
        let job = snapshot(&server).await;
        let start = inputs.start(&job, &alone(&job)).await.unwrap();
        assert!(start.code.as_deref() == Some(code.as_bytes()), "{kind:?}");
        assert_eq!(
            start.archives,
            [(archive["id"].as_str().unwrap().to_owned(), b"tar".to_vec())]
        );

        // A bucket that is away for long is no reason to end a job; one that has lost the code is.
        double.faults.add([Fault::Denied]);
        let away = inputs.start(&job, &alone(&job)).await.unwrap_err();
        assert!(matches!(away, InputsError::Transient(_)), "{away:?}");
        double.clear();
        let InputsError::Refused(gone) = inputs.start(&job, &alone(&job)).await.unwrap_err() else {
            panic!("what is gone stays gone");
        };
        assert!(gone.contains("the bucket has no object data/"), "{gone}");
    }
}

/// Ids of archives are seen by all members of a project; what is in them belongs to whoever uploaded them.
#[tokio::test]
async fn nobody_runs_with_the_files_of_somebody_else() {
    let server = Server::new().await;
    with_repo(&server).await;
    let bob = server.user("bob").await;
    let member = json!({"members": [{"username": "bob", "project_role": "user"}]});
    server
        .post(ADMIN, "/api/projects/main/add_members", member)
        .await
        .ok();
    let archive = server
        .send(multipart(ARCHIVE, ADMIN, "hash", b"dotfiles"))
        .await
        .ok();
    let plan = |token_owner: &str| {
        json!({"plan": {"run_spec": {
            "run_name": token_owner,
            "repo_id": "virtual-repo",
            "repo_data": {"repo_type": "virtual"},
            "file_archives": [{"id": archive["id"], "path": "f"}],
            "configuration": {"type": "task", "name": token_owner, "commands": ["true"]},
            "ssh_key_pub": PUBLIC_KEY,
        }}, "force": false})
    };
    let stolen = server
        .post(&bob, "/api/project/main/runs/apply", plan("stolen"))
        .await;
    let id = archive["id"].as_str().unwrap();
    assert_eq!(
        stolen.refused(),
        (
            format!("The file archive {id} does not exist. Upload the files again").as_str(),
            Some("resource_not_exists")
        )
    );
    server.main("runs/apply", plan("own")).await.ok();

    let job = snapshot(&server).await;
    let inputs = SqlInputs::new(
        server.state.control.jobs.clone(),
        server.state.data.blobs.clone(),
        &server.state.edge.settings,
    );
    assert_eq!(inputs.start(&job, &alone(&job)).await.unwrap().archives.len(), 1);
}

/// A member changes the service of another: with files of their own, or with those that it has.
#[tokio::test]
async fn a_run_of_somebody_else_is_changed_with_ones_own_files() {
    let server = Server::new().await;
    with_repo(&server).await;
    let (alice, bob) = (server.user("alice").await, server.user("bob").await);
    let member = |name: &str| json!({"username": name, "project_role": "user"});
    let members = json!({"members": [member("alice"), member("bob")]});
    server
        .post(ADMIN, "/api/projects/main/add_members", members)
        .await
        .ok();
    let upload = async |token: &str, hash: &str| {
        let archive = server.send(multipart(ARCHIVE, token, hash, b"app")).await.ok();
        archive["id"].as_str().unwrap().to_owned()
    };
    let of_alice = upload(&alice, "alice").await;
    let of_bob = upload(&bob, "bob").await;
    let apply = async |token: &str, archive: &str, commands: &str| {
        let plan = json!({"plan": {"run_spec": {
            "run_name": "web",
            "repo_id": "virtual-repo",
            "repo_data": {"repo_type": "virtual"},
            "file_archives": [{"id": archive, "path": "f"}],
            "configuration": {"type": "service", "name": "web", "port": 80, "commands": [commands], "auth": false},
            "ssh_key_pub": PUBLIC_KEY,
        }}, "force": true});
        server.post(token, "/api/project/main/runs/apply", plan).await
    };
    apply(&alice, &of_alice, "serve").await.ok();
    // Bob keeps the files that are there, and changes something else.
    apply(&bob, &of_alice, "serve --better").await.ok();
    let updated = apply(&bob, &of_bob, "serve --better").await.ok();
    assert_eq!(updated["run_spec"]["file_archives"][0]["id"], of_bob);
    assert_eq!(updated["user"], "alice");
    let mut job = snapshot(&server).await;
    let mut spec = (*job.job.job_spec).clone();
    for mapping in &mut spec.file_archives {
        mapping.id = of_bob.parse().unwrap();
    }
    job.job.job_spec = Sealed::new(spec);
    let inputs = SqlInputs::new(
        server.state.control.jobs.clone(),
        server.state.data.blobs.clone(),
        &server.state.edge.settings,
    );
    assert_eq!(inputs.start(&job, &alone(&job)).await.unwrap().archives.len(), 1);
    // Files of a third are nobody's to take.
    let of_admin = upload(ADMIN, "admin").await;
    let refused = apply(&bob, &of_admin, "serve --best").await;
    assert_eq!(refused.refused().1, Some("resource_not_exists"));
}

/// A job without other nodes.
pub(super) fn alone(job: &JobSnapshot) -> RunJobs {
    RunJobs::present(vec![job.job.clone()])
}

pub(super) async fn snapshot(server: &Server) -> JobSnapshot {
    let database = &server.state.data.database;
    let keys = database
        .views()
        .run_keys(&RunFilter::default(), &Page::newest(1))
        .await
        .unwrap();
    let jobs = database.views().jobs(&[keys[0].0]).await.unwrap();
    let store: &dyn dstack_store::EngineStore = &server.state.data.store();
    store.job(jobs[0].id).await.unwrap().unwrap()
}

#[tokio::test]
async fn what_was_in_the_database_stays_readable() {
    let double = Objects::start(Kind::Gcs, BUCKET).await;
    let server = Server::new().await;
    with_repo(&server).await;
    server
        .send(multipart(REPO, ADMIN, "old", b"in the row"))
        .await
        .ok();
    let bucket = Bucket::gcs(BUCKET, Some(&double.url)).unwrap();
    let blobs = Blobs::new(server.state.data.database.clone(), Some(bucket));
    let (project, repo) = repo_of(&server).await;
    let code = blobs.code(project, repo, "old").await.unwrap();
    assert_eq!(code.as_deref(), Some(&b"in the row"[..]));
}

#[tokio::test]
async fn a_bucket_that_fails_is_503_and_leaves_no_row() {
    for kind in [Kind::S3, Kind::Gcs] {
        let (server, double) = server(kind).await;
        with_repo(&server).await;
        for (path, hash) in [(REPO, "h1"), (ARCHIVE, "h2")] {
            double.faults.add([Fault::Denied]);
            let answer = server.send(multipart(path, ADMIN, hash, b"x")).await;
            assert_eq!(answer.status, 503, "{}", answer.body);
            assert!(answer.headers.contains_key("retry-after"));
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(
                detail.contains("bucket") && detail.contains("Try again"),
                "{detail}"
            );
        }
        let archive = json!({"hash": "h2"});
        let found = server
            .post(ADMIN, "/api/files/get_archive_by_hash", archive)
            .await;
        assert_eq!(found.refused().1, Some("resource_not_exists"));
        assert!(double.all().is_empty());
        // What passes is tried again, and a lost answer does no harm.
        double.faults.add([Fault::Unavailable, Fault::AnswerLost]);
        server.send(multipart(REPO, ADMIN, "h1", b"x")).await.ok();
        assert_eq!((double.faults.left(), double.all().len()), (0, 1));
    }
}

#[tokio::test]
async fn names_do_not_lead_out_of_their_place() {
    let (server, double) = server(Kind::S3).await;
    server
        .send(multipart(ARCHIVE, ADMIN, "..%2F..%2Fx", b"x"))
        .await
        .ok();
    server.send(multipart(ARCHIVE, ADMIN, "../../x", b"y")).await.ok();
    let keys: Vec<String> = double.all().into_keys().collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(
        keys.iter()
            .all(|key| key.starts_with("data/users/") && !key.contains("/../")),
        "{keys:?}"
    );
}

#[tokio::test]
async fn two_buckets_are_refused_at_the_start() {
    let settings = Settings {
        s3_bucket: Some("a".to_owned()),
        gcs_bucket: Some("b".to_owned()),
        ..Settings::from_env()
    };
    let error = Bucket::of(&settings).unwrap_err();
    assert!(matches!(error, BucketError::Both), "{error}");
    let one = Settings {
        gcs_bucket: None,
        ..settings
    };
    assert!(Bucket::of(&one).unwrap().is_some());
}
