//! Streams of what has changed.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use dstack_engine::{Batch, Output, Piece};
use dstack_server::wiring::LogOutput;
use dstack_store::EngineStore;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{ADMIN, HandClock, Server, TestServer, on_postgres};

const SET_MEMBERS: &str = "/api/projects/main/set_members";

/// Long enough for a busy machine: nothing takes so long that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that tells of changes until `stop`, and hears of those of others where there may be some.
async fn telling(server: Server) -> (Server, CancellationToken) {
    let stop = CancellationToken::new();
    let mut early = Stream::of(&server, ADMIN, "").await;
    tell(&server, &stop);
    // Once it hears, it says that anything may have changed before.
    while server.state.data.database.is_shared() && early.next().await.unwrap().event != "reset" {}
    (server, stop)
}

fn tell(server: &Server, stop: &CancellationToken) {
    let state = &server.state;
    dstack_server::access::shared::start(&state.auth.access, &state.data.random, stop.clone());
    state
        .data
        .live
        .start(&state.data, &state.auth.access, stop.clone());
}

/// One event of a stream.
#[derive(Debug, PartialEq)]
struct Frame {
    event: String,
    id: String,
    data: Value,
}

impl Frame {
    /// Of changes, each as `kind id`.
    fn changed(&self) -> Vec<(String, Value)> {
        assert_eq!(self.event, "changes", "{self:?}");
        let changes = self.data["changes"].as_array().unwrap();
        let one = |change: &Value| (change["kind"].as_str().unwrap().to_owned(), change["id"].clone());
        changes.iter().map(one).collect()
    }
}

struct Stream {
    body: BodyDataStream,
    read: String,
}

impl Stream {
    async fn open(server: &Server, token: &str, query: &str, after: Option<&str>) -> Result<Self, u16> {
        let mut request = Request::get(format!("/api/changes/follow{query}"))
            .header("authorization", format!("Bearer {token}"))
            .header("accept-encoding", "gzip");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = server.router.clone().oneshot(request).await.unwrap();
        if response.status() != 200 {
            return Err(response.status().as_u16());
        }
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("content-type"), Some("text/event-stream"));
        assert_eq!(header("content-encoding"), None, "events are not held back");
        assert_eq!(header("x-accel-buffering"), Some("no"));
        Ok(Self {
            body: response.into_body().into_data_stream(),
            read: String::new(),
        })
    }

    /// That begins now.
    async fn of(server: &Server, token: &str, query: &str) -> Self {
        let mut stream = Self::open(server, token, query, None).await.unwrap();
        assert_eq!(stream.next().await.unwrap().event, "hello");
        stream
    }

    /// The next event; comments are left out. `None`: the stream has ended.
    async fn next(&mut self) -> Option<Frame> {
        let next = async {
            loop {
                while let Some((frame, rest)) = self.read.split_once("\n\n") {
                    let frame = frame.to_owned();
                    self.read = rest.to_owned();
                    let field = |name: &str| {
                        let mut lines = frame.lines();
                        lines
                            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                            .map(str::to_owned)
                    };
                    if let Some(event) = field("event") {
                        return Some(Frame {
                            event,
                            id: field("id").unwrap(),
                            data: serde_json::from_str(&field("data").unwrap()).unwrap(),
                        });
                    }
                }
                let chunk = self.body.next().await?.unwrap();
                self.read.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, next)
            .await
            .expect("an event comes")
    }

    /// Reads on until something of this kind has changed; gives which.
    async fn until(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await.expect("the stream goes on");
            if frame.event == "reset" {
                continue;
            }
            for (changed, id) in frame.changed() {
                if changed == kind {
                    return id;
                }
            }
        }
    }
}

async fn submit(server: &Server, token: &str, project: &str, name: &str) -> Value {
    let spec = json!({"run_name": name, "configuration": {"type": "task", "commands": ["true"]}});
    let body = json!({"plan": {"run_spec": spec}, "force": false});
    let path = format!("/api/project/{project}/runs/apply");
    server.post(token, &path, body).await.ok()
}

#[tokio::test]
async fn what_is_written_is_told_to_those_who_may_see_it() {
    let (server, _stop) = telling(Server::new().await).await;
    let (ann, bob) = (server.user("ann").await, server.user("bob").await);
    server.project(&ann, "hers").await;
    server.project(&bob, "his").await;
    let mut anns = Stream::of(&server, &ann, "").await;
    let mut admins = Stream::of(&server, ADMIN, "").await;
    let mut of_main = Stream::of(&server, ADMIN, "?project_name=main").await;
    let his = submit(&server, &bob, "his", "secret").await;
    assert_eq!(admins.until("run").await, his["id"]);
    let hers = submit(&server, &ann, "hers", "open").await;
    let of_main_run = submit(&server, ADMIN, "main", "third").await;
    // The first that she hears of is her own.
    assert_eq!(anns.until("run").await, hers["id"]);
    assert_eq!(of_main.until("run").await, of_main_run["id"]);
}

#[tokio::test]
async fn a_client_that_was_away_goes_on_where_it_was() {
    let (server, _stop) = telling(Server::new().await).await;
    let mut stream = Stream::open(&server, ADMIN, "", None).await.unwrap();
    let hello = stream.next().await.unwrap();
    let first = submit(&server, ADMIN, "main", "first").await;
    assert_eq!(stream.until("run").await, first["id"]);
    drop(stream);
    let mut again = Stream::open(&server, ADMIN, "", Some(&hello.id)).await.unwrap();
    assert_eq!(again.next().await.unwrap(), hello);
    assert_eq!(again.until("run").await, first["id"]);
    for unknown in ["", "another-1", &hello.id.replace("-", "-9")] {
        let mut anew = Stream::open(&server, ADMIN, "", Some(unknown)).await.unwrap();
        assert_eq!(anew.next().await.unwrap().event, "reset", "{unknown}");
    }
}

