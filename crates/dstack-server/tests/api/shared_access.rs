//! Servers that share a database: what one of them changes of users is soon true at the other. On PostgreSQL only.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use dstack_server::access::shared;
use dstack_store::raw;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{ADMIN, Server, on_postgres};

const ME: &str = "/api/users/get_my_user";

/// Two servers, of which the second remembers who alice is.
struct Two {
    first: Server,
    second: Server,
    alice: String,
    _stop: DropGuard,
}

impl Two {
    /// `None` where there is one server only.
    async fn start() -> Option<Self> {
        if !on_postgres() {
            println!("skipped: needs PostgreSQL");
            return None;
        }
        let first = Server::new().await;
        let second = first.beside();
        let stop = CancellationToken::new();
        shared::start(&second.state.auth.access, &second.state.data.random, stop.clone());
        let alice = first.user("alice").await;
        let two = Self {
            first,
            second,
            alice,
            _stop: stop.drop_guard(),
        };
        // Without a word to anybody, the second server notices only if it asks.
        two.sql("ALTER TABLE users DISABLE TRIGGER tr_users_changed")
            .await;
        two.until("it remembers", async |two| {
            two.sql("UPDATE users SET email = 'old@example.com' WHERE name = 'alice'")
                .await;
            two.second.state.auth.access.changed();
            two.email().await;
            two.sql("UPDATE users SET email = 'new@example.com' WHERE name = 'alice'")
                .await;
            two.email().await == "old@example.com"
        })
        .await;
        Some(two)
    }

    async fn sql(&self, text: &'static str) {
        raw::execute(&self.first.state.data.database, text).await.unwrap();
    }

    /// As the second server knows it.
    async fn email(&self) -> String {
        let me = self.second.post(&self.alice, ME, json!(null)).await.ok();
        me["email"].as_str().unwrap().to_owned()
    }

    async fn is_refused(&self) -> bool {
        self.second.post(&self.alice, ME, json!(null)).await.status == 403
    }

    /// Looks again whenever the second server has heard something.
    async fn until(&self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        let waited = async {
            loop {
                let news = self.second.state.auth.access.news();
                if is_so(self).await {
                    return;
                }
                news.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waited)
            .await
            .expect(what);
    }
}

#[tokio::test]
async fn what_one_server_changes_the_other_hears() {
    let Some(two) = Two::start().await else { return };
    two.sql("ALTER TABLE users ENABLE TRIGGER tr_users_changed").await;
    let update = json!({"username": "alice", "global_role": "user", "active": false});
    two.first.post(ADMIN, "/api/users/update", update).await.ok();
    two.until("alice is refused", Two::is_refused).await;
}

#[tokio::test]
async fn a_server_that_hears_nothing_any_more_remembers_nothing() {
    let Some(two) = Two::start().await else { return };
    two.sql("UPDATE users SET active = 0 WHERE name = 'alice'").await;
    assert!(!two.is_refused().await, "it was told");
    two.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'",
    )
    .await;
    two.until("alice is refused", Two::is_refused).await;
}

#[tokio::test]
async fn what_shows_credentials_or_is_for_few_is_not_done_on_memory() {
    let Some(two) = Two::start().await else { return };
    two.sql("UPDATE users SET active = 0 WHERE name = 'alice'").await;
    assert!(!two.is_refused().await, "it was told");
    let answer = two
        .second
        .post(&two.alice, "/api/users/tokens/list", json!({}))
        .await;
    assert_eq!(answer.status, 403, "{}", answer.body);
}
