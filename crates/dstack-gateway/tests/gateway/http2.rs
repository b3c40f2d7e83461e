//! What breaks the rules of HTTP/2 ends the stream or the connection that it was sent on, as RFC 9113 says, and nothing else.

use http::Request;
use serde_json::json;

use crate::support::app::App;
use crate::support::authority::{certificate, new_root};
use crate::support::client::{Answer, Http2, tls};
use crate::support::frames::{
    ACK, END_HEADERS, END_STREAM, Frames, Outcome, PADDED, block, code, frame, kind,
};
use crate::support::ssh::Ssh;
use crate::support::{Setup, certbots_certificate};

const HOST: &str = "web.example.com";
const REQUEST: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", HOST),
    (":path", "/x"),
];
const WHOLE: u8 = END_HEADERS | END_STREAM;

/// A gateway with one service.
struct Served {
    setup: Setup,
    root: String,
    _ssh: Ssh,
    _app: App,
}

impl Served {
    async fn start() -> Self {
        let (root, issuer) = new_root();
        let (chain, key) = certificate(&issuer, HOST, -1..60);
        let setup = Setup::start().await;
        certbots_certificate(&setup.settings, HOST, &chain, &key);
        let (ssh, app) = (Ssh::start().await, App::start("one").await);
        setup.serve(json!({"https": true}), &ssh, &app).await;
        Self {
            setup,
            root,
            _ssh: ssh,
            _app: app,
        }
    }

    async fn connect(&self) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        tls(self.setup.https(), HOST, &self.root, &[b"h2"]).await.unwrap()
    }

    async fn open(&self) -> Frames {
        Frames::open(self.connect().await).await
    }

    /// What becomes of a connection on which these bytes are sent, and of its first stream.
    async fn after(&self, bytes: &[u8]) -> Outcome {
        let mut frames = self.open().await;
        frames.send(bytes).await;
        frames.outcome(1).await
    }

    /// Others are served as before.
    async fn serves(&self) {
        let connection = Http2::new(self.connect().await).await;
        let request = Request::get(format!("https://{HOST}/x"));
        let answer = Answer::of(connection.send(request.body(String::new()).unwrap()).await).await;
        assert_eq!(answer.status, 200);
    }
}

fn headers(stream: u32, flags: u8, lines: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, flags, stream, block(lines))
}

