//! Reads what replicas tell of themselves, over the connections that probes take, as long as somebody asks for it: whoever drives their
//! service.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::http::Connector;
use dstack_plan::services::pages::{History, Page, Told, told};
use dstack_proxy::exchange;
use dstack_store::{Database, EngineStore as _, SqlStore};
use dstack_system::{Locked, chain};
use dstack_units::{JobId, Seconds};
use futures_util::stream::{self, StreamExt as _};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ports::Reachable;

/// A page is read so often.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// As long as somebody has asked for it within this time.
const ASKED_FOR: Duration = Duration::from_secs(60);
/// Time to answer.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of a page.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Pages that are read at a time.
const AT_ONCE: usize = 16;

/// The pages of replicas.
#[derive(Debug)]
pub(super) struct Pages {
    database: Database,
    ports: Arc<Reachable>,
    /// Times of pages count from here.
    since: Instant,
    asked: Locked<HashMap<JobId, Asked>>,
    /// A page is asked for that was not before.
    wanted: Notify,
}

/// A page that is asked for.
#[derive(Debug)]
struct Asked {
    path: String,
    at: Instant,
    next: Instant,
    /// `None`: it is to be found out how the job is reached.
    connector: Option<Arc<dyn Connector>>,
    history: History,
}

/// A page that is to be read now: of which job, at which path, and how that is reached, if it is known.
type Due = (JobId, String, Option<Arc<dyn Connector>>);

impl Pages {
    pub(super) fn new(database: Database, ports: Arc<Reachable>) -> Self {
        Self {
            database,
            ports,
            since: Instant::now(),
            asked: Locked::default(),
            wanted: Notify::new(),
        }
    }

    /// What these jobs tell together at this path, as far as it was read; from now on it is read, for a while.
    pub(super) fn told(&self, jobs: &[JobId], path: &str, window: Seconds) -> Told {
        let now = Instant::now();
        let mut asked = self.asked.lock();
        for job in jobs {
            self.ask(&mut asked, *job, path, now);
        }
        let histories = jobs.iter().map(|job| asked.get(job).map(|asked| &asked.history));
        let window = Duration::from_secs(u64::try_from(window.0).unwrap_or(0));
        told(histories, now.saturating_duration_since(self.since), window)
    }

    fn ask(&self, asked: &mut HashMap<JobId, Asked>, job: JobId, path: &str, now: Instant) {
        if let Some(known) = asked.get_mut(&job).filter(|known| known.path == path) {
            known.at = now;
            return;
        }
        let new = Asked {
            path: path.to_owned(),
            at: now,
            next: now,
            connector: None,
            history: History::default(),
        };
        asked.insert(job, new);
        self.wanted.notify_one();
    }

    /// Reads what is asked for, as long as the server runs.
    pub(super) async fn follow(&self) {
        loop {
            let due = self.due();
            stream::iter(due)
                .for_each_concurrent(AT_ONCE, |(job, path, connector)| self.read(job, path, connector))
                .await;
            let next = self.next();
            tokio::select! {
                () = self.wanted.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Takes what is to be read now, and forgets what nobody asks for any more.
    fn due(&self) -> Vec<Due> {
        let now = Instant::now();
        let mut asked = self.asked.lock();
        asked.retain(|_, asked| now < asked.at + ASKED_FOR);
        let due = asked.iter_mut().filter(|(_, asked)| asked.next <= now);
        let due = due.map(|(job, asked)| {
            asked.next = now + READ_INTERVAL;
            (*job, asked.path.clone(), asked.connector.clone())
        });
        due.collect()
    }

    fn next(&self) -> Instant {
        let asked = self.asked.lock();
        let next = asked.values().map(|asked| asked.next).min();
        next.unwrap_or_else(|| Instant::now() + ASKED_FOR)
    }

    async fn read(&self, job: JobId, path: String, connector: Option<Arc<dyn Connector>>) {
        let connector = match connector {
            Some(connector) => Ok(connector),
            None => self.connector(job).await,
        };
        let page = match &connector {
            Ok(connector) => page(connector.as_ref(), &path).await,
            Err(error) => Err(Untold::NoAnswer(error.clone())),
        };
        let now = Instant::now().saturating_duration_since(self.since);
        let mut asked = self.asked.lock();
        let Some(known) = asked.get_mut(&job).filter(|known| known.path == path) else {
            return;
        };
        // One that does not answer may be reached in another way by now.
        known.connector = connector
            .ok()
            .filter(|_| !matches!(page, Err(Untold::NoAnswer(_))));
        match page {
            Ok(page) => known.history.note(now, page),
            Err(error) => tracing::debug!(job.id = %job, path, %error, "a replica does not tell how it is"),
        }
    }

    async fn connector(&self, job: JobId) -> Result<Arc<dyn Connector>, String> {
        let found = SqlStore::new(self.database.clone()).job(job).await;
        let found = found.map_err(|error| chain(&error).to_string())?;
        let found = found.ok_or("the job is gone")?;
        let port = found.job.job_spec.service_port.ok_or("the job has no port")?;
        let address = found.instance.as_ref().and_then(|row| row.agent.as_deref());
        Ok(self.ports.connector(address, &found.job, port))
    }
}

/// Why there is no page.
#[derive(Debug)]
enum Untold {
    /// The replica is not reached, or does not answer.
    NoAnswer(String),
    /// It answers something else.
    Status(StatusCode),
}

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(error) => f.write_str(error),
            Self::Status(status) => write!(f, "it answered {status}"),
        }
    }
}

