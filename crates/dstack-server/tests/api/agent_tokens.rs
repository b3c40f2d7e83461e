//! What calls to the agents of jobs and hosts are authorized with, at servers that share a database.

use std::sync::Arc;

use dstack_control::keys::Keys;
use dstack_server::wiring::AgentTokens;
use dstack_store::encryption::{Encryption, Key};
use dstack_system::Random;
use dstack_units::{InstanceId, JobId};

use super::Server;

fn key(name: &str, byte: u8) -> Key {
    Key::Aes {
        name: name.into(),
        secret: [byte; 32],
    }
}

/// As a server has them that was just started, with these keys for its database.
fn tokens(server: &Server, keys: Vec<Key>) -> AgentTokens {
    let (database, random) = (server.state.data.database.clone(), Random::system());
    let encryption = Encryption::new(keys, random.clone());
    AgentTokens::new(
        database.clone(),
        Arc::new(Keys::new(database, encryption, random)),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_a_database_agree_on_the_tokens_of_jobs_and_hosts() {
    let server = Server::new().await;
    let project = server.main_project().await;
    let (one, other) = (
        JobId::from(server.state.data.random.uuid()),
        JobId::from(server.state.data.random.uuid()),
    );
    let (first, second) = (
        tokens(&server, vec![key("k", 7)]),
        tokens(&server, vec![key("k", 7)]),
    );
    // Neither finds a key pair of the project: both make one, and one of the two is the project's.
    let (of_first, of_second) = tokio::join!(first.of_job(project, one), second.of_job(project, one));
    let token = of_first.unwrap();
    assert_eq!(of_second.unwrap().expose(), token.expose());
    assert_eq!(token.expose().len(), 64, "256 bits");
    assert_ne!(
        first.of_job(project, other).await.unwrap().expose(),
        token.expose()
    );
    let instance = InstanceId::from(server.state.data.random.uuid());
    let of_host = first.of_instance(project, instance).await.unwrap();
    assert_ne!(of_host.expose(), token.expose());
    // Started again, with a new key for the database: jobs that run go on being reached.
    let rotated = tokens(&server, vec![key("new", 9), key("k", 7)]);
    assert_eq!(
        rotated.of_job(project, one).await.unwrap().expose(),
        token.expose()
    );
    assert_eq!(
        rotated.of_instance(project, instance).await.unwrap().expose(),
        of_host.expose()
    );
}
