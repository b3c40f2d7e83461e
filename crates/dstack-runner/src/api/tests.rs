use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use dstack_system::SystemClock;
use dstack_system::accounts::Passwd;

use crate::inactivity::Connections;
use crate::log::{Level, RunnerLog};
use crate::shared::Settings;

use super::*;

#[derive(Debug)]
struct NoSsh;

impl Connections for NoSsh {
    fn ages(&self) -> Vec<Duration> {
        Vec::new()
    }
}

impl JobSsh for NoSsh {
    fn port(&self) -> u16 {
        0
    }

    fn add_key(&self, _: &str) {}
}

fn core(dir: &Path) -> Core {
    let clock = Arc::new(SystemClock);
    let settings = Settings {
        temp_dir: dir.to_owned(),
        state_dir: dir.join("state"),
        touch_system: false,
        notices: Vec::new(),
        token: Some("s3cret".into()),
        spool_limit: 1 << 20,
        own_network: false,
        passwd: Passwd::system(),
        inherited_env: Vec::new(),
    };
    let log = RunnerLog::create(dir, Level::Info, false, clock.clone()).unwrap();
    Core::create(settings, log, clock).unwrap()
}

#[tokio::test]
async fn through_ssh_only_the_logs_are_free_of_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let router = router(Arc::new(core(dir.path())), Arc::new(NoSsh));
    // 400: let in, but a WebSocket was expected.
    for (path, status) in [("/logs_ws", 400), ("/api/job", 401), ("/api/logs_ws", 401)] {
        let (mut ours, theirs) = duplex(1000);
        let serving = task::spawn("serve", serve_through_ssh(router.clone(), Box::new(theirs)));
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        ours.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
        serving.await.unwrap();
    }
}
