//! Calls the runner: ours and dstack 0.22.5's.

use std::sync::Arc;

use bytes::Bytes;

use dstack_system::Secret;

use crate::http::{AgentHttp, Call, CallError, Connector, Lines, UPLOAD_TIMEOUT};
use crate::runner::{Ack, Healthcheck, JobInfo, JobStatus, Metrics, PullResponse, SubmitBody};
use crate::stream::StreamLine;

/// The longest answer about the use of resources: of some hundred GPUs. It is kept, and comes out of the job's container.
const MAX_METRICS_BYTES: usize = 64 * 1024;

/// Client of one runner.
#[derive(Debug, Clone)]
pub struct RunnerClient {
    http: AgentHttp,
}

impl RunnerClient {
    /// A client over this connector.
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            http: AgentHttp::new(connector),
        }
    }

    /// With the token of the task ([`crate::shim::TaskConfig::runner_token`]).
    pub fn with_token(self, token: Secret) -> Self {
        Self {
            http: self.http.with_token(token),
        }
    }

    /// Who answers, and its version.
    pub async fn healthcheck(&self) -> Result<Healthcheck, CallError> {
        self.http.send(Call::get("/api/healthcheck")).await?.json()
    }

    /// Hands the job over; may be repeated until [`Self::run`]. `Refused` 409: already running.
    pub async fn submit(&self, body: &SubmitBody) -> Result<(), CallError> {
        self.http
            .send(Call::post("/api/submit").json(body)?)
            .await
            .map(drop)
    }

    /// Uploads a file archive (tar) under its id.
    pub async fn upload_archive(&self, id: &str, archive: &[u8]) -> Result<(), CallError> {
        let boundary = boundary_for(archive);
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let body = multipart(&boundary, id, archive);
        let call = Call::post("/api/upload_archive")
            .body(content_type, body)
            .within(UPLOAD_TIMEOUT);
        self.http.send(call).await.map(drop)
    }

    /// Uploads the repo's tar or diff; empty for agents before 0.20.17 when there is none.
    pub async fn upload_code(&self, code: impl Into<Bytes>) -> Result<(), CallError> {
        let call = Call::post("/api/upload_code")
            .raw_body(code)
            .within(UPLOAD_TIMEOUT);
        self.http.send(call).await.map(drop)
    }

    /// Starts the job. `None`: an old agent, or the job failed at once. `Refused` 409: already started, see [`Self::job`].
    pub async fn run(&self) -> Result<Option<JobInfo>, CallError> {
        let answer = self.http.send(Call::post("/api/run")).await?;
        if answer.is_json() {
            answer.json().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Everything after the cursor (ms); acknowledges what is up to it.
    pub async fn pull(&self, cursor: i64) -> Result<PullResponse, CallError> {
        self.http
            .send(Call::get(format!("/api/pull?timestamp={cursor}")))
            .await?
            .json()
    }

    /// Stops the job gracefully; returns at once.
    pub async fn stop(&self) -> Result<(), CallError> {
        self.http.send(Call::post("/api/stop")).await.map(drop)
    }

    /// Resource usage; `Refused` 404: not available.
    pub async fn metrics(&self) -> Result<Metrics, CallError> {
        let call = Call::get("/api/metrics").at_most(MAX_METRICS_BYTES);
        self.http.send(call).await?.json()
    }

    /// What the runner is doing; `Refused` 404: dstack 0.22.5's runner, which has no such route.
    pub async fn job(&self) -> Result<JobStatus, CallError> {
        self.http.send(Call::get("/api/job")).await?.json()
    }

    /// Everything up to `timestamp` (ms) is stored: the runner may drop it, and exit when that was all.
    pub async fn ack(&self, timestamp: i64) -> Result<(), CallError> {
        self.http
            .send(Call::post("/api/ack").json(&Ack { timestamp })?)
            .await
            .map(drop)
    }

    /// Events after the cursor (ms) as they happen, up to the end of the job; `Refused` 404: dstack 0.22.5's runner, use
    /// [`Self::pull`].
    pub async fn stream(&self, cursor: i64) -> Result<EventStream, CallError> {
        self.events(format!("/api/stream?timestamp={cursor}")).await
    }

    /// As [`Self::stream`]; after the end of the job, the stream stays open until no client that reads output at the runner is
    /// to be expected any more.
    pub async fn stream_until_clients_left(&self, cursor: i64) -> Result<EventStream, CallError> {
        let path = format!("/api/stream?timestamp={cursor}&clients_left=true");
        self.events(path).await
    }

    async fn events(&self, path: String) -> Result<EventStream, CallError> {
        let lines = self.http.stream(Call::get(path)).await?;
        Ok(EventStream { lines })
    }
}

/// Events of a runner as they happen.
#[derive(Debug)]
pub struct EventStream {
    lines: Lines,
}

impl EventStream {
    /// The next line; `None` after [`StreamLine::End`]. Safe to cancel. An error is final: open the stream again at the
    /// last stored timestamp. [`StreamLine::Unknown`] is passed over.
    pub async fn next(&mut self) -> Result<Option<StreamLine>, CallError> {
        loop {
            let Some(line) = self.lines.next().await? else {
                return Ok(None);
            };
            let parsed = serde_json::from_slice(&line).map_err(|source| CallError::Unreadable {
                call: "GET /api/stream".to_owned(),
                source: source.into(),
            })?;
            if parsed != StreamLine::Unknown {
                return Ok(Some(parsed));
            }
        }
    }
}

/// A boundary that does not occur in the content.
fn boundary_for(content: &[u8]) -> String {
    let mut boundary = "dstack-archive-boundary".to_owned();
    while content
        .windows(boundary.len())
        .any(|window| window == boundary.as_bytes())
    {
        boundary.push_str("-x");
    }
    boundary
}

fn multipart(boundary: &str, id: &str, archive: &[u8]) -> Vec<u8> {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"archive\"; filename=\"{id}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    [head.as_bytes(), archive, tail.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_never_occurs_in_the_content() {
        assert_eq!(boundary_for(b"plain"), "dstack-archive-boundary");
        let content = b"--dstack-archive-boundary-x\r\n";
        let boundary = boundary_for(content);
        assert!(!String::from_utf8_lossy(content).contains(&boundary));
    }
}
