//! Lines of `GET /api/stream?timestamp=<cursor ms>` (not in dstack 0.22.5; with `&clients_left=true` the answer ends only
//! when no client that reads output at the runner is to be expected any more): `application/x-ndjson`, one JSON
//! object a line, pushed as things happen.
//!
//! Every event after the cursor comes exactly once, in strictly increasing order of its timestamp over all kinds.
//! A reader stores what it got, acknowledges it (`POST /api/ack`), and after a broken connection opens the stream
//! again at the last timestamp it stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lenient;
use crate::runner::{JobStateEvent, LogEvent};

/// One line of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamLine {
    /// The job's state changed.
    State(JobStateEvent),
    /// Output of the job.
    Log(LogEvent),
    /// The runner's own log.
    RunnerLog(LogEvent),
    /// Output lost because the spool was full: a mark in its place.
    Gap(Gap),
    /// Every 5 s: the runner is alive.
    Tick(Tick),
    /// The executor finished and everything before this line was written. The last line.
    End(End),
    /// A kind of a newer runner: skip it.
    #[serde(other)]
    Unknown,
}

impl StreamLine {
    /// The cursor after this line, for lines that are stored (not ticks and ends).
    pub const fn event_timestamp(&self) -> Option<i64> {
        match self {
            Self::State(state) => Some(state.timestamp),
            Self::Log(log) | Self::RunnerLog(log) => Some(log.timestamp),
            Self::Gap(gap) => Some(gap.timestamp),
            Self::Tick(_) | Self::End(_) | Self::Unknown => None,
        }
    }
}

/// Output that was lost: the runner's spool was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gap {
    /// ms: the place of the loss among the events.
    pub timestamp: i64,
    /// Bytes of log dropped here.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub lost_bytes: u64,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{} bytes of log were lost: the spool was full]",
            self.lost_bytes
        )
    }
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tick {
    /// Timestamp of the last event, ms.
    pub timestamp: i64,
    /// Seconds without a connection to the job's SSH server.
    #[serde(default, deserialize_with = "lenient::zero")]
    pub no_connections_secs: i64,
}

/// The end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// Timestamp of the last event, ms: acknowledge it to let the runner exit.
    pub timestamp: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::JobState;

    #[test]
    fn lines_have_the_agreed_shape() {
        let cases = [
            (
                StreamLine::State(JobStateEvent {
                    timestamp: 1,
                    state: JobState::Failed,
                    exit_status: Some(3),
                    ..Default::default()
                }),
                r#"{"type":"state","state":"failed","timestamp":1,"termination_reason":"","termination_message":"","exit_status":3}"#,
            ),
            (
                StreamLine::Log(LogEvent {
                    timestamp: 2,
                    message: b"hi".to_vec(),
                }),
                r#"{"type":"log","message":"aGk=","timestamp":2}"#,
            ),
            (
                StreamLine::RunnerLog(LogEvent {
                    timestamp: 2,
                    message: b"hi".to_vec(),
                }),
                r#"{"type":"runner_log","message":"aGk=","timestamp":2}"#,
            ),
            (
                StreamLine::Gap(Gap {
                    timestamp: 3,
                    lost_bytes: 9,
                }),
                r#"{"type":"gap","timestamp":3,"lost_bytes":9}"#,
            ),
            (
                StreamLine::Tick(Tick {
                    timestamp: 4,
                    no_connections_secs: 1,
                }),
                r#"{"type":"tick","timestamp":4,"no_connections_secs":1}"#,
            ),
            (
                StreamLine::End(End { timestamp: 4 }),
                r#"{"type":"end","timestamp":4}"#,
            ),
        ];
        for (line, text) in cases {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<StreamLine>(text).unwrap(), line);
        }
        let newer = r#"{"type":"later","timestamp":4}"#;
        assert_eq!(
            serde_json::from_str::<StreamLine>(newer).unwrap(),
            StreamLine::Unknown
        );
    }
}