/// A request with further lines.
fn with(lines: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [REQUEST, lines].concat()
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    let payload = [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
    frame(kind::SETTINGS, 0, 0, payload)
}

fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, more.to_be_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_break_the_rules_end_the_connection() {
    let served = Served::start().await;
    let request = headers(1, WHOLE, REQUEST);
    let upload = headers(1, END_HEADERS, REQUEST);
    let after = |before: &[u8], then: Vec<u8>| [before, &then].concat();
    let cases: Vec<(&str, Vec<u8>, &[u32])> = vec![
        (
            "data without a stream",
            frame(kind::DATA, 0, 0, *b"x"),
            &[code::PROTOCOL],
        ),
        (
            "data of a stream that nobody opened",
            frame(kind::DATA, 0, 1, *b"x"),
            &[code::PROTOCOL],
        ),
        (
            "padding longer than the data",
            after(&upload, frame(kind::DATA, PADDED, 1, [200, 1, 2])),
            &[code::PROTOCOL],
        ),
        (
            "a frame longer than was agreed",
            after(&upload, frame(kind::DATA, 0, 1, vec![0; 16_385])),
            &[code::FRAME_SIZE],
        ),
        (
            "headers without a stream",
            headers(0, WHOLE, REQUEST),
            &[code::PROTOCOL],
        ),
        (
            "a stream with a server's number",
            headers(2, WHOLE, REQUEST),
            &[code::PROTOCOL],
        ),
        (
            "a stream older than the last",
            after(&headers(5, WHOLE, REQUEST), headers(3, WHOLE, REQUEST)),
            &[code::PROTOCOL, code::STREAM_CLOSED],
        ),
        (
            "headers that are no compression",
            frame(kind::HEADERS, WHOLE, 1, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            &[code::COMPRESSION],
        ),
        (
            "headers that name a line nobody knows",
            frame(kind::HEADERS, WHOLE, 1, [0xc6]),
            &[code::COMPRESSION],
        ),
        (
            "a table larger than was agreed",
            frame(kind::HEADERS, WHOLE, 1, [0x3f, 0xe1, 0xff, 0x03]),
            &[code::COMPRESSION],
        ),
        (
            "something between the parts of headers",
            after(&headers(1, END_STREAM, REQUEST), frame(kind::PING, 0, 0, [0; 8])),
            &[code::PROTOCOL],
        ),
        (
            "parts of another stream's headers",
            after(
                &headers(1, END_STREAM, REQUEST),
                frame(kind::CONTINUATION, END_HEADERS, 3, []),
            ),
            &[code::PROTOCOL],
        ),
        (
            "a part of no headers",
            after(&request, frame(kind::CONTINUATION, END_HEADERS, 1, [])),
            &[code::PROTOCOL],
        ),
        (
            "settings of a stream",
            frame(kind::SETTINGS, 0, 1, []),
            &[code::PROTOCOL],
        ),
        (
            "half a setting",
            frame(kind::SETTINGS, 0, 0, [0; 5]),
            &[code::FRAME_SIZE],
        ),
        (
            "agreement with something in it",
            frame(kind::SETTINGS, ACK, 0, [0; 6]),
            &[code::FRAME_SIZE],
        ),
        (
            "a setting that is neither on nor off",
            setting(2, 2),
            &[code::PROTOCOL],
        ),
        (
            "a window larger than there is",
            setting(4, 1 << 31),
            &[code::FLOW_CONTROL],
        ),
        (
            "frames smaller than may be",
            setting(5, 16_383),
            &[code::PROTOCOL],
        ),
        (
            "frames larger than may be",
            setting(5, 1 << 24),
            &[code::PROTOCOL],
        ),
        (
            "a ping of a stream",
            frame(kind::PING, 0, 1, [0; 8]),
            &[code::PROTOCOL],
        ),
        (
            "a short ping",
            frame(kind::PING, 0, 0, [0; 6]),
            &[code::FRAME_SIZE],
        ),
        (
            "farewell to a stream",
            frame(kind::GOAWAY, 0, 1, [0; 8]),
            &[code::PROTOCOL],
        ),
        (
            "a window for a stream that nobody opened",
            window(1, 1),
            &[code::PROTOCOL],
        ),
        ("a window of no size", window(0, 0), &[code::PROTOCOL]),
        (
            "windows that add up to more than there is",
            window(0, (1 << 31) - 1),
            &[code::FLOW_CONTROL],
        ),
        (
            "a window in three bytes",
            frame(kind::WINDOW_UPDATE, 0, 0, [0; 3]),
            &[code::FRAME_SIZE],
        ),
        (
            "an end of no stream",
            frame(kind::RST_STREAM, 0, 0, [0; 4]),
            &[code::PROTOCOL],
        ),
        (
            "an end of a stream that nobody opened",
            frame(kind::RST_STREAM, 0, 1, [0; 4]),
            &[code::PROTOCOL],
        ),
        (
            "an end in three bytes",
            after(&upload, frame(kind::RST_STREAM, 0, 1, [0; 3])),
            &[code::FRAME_SIZE],
        ),
        (
            "a rank without a stream",
            frame(kind::PRIORITY, 0, 0, [0; 5]),
            &[code::PROTOCOL],
        ),
        (
            "a promise of a client",
            after(&request, frame(kind::PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])),
            &[code::PROTOCOL],
        ),
    ];
    let mut wrong = Vec::new();
    for (name, bytes, codes) in &cases {
        let mut frames = served.open().await;
        frames.send(bytes).await;
        // Streams that were opened before may be answered first.
        let outcome = loop {
            match frames.outcome(1).await {
                Outcome::Answered(_) => {}
                other => break other,
            }
        };
        // Who cannot hear any more why may be told nothing (RFC 9113, 5.4.1).
        let is_right = match &outcome {
            // The one for what has none of its own is right for everything (RFC 9113, 7).
            Outcome::Connection(Some(code)) => *code == code::PROTOCOL || codes.contains(code),
            Outcome::Connection(None) => true,
            Outcome::Stream(_) | Outcome::Answered(_) => false,
        };
        if !is_right {
            wrong.push(format!("{name}: {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    served.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_break_the_rules_end_their_stream_alone() {
    let served = Served::start().await;
    let without = |name: &str| -> Vec<_> { REQUEST.iter().copied().filter(|line| line.0 != name).collect() };
    let post = |length: &'static str| with(&[("content-length", length)]);
    let body = |bytes: &'static [u8]| frame(kind::DATA, END_STREAM, 1, bytes);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "a name with a capital",
            headers(1, WHOLE, &with(&[("X-Test", "a")])),
        ),
        ("no method", headers(1, WHOLE, &without(":method"))),
        ("no path", headers(1, WHOLE, &without(":path"))),
        (
            "an empty path",
            headers(1, WHOLE, &[without(":path"), vec![(":path", "")]].concat()),
        ),
        (
            "two methods",
            headers(1, WHOLE, &[vec![(":method", "GET")], REQUEST.to_vec()].concat()),
        ),
        (
            "two paths",
            headers(1, WHOLE, &[vec![(":path", "/y")], REQUEST.to_vec()].concat()),
        ),
        (
            "a status",
            headers(1, WHOLE, &[vec![(":status", "200")], REQUEST.to_vec()].concat()),
        ),
        (
            "something unknown with a colon",
            headers(1, WHOLE, &[vec![(":test", "a")], REQUEST.to_vec()].concat()),
        ),
        (
            "the path last",
            headers(
                1,
                WHOLE,
                &[without(":path"), vec![("x-test", "a"), (":path", "/x")]].concat(),
            ),
        ),
        (
            "a line of the connection",
            headers(1, WHOLE, &with(&[("connection", "keep-alive")])),
        ),
        (
            "a line of the encoding of HTTP/1",
            headers(1, WHOLE, &with(&[("transfer-encoding", "chunked")])),
        ),
        (
            "trailers that may be something else",
            headers(1, WHOLE, &with(&[("te", "gzip")])),
        ),
        (
            "a value over two lines",
            headers(1, WHOLE, &with(&[("x-test", "a\r\nx-more: b")])),
        ),
        (
            "more than was said",
            [headers(1, END_HEADERS, &post("1")), body(b"four")].concat(),
        ),
        (
            "less than was said",
            [headers(1, END_HEADERS, &post("4")), body(b"x")].concat(),
        ),
        ("nothing where something was said", headers(1, WHOLE, &post("4"))),
        (
            "trailers that do not end it",
            [
                headers(1, END_HEADERS, REQUEST),
                headers(1, END_HEADERS, &[("x-test", "a")]),
            ]
            .concat(),
        ),
        (
            "a window of no size",
            [headers(1, END_HEADERS, REQUEST), window(1, 0)].concat(),
        ),
        (
            "windows that add up to more than there is",
            [headers(1, END_HEADERS, REQUEST), window(1, (1 << 31) - 1)].concat(),
        ),
        ("a rank in four bytes", frame(kind::PRIORITY, 0, 1, [0; 4])),
        (
            "a stream that comes after itself",
            frame(kind::PRIORITY, 0, 1, [0, 0, 0, 1, 0]),
        ),
    ];
    let mut wrong = Vec::new();
    for (name, bytes) in &cases {
        // A connection error is always allowed in place of a stream's (RFC 9113, 5.4.1).
        match served.after(bytes).await {
            Outcome::Stream(_) | Outcome::Connection(_) => {}
            Outcome::Answered(head) if is_refusal(&head) => {}
            other => wrong.push(format!("{name}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    served.serves().await;
}

/// Whether an answer begins with status 400: from the fixed table, or as a line of its own (RFC 7541, appendix A).
fn is_refusal(head: &[u8]) -> bool {
    head.first() == Some(&0x8c)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_or_unknown_disturbs_nothing() {
    let served = Served::start().await;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a frame of a later version", frame(0xee, 0xff, 0, *b"whatever")),
        ("a setting of a later version", setting(0xee, 1)),
        (
            "a rank of a stream to come",
            frame(kind::PRIORITY, 0, 7, [0, 0, 0, 0, 9]),
        ),
        ("an empty setting", frame(kind::SETTINGS, 0, 0, [])),
        ("a larger window", window(0, 1 << 20)),
    ];
    for (name, bytes) in cases {
        let outcome = served.after(&[bytes, headers(1, WHOLE, REQUEST)].concat()).await;
        assert!(matches!(outcome, Outcome::Answered(_)), "{name}: {outcome:?}");
    }
    // In parts.
    let lines = block(REQUEST);
    let (first, second) = lines.split_at(7);
    let parts = [
        frame(kind::HEADERS, END_STREAM, 1, first),
        frame(kind::CONTINUATION, END_HEADERS, 1, second),
    ];
    let outcome = served.after(&parts.concat()).await;
    assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
    // A sign of life is given back as it is.
    let mut frames = served.open().await;
    frames.send(&frame(kind::PING, 0, 0, *b"12345678")).await;
    let pong = loop {
        let frame = frames.next().await.unwrap();
        if frame.kind == kind::PING {
            break frame;
        }
    };
    assert_eq!((pong.flags, pong.payload.as_slice()), (ACK, &b"12345678"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_speak_http2_is_not_waited_for() {
    let served = Served::start().await;
    let mut frames = Frames::raw(served.connect().await);
    frames
        .send(b"GET / HTTP/1.1\r\nHost: web.example.com\r\n\r\n")
        .await;
    assert!(matches!(frames.outcome(1).await, Outcome::Connection(_)));
}

/// The bytes of a flood, by their number.
type Piece = dyn Fn(u32) -> Vec<u8>;

#[tokio::test(flavor = "multi_thread")]
async fn floods_end_with_their_connection() {
    let served = Served::start().await;
    let open_and_end = |number: u32| {
        let stream = number * 2 + 1;
        let ended = frame(kind::RST_STREAM, 0, stream, 8_u32.to_be_bytes());
        [headers(stream, WHOLE, REQUEST), ended].concat()
    };
    let endless = |number: u32| match number {
        0 => headers(1, END_STREAM, REQUEST),
        _ => frame(kind::CONTINUATION, 0, 1, block(&[("x-test", &"a".repeat(8000))])),
    };
    let floods: [(&str, &Piece); 2] = [
        ("streams that are ended at once", &open_and_end),
        ("headers without an end", &endless),
    ];
    for (name, piece) in floods {
        let mut frames = served.open().await;
        let mut ended = None;
        for number in 0..20_000_u32 {
            frames.send(&piece(number)).await;
            if number % 100 == 99
                && let Outcome::Connection(code) = frames.settled().await
            {
                ended = Some(code);
                break;
            }
        }
        let code = ended.unwrap_or_else(|| panic!("{name}: it goes on for ever"));
        assert!(
            [
                None,
                Some(code::ENHANCE_YOUR_CALM),
                Some(code::PROTOCOL),
                Some(code::COMPRESSION)
            ]
            .contains(&code),
            "{name}: {code:?}"
        );
        served.serves().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_streams_than_were_agreed_are_refused() {
    let served = Served::start().await;
    let mut frames = served.open().await;
    // Requests whose bodies never come hold their places.
    let open: Vec<u8> = (0..2000)
        .flat_map(|number| headers(number * 2 + 1, END_HEADERS, REQUEST))
        .collect();
    frames.send(&open).await;
    let outcome = frames.outcome(2000 * 2 - 1).await;
    assert!(
        matches!(
            outcome,
            Outcome::Stream(code::REFUSED_STREAM) | Outcome::Connection(Some(_))
        ),
        "{outcome:?}"
    );
    served.serves().await;
}
