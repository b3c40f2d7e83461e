//! Fluent Bit: its inputs `forward` and `http`, with an output to Elasticsearch.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::post;
use rmpv::Value as Packed;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::elasticsearch::Elasticsearch;
use crate::{Fault, Faults, serve};

/// Bytes of a message (`Buffer_Max_Size` of the input `forward`).
const LARGEST: usize = 6 << 20;

/// The emulator of Fluent Bit.
#[derive(Debug, Clone)]
pub struct FluentBit {
    /// Port of its input.
    pub port: u16,
    /// Faults of the next calls, in order.
    pub faults: Faults,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    faults: Faults,
    tags: Mutex<Vec<String>>,
    output: Elasticsearch,
}

impl Shared {
    fn new(output: Elasticsearch) -> Arc<Self> {
        Arc::new(Self {
            faults: Faults::default(),
            tags: Mutex::default(),
            output,
        })
    }

    fn take(&self, tag: &str, records: Vec<Value>) {
        self.tags.lock().unwrap().push(tag.to_owned());
        for record in records {
            self.output.index(record);
        }
    }
}

impl FluentBit {
    /// With the input `forward`.
    pub async fn forward(output: Elasticsearch) -> Self {
        let state = Shared::new(output);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::clone(&state);
        dstack_system::task::spawn("double", async move {
            while let Ok((connection, _)) = listener.accept().await {
                dstack_system::task::spawn("double", converse(connection, Arc::clone(&shared)));
            }
        });
        let faults = state.faults.clone();
        Self { port, faults, state }
    }

    /// With the input `http`.
    pub async fn http(output: Elasticsearch) -> Self {
        let state = Shared::new(output);
        let router = Router::new()
            .route("/{*tag}", post(receive))
            .layer(axum::extract::DefaultBodyLimit::max(4 << 20))
            .with_state(Arc::clone(&state));
        let faults = state.faults.clone();
        Self {
            port: serve(router).await.port(),
            faults,
            state,
        }
    }

    /// Tags of the messages that came.
    pub fn tags(&self) -> Vec<String> {
        self.state.tags.lock().unwrap().clone()
    }
}

async fn receive(State(state): State<Arc<Shared>>, uri: Uri, body: Bytes) -> StatusCode {
    let fault = state.faults.next();
    match fault {
        Some(Fault::Throttled) => return StatusCode::TOO_MANY_REQUESTS,
        Some(Fault::Unavailable) => return StatusCode::SERVICE_UNAVAILABLE,
        Some(Fault::Denied) => return StatusCode::FORBIDDEN,
        Some(Fault::AnswerLost) | None => {}
    }
    let Ok(Value::Array(records)) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST;
    };
    state.take(uri.path().trim_start_matches('/'), records);
    match fault {
        Some(_) => StatusCode::INTERNAL_SERVER_ERROR,
        None => StatusCode::CREATED,
    }
}

/// Reads messages and acknowledges them, until the other end or a fault closes the connection.
async fn converse(mut connection: TcpStream, state: Arc<Shared>) {
    let mut bytes = Vec::new();
    loop {
        let mut rest = bytes.as_slice();
        let Ok(message) = rmpv::decode::read_value(&mut rest) else {
            assert!(bytes.len() < LARGEST, "the message is too large or no message");
            match connection.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        bytes = rest.to_vec();
        let fault = state.faults.next();
        if fault.is_some_and(|fault| fault != Fault::AnswerLost) {
            return;
        }
        let chunk = take_message(&state, &message);
        if fault.is_some() {
            return;
        }
        let mut answer = Vec::new();
        let acknowledgement = Packed::Map(vec![("ack".into(), chunk)]);
        rmpv::encode::write_value(&mut answer, &acknowledgement).unwrap();
        connection.write_all(&answer).await.unwrap();
    }
}

/// `[tag, [[time, record], …], {chunk, …}]`; gives the chunk.
fn take_message(state: &Shared, message: &Packed) -> Packed {
    let [tag, entries, options] = message.as_array().unwrap().as_slice() else {
        panic!("a message of the forward mode has three parts: {message}");
    };
    let record = |entry: &Packed| {
        let [time, record] = entry.as_array().unwrap().as_slice() else {
            panic!("an entry is a time and a record: {entry}");
        };
        assert!(
            matches!(time, Packed::Ext(0, bytes) if bytes.len() == 8),
            "{time}"
        );
        let fields = record.as_map().unwrap().iter();
        let text = |value: &Packed| value.as_str().unwrap().to_owned();
        Value::Object(
            fields
                .map(|(name, value)| (text(name), text(value).into()))
                .collect(),
        )
    };
    let records = entries.as_array().unwrap().iter().map(record).collect();
    state.take(tag.as_str().unwrap(), records);
    let chunk = options
        .as_map()
        .unwrap()
        .iter()
        .find(|(key, _)| key.as_str() == Some("chunk"));
    chunk.expect("a chunk to acknowledge").1.clone()
}
