//! Repos, diffs, archives.

use serde_json::json;

use super::{ADMIN, Server, TestServer, multipart};

#[tokio::test]
async fn credentials_belong_to_users() {
    let server = Server::new().await;
    let info = json!({"repo_type": "remote", "repo_name": "x"});
    let creds = json!({"clone_url": "https://x/y.git", "private_key": null, "oauth_token": "t"});
    let init = |creds| {
        server.main(
            "repos/init",
            json!({"repo_id": "r", "repo_info": info, "repo_creds": creds}),
        )
    };
    init(creds.clone()).await.ok();
    let get = |include: bool| server.main("repos/get", json!({"repo_id": "r", "include_creds": include}));
    assert_eq!(get(true).await.ok()["repo_creds"], creds);
    assert!(get(false).await.ok()["repo_creds"].is_null());
    init(json!(null)).await.ok();
    assert!(get(true).await.ok()["repo_creds"].is_null());
    assert_eq!(
        server.main("repos/list", json!(null)).await.ok(),
        json!([{"repo_id": "r", "repo_info": info}])
    );
    server
        .main("repos/delete", json!({"repos_ids": ["r"]}))
        .await
        .ok();
    assert_eq!(get(true).await.refused().1, Some("resource_not_exists"));
}

#[tokio::test]
async fn uploads_have_a_limit_and_are_kept_once() {
    let server = Server::new().await;
    let path = "/api/files/upload_archive";
    let first = server.send(multipart(path, ADMIN, "hash", b"content")).await.ok();
    let again = server.send(multipart(path, ADMIN, "hash", b"content")).await.ok();
    assert_eq!((&first, first["hash"].as_str()), (&again, Some("hash")));
    let found = server
        .post(ADMIN, "/api/files/get_archive_by_hash", json!({"hash": "hash"}))
        .await
        .ok();
    assert_eq!(found, first);
    let big = server
        .send(multipart(path, ADMIN, "big", &vec![0; 3 * 1024 * 1024]))
        .await;
    assert_eq!(
        big.refused().0,
        "Archive size is 3.0MiB, which exceeds the limit of 2.0MiB. Use .gitignore/.dstackignore to exclude large files. \
         This limit can be modified by setting the DSTACK_SERVER_CODE_UPLOAD_LIMIT environment variable."
    );
    let wrong = server.post(ADMIN, path, json!({})).await;
    assert_eq!(
        (wrong.status, &wrong.body["detail"][0]["loc"]),
        (422, &json!(["body", "file"]))
    );
}

/// What one member uploads under a hash, all others of the project run.
#[tokio::test]
async fn code_must_have_the_hash_it_is_stored_under() {
    let server = Server::new().await;
    let repo = json!({"repo_id": "none", "repo_info": {"repo_type": "virtual"}});
    server.main("repos/init", repo).await.ok();
    let path = "/api/project/main/repos/upload_code?repo_id=none";
    let hash = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"; // of `x`
    let poisoned = server.send(multipart(path, ADMIN, hash, b"evil")).await;
    assert_eq!(
        poisoned.refused().0,
        "The upload is named 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881, but the SHA-256 of its content is \
         b5c1fb2efc6d6b4674c2fdcc48ce01b43a3b7c03763c0c3355de0099ee0f8c73. It was damaged on the way or is not what it says it is, \
         and was not stored: upload it again"
    );
    let good = server.send(multipart(path, ADMIN, hash, b"x")).await;
    assert!(good.ok().is_null());
    let project = server.main_project().await;
    let repo = server.state.data.database.repo_by_name(project, "none").await;
    let stored = server
        .state
        .data
        .blobs
        .code(project, repo.unwrap().unwrap().id, hash)
        .await;
    assert_eq!(stored.unwrap().as_deref(), Some(b"x".as_slice()));
}

#[tokio::test]
async fn as_much_as_the_administrator_allows_can_be_uploaded() {
    let content = vec![7; 5 * 1024 * 1024];
    for limit in [6 * 1024 * 1024, 0] {
        let server = TestServer::new().settings(|settings| settings.code_upload_limit = limit);
        let server = server.start().await;
        let answer = server
            .send(multipart("/api/files/upload_archive", ADMIN, "big", &content))
            .await;
        assert_eq!(answer.ok()["hash"], "big", "limit {limit}");
    }
}

#[tokio::test]
async fn code_needs_a_repo() {
    let server = Server::new().await;
    let path = "/api/project/main/repos/upload_code";
    let missing = server.send(multipart(path, ADMIN, "h", b"x")).await;
    assert_eq!(
        (missing.status, &missing.body["detail"][0]["loc"]),
        (422, &json!(["query", "repo_id"]))
    );
    let unknown = server
        .send(multipart(&format!("{path}?repo_id=nope"), ADMIN, "h", b"x"))
        .await;
    assert_eq!(
        unknown.refused(),
        ("Repo nope does not exist", Some("repo_does_not_exist"))
    );
    server
        .main(
            "repos/init",
            json!({"repo_id": "none", "repo_info": {"repo_type": "virtual"}}),
        )
        .await
        .ok();
    assert!(
        server
            .send(multipart(&format!("{path}?repo_id=none"), ADMIN, "h", b"x"))
            .await
            .ok()
            .is_null()
    );
}