async fn page(replica: &dyn Connector, path: &str) -> Result<Page, Untold> {
    let answer = answer(replica, path).await.map_err(Untold::NoAnswer)?;
    match answer.status() {
        StatusCode::OK => Ok(Page::read(&String::from_utf8_lossy(answer.body()))),
        status => Err(Untold::Status(status)),
    }
}

async fn answer(replica: &dyn Connector, path: &str) -> Result<Response<Bytes>, String> {
    let request = Request::get(path)
        .header(HOST, "localhost")
        .header(USER_AGENT, "dstack-metrics")
        .header(ACCEPT, "text/plain")
        .body(Full::<Bytes>::default())
        .map_err(|error| error.to_string())?;
    let asked = exchange::ask(replica, request, MAX_PAGE_BYTES);
    let answer = tokio::time::timeout(READ_TIMEOUT, asked).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", READ_TIMEOUT.as_secs()))?;
    answer.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use dstack_system::task;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const QUEUE: &str = "vllm:num_requests_waiting 3\n";

    /// Answers so, after this time, whatever is asked.
    #[derive(Debug)]
    struct Replica {
        answer: String,
        after: Duration,
    }

    #[async_trait]
    impl Connector for Replica {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (here, mut there) = tokio::io::duplex(1 << 16);
            let (answer, after) = (self.answer.clone(), self.after);
            task::spawn("a replica", async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(there.read_u8().await.unwrap());
                }
                tokio::time::sleep(after).await;
                // Whoever has read enough goes.
                there.write_all(answer.as_bytes()).await.ok();
            });
            Ok(Box::new(here))
        }
    }

    async fn read(status: &str, bytes: usize, after: Duration) -> Result<Page, Untold> {
        let body = format!("{QUEUE}{}", "#".repeat(bytes - QUEUE.len()));
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {bytes}\r\n\r\n{body}");
        page(&Replica { answer, after }, "/metrics").await
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_comes_late_is_too_long_or_an_error_tells_nothing() {
        let soon = READ_TIMEOUT.saturating_sub(Duration::from_millis(1));
        let page = read("200 OK", MAX_PAGE_BYTES, soon).await.unwrap();
        assert_eq!(page.queue, Some(3.0));
        for (status, bytes, after) in [
            ("200 OK", MAX_PAGE_BYTES + 1, soon),
            ("200 OK", 100, READ_TIMEOUT + Duration::from_millis(1)),
        ] {
            let read = read(status, bytes, after).await;
            assert!(matches!(read, Err(Untold::NoAnswer(_))), "{read:?}");
        }
        // It is reached: how to do that need not be found out again.
        let missing = read("404 Not Found", 100, Duration::ZERO).await;
        assert!(
            matches!(missing, Err(Untold::Status(StatusCode::NOT_FOUND))),
            "{missing:?}"
        );
    }
}
