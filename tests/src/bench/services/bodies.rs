//! Bodies of a mebibyte, to and from a service of this machine, beside nginx in the server's place.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::net::TcpStream;

use super::nginx::Nginx;
use super::upstream::{Connection, HELLO, serve, whole};
use super::{PATH, ROUNDS, median_round, serving};
use crate::bench::measures::{Figure, figure, ours_only};
use crate::bench::report::Unit;
use crate::bench::subject::Subject;
use crate::load::{Bulk, Destination, Measured};
use crate::server::TOKEN;

pub(super) const BODY: usize = 1 << 20;

const LOAD: Bulk = Bulk {
    clients: 16,
    duration: Duration::from_secs(3),
};

/// nginx passes bodies on as they come and keeps nothing on disk, as the server does.
pub(super) const STREAMING: &str = "client_max_body_size 0; proxy_request_buffering off; client_body_buffer_size 64k;\n\
                         proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_max_temp_file_size 0;";

/// Where bodies go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Answers,
    Requests,
}

impl Way {
    pub(super) fn load(self, destination: &Destination<'_>, body: &[u8]) -> Result<Measured> {
        match self {
            Self::Answers => LOAD.get(destination),
            Self::Requests => LOAD.post(destination, body),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers of 1 MiB of a service of this machine",
            Self::Requests => "requests of 1 MiB to a service of this machine",
        }
    }
}

pub(in crate::bench) fn bodies(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let body = vec![b'x'; BODY];
    let large: Arc<[u8]> = whole("application/octet-stream", &body).into();
    let port = serve(move |stream| answer(stream, Arc::clone(&large)))?;
    let nginx = Nginx::start(port, STREAMING)?;
    let server = serving(subject, port, &json!({}))?;
    let mut figures = Vec::new();
    for way in [Way::Answers, Way::Requests] {
        // In turns: what is measured shares its processors with others.
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(way.load(&Destination::here(server.port(), PATH, Some(TOKEN)), &body)?);
            if let Some(nginx) = &nginx {
                theirs.push(way.load(&Destination::here(nginx.port, "/", None), &body)?);
            }
        }
        let (name, clients) = (way.name(), LOAD.clients);
        figures.extend(shown(
            &format!("{name}, with a token, {clients} clients"),
            "≥ 500 MB/s",
            ours,
        ));
        figures.extend(shown(
            &format!("{name} behind nginx that buffers nothing on disk, without tokens"),
            "–",
            theirs,
        ));
    }
    Ok(figures)
}

/// The median of the rounds.
pub(super) fn shown(name: &str, target: &'static str, rounds: Vec<Measured>) -> Vec<Figure> {
    let Some(median) = median_round(rounds) else {
        return Vec::new();
    };
    let rate = median.rate * BODY as f64;
    vec![
        figure(name, Unit::BytesPerSecond, target, rate),
        figure(format!("{name}, p99"), Unit::Seconds, "–", median.latency.p99),
    ]
}

/// Requests with a body get a few bytes, others a large answer.
async fn answer(stream: TcpStream, large: Arc<[u8]>) -> Result<()> {
    let mut connection = Connection::new(stream)?;
    while let Some(request) = connection.request().await? {
        let posted = request.starts_with(b"POST ");
        let answer = if posted { HELLO } else { &*large };
        connection.send(answer).await?;
    }
    Ok(())
}