#[tokio::test]
async fn output_is_told_to_those_who_follow_its_run() {
    let (server, _stop) = telling(Server::new().await).await;
    let run = submit(&server, ADMIN, "main", "talks").await;
    let id = run["id"].as_str().unwrap().to_owned();
    let mut stream = Stream::of(&server, ADMIN, &format!("?run_id={id}")).await;
    let job = run["jobs"][0]["job_submissions"][0]["id"].as_str().unwrap();
    let row = server.state.data.store().job(job.parse().unwrap()).await.unwrap();
    let output = LogOutput::new(&server.state.data, 0);
    let piece = Piece {
        timestamp: 1,
        bytes: b"hello\n".to_vec(),
    };
    let batch = Batch {
        job: vec![piece],
        runner: Vec::new(),
    };
    output.append(&row.unwrap().job, batch).await.unwrap();
    assert_eq!(stream.until("logs").await, json!(id));
}

#[tokio::test]
async fn rights_that_are_given_or_taken_while_a_stream_is_open_count_at_once() {
    let (server, _stop) = telling(Server::new().await).await;
    let ann = server.user("ann").await;
    let mut stream = Stream::of(&server, &ann, "").await;
    let members = |role: Option<&str>| {
        let anns = role.map(|role| json!({"username": "ann", "project_role": role}));
        let admin = json!({"username": "admin", "project_role": "admin"});
        let members: Vec<Value> = [Some(admin), anns].into_iter().flatten().collect();
        json!({ "members": members })
    };
    server.post(ADMIN, SET_MEMBERS, members(Some("user"))).await.ok();
    let told = submit(&server, ADMIN, "main", "while").await;
    assert_eq!(stream.until("run").await, told["id"]);
    server.post(ADMIN, SET_MEMBERS, members(None)).await.ok();
    submit(&server, ADMIN, "main", "after").await;
    let own = server.project(&ann, "hers").await;
    let hers = submit(&server, &ann, "hers", "own").await;
    assert_eq!(stream.until("run").await, hers["id"], "{own}");
    // Without a token that is good there is no stream.
    let body = json!({"username": "ann"});
    server.post(ADMIN, "/api/users/refresh_token", body).await.ok();
    while stream.next().await.is_some() {}
    assert_eq!(Stream::open(&server, &ann, "", None).await.err(), Some(403));
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let clock = HandClock::stopped();
    let server = TestServer::new().clock(&clock).start().await;
    let (server, _stop) = telling(server).await;
    let body = json!({"name": "short", "expires_in": 60});
    let made = server.post(ADMIN, "/api/users/tokens/create", body).await.ok();
    let token = made["token"].as_str().unwrap();
    let mut stream = Stream::of(&server, token, "").await;
    clock.advance(61);
    // It is looked at each fifteen seconds, however much happens. In real time: a database answers in no other.
    let busy = async {
        let mut pace = tokio::time::interval(Duration::from_secs(1));
        loop {
            pace.tick().await;
            let secret = json!({"name": "s", "value": "v"});
            server.main("secrets/create_or_update", secret).await.ok();
        }
    };
    let until_it_ends = async { while stream.next().await.is_some() {} };
    tokio::select! {
        () = busy => {}
        () = until_it_ends => {}
    }
}

#[tokio::test]
async fn a_token_of_a_project_hears_of_that_alone() {
    let (server, _stop) = telling(Server::new().await).await;
    server.project(ADMIN, "team").await;
    let token = json!({"name": "t", "project_name": "team"});
    let token = server.token(ADMIN, token).await;
    let mut stream = Stream::of(&server, &token, "").await;
    submit(&server, ADMIN, "main", "elsewhere").await;
    let run = submit(&server, ADMIN, "team", "here").await;
    assert_eq!(stream.until("run").await, run["id"]);
    let of_main = Stream::open(&server, &token, "?project_name=main", None).await;
    assert_eq!(of_main.err(), Some(403));
}

#[tokio::test]
async fn nobody_follows_projects_of_others_and_nothing_without_a_token() {
    let (server, _stop) = telling(Server::new().await).await;
    let ann = server.user("ann").await;
    for (token, query, status) in [
        (ann.as_str(), "?project_name=main", 403),
        (ADMIN, "?project_name=nowhere", 403),
        (ADMIN, "?run_id=x", 422),
        ("wrong", "", 403),
    ] {
        let refused = Stream::open(&server, token, query, None).await.err();
        assert_eq!(refused, Some(status), "{query}");
    }
}

#[tokio::test]
async fn one_user_does_not_take_all_places() {
    let (server, _stop) = telling(Server::new().await).await;
    server.state.data.live.limit(16);
    let ann = server.user("ann").await;
    let mut own = vec![Stream::of(&server, ADMIN, "").await];
    own.push(Stream::of(&server, ADMIN, "").await);
    assert_eq!(Stream::open(&server, ADMIN, "", None).await.err(), Some(429));
    Stream::of(&server, &ann, "").await;
    own.pop();
    Stream::of(&server, ADMIN, "").await;
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let (server, stop) = telling(Server::new().await).await;
    let mut stream = Stream::of(&server, ADMIN, "").await;
    stop.cancel();
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn what_another_server_writes_is_told_as_well() {
    if !on_postgres() {
        println!("skipped: needs PostgreSQL");
        return;
    }
    let (server, _stop) = telling(Server::new().await).await;
    let (other, _other_stop) = telling(server.elsewhere().await).await;
    let mut stream = Stream::of(&other, ADMIN, "").await;
    let run = submit(&server, ADMIN, "main", "far").await;
    assert_eq!(stream.until("run").await, run["id"]);
}
