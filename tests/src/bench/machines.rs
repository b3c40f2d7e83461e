//! Doubles of machines that take a server's agent: each has an address of 127.0.0.0/8, an SSH server of this process with a host key
//! of its own, and an agent that answers. Their shells run nothing: to every script they say all that a good host would.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dstack_agent_api::proof::Gate;
use dstack_agent_api::shim::StreamEvent;
use dstack_system::{Random, Secret, task};
use http::Request;
use http::request::Parts;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::services::hello;

/// Of a service that all of them run.
pub(super) const SERVICE_PORT: u16 = 8000;

/// How often an agent says that it lives.
const TICK: Duration = Duration::from_secs(5);

/// Machines, as long as this lives.
#[derive(Debug)]
pub(super) struct Machines {
    addresses: Vec<Ipv4Addr>,
    /// Of SSH, at all addresses.
    port: u16,
    key: PrivateKey,
    sessions: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Machines {
    /// So many, at most 65,000.
    pub(super) fn start(count: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let addresses = (0..count).map(address).collect::<Result<Vec<_>>>()?;
        let sessions = Arc::default();
        let port = {
            let _inside = runtime.enter();
            runtime.block_on(serve_all(&addresses, &sessions))?
        };
        Ok(Self {
            addresses,
            port,
            key: new_key()?,
            sessions,
            _runtime: runtime,
        })
    }

    /// Where SSH reaches them.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let port = self.port;
        self.addresses.iter().map(move |address| (*address, port).into())
    }

    /// The private key that they take, as any other, in OpenSSH's format.
    pub(super) fn private_key(&self) -> Result<String> {
        Ok(self.key.to_openssh(LineEnding::LF)?.to_string())
    }

    /// How many SSH connections were made to them.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The fleet `lab` of the first so many.
    pub(super) fn fleet(&self, count: usize) -> Result<Value> {
        let hosts = self.addresses.iter().take(count);
        let hosts: Vec<String> = hosts.map(Ipv4Addr::to_string).collect();
        let key = json!({"public": self.key.public_key().to_openssh()?, "private": self.private_key()?});
        let ssh = json!({"user": "root", "port": self.port, "ssh_key": key, "hosts": hosts});
        // Jobs would be processes: there is no container engine.
        let env = json!({"DSTACK_SHIM_RUNTIME": "process"});
        let configuration = json!({"type": "fleet", "name": "lab", "ssh_config": ssh, "env": env});
        Ok(json!({"configuration": configuration, "profile": {"name": "default"}}))
    }
}

fn address(number: usize) -> Result<Ipv4Addr> {
    let [high, low] = u16::try_from(number)?.to_be_bytes();
    Ok(Ipv4Addr::new(127, 101, high, low))
}

pub(super) fn new_key() -> Result<PrivateKey> {
    Ok(PrivateKey::random(
        &mut russh::keys::key::safe_rng(),
        Algorithm::Ed25519,
    )?)
}

/// Listens at all addresses, on the port that the first gets.
async fn serve_all(addresses: &[Ipv4Addr], sessions: &Arc<AtomicUsize>) -> Result<u16> {
    let mut port = 0;
    for (number, address) in addresses.iter().enumerate() {
        let listener = TcpListener::bind((*address, port)).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}:{port}"))?;
        port = listener.local_addr()?.port();
        let config = Arc::new(server::Config {
            keys: vec![new_key()?],
            ..server::Config::default()
        });
        let machine = Arc::new(Machine {
            number,
            gate: Mutex::default(),
        });
        let sessions = Arc::clone(sessions);
        task::spawn("machine", async move {
            while let Ok((stream, _)) = listener.accept().await {
                sessions.fetch_add(1, Ordering::Relaxed);
                let client = Client {
                    machine: Arc::clone(&machine),
                    scripts: HashMap::new(),
                };
                if let Ok(session) = server::run_stream(Arc::clone(&config), stream, client).await {
                    task::spawn("machine session", session);
                }
            }
        });
    }
    Ok(port)
}

struct Machine {
    number: usize,
    /// The agent, once it was installed.
    gate: Mutex<Option<Arc<Gate>>>,
}

impl Machine {
    /// All that any script may want to know.
    fn says(&self, script: &str) -> String {
        let installs = script.contains("shim-loop.sh");
        if let Some(token) = variable(script, "token").filter(|_| installs) {
            let gate = Gate::new(Secret::new(token), Random::system());
            *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(gate));
        }
        let state = if installs { "started" } else { "there" };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        format!(
            "dstack:began=yes\ndstack:uid=0\ndstack:arch=x86_64\ndstack:os=Linux\ndstack:now={now}\n\
             dstack:disk=/dev/sda1 100000000 500000 90000000 1% /\ndstack:state={state}\n\
             dstack:kernel=machine {0}\ndstack:network=net:[{0}]\n",
            self.number
        )
    }

    fn agent(&self) -> Option<Arc<Gate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a script assigns to a variable.
fn variable<'a>(script: &'a str, name: &str) -> Option<&'a str> {
    let line = script
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(line.trim_matches('\''))
}

struct Client {
    machine: Arc<Machine>,
    /// Scripts that have not come whole yet.
    scripts: HashMap<ChannelId, Vec<u8>>,
}

impl server::Handler for Client {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, _: &str, _: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.scripts.insert(channel.id(), Vec::new());
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        _: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(id)
    }

    async fn data(&mut self, id: ChannelId, data: &[u8], _: &mut Session) -> Result<(), Self::Error> {
        if let Some(script) = self.scripts.get_mut(&id) {
            script.extend_from_slice(data);
        }
        Ok(())
    }

    async fn channel_eof(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        let Some(script) = self.scripts.remove(&id) else {
            return Ok(());
        };
        let said = self.machine.says(&String::from_utf8_lossy(&script));
        session.data(id, said)?;
        session.exit_status_request(id, 0)?;
        session.eof(id)?;
        session.close(id)
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        _: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        if port == u32::from(SERVICE_PORT) {
            reply.accept().await;
            task::spawn("service", hello(channel.into_stream()));
            return Ok(());
        }
        let Some(gate) = self.machine.agent() else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        };
        reply.accept().await;
        task::spawn("agent", async move {
            let (reader, writer) = tokio::io::split(channel.into_stream());
            // A server that goes away ends it.
            let _ = answer_all(&gate, BufReader::new(reader), writer).await;
        });
        Ok(())
    }
}

/// The calls of one connection.
async fn answer_all(
    gate: &Gate,
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> Result<()> {
    while let Some(call) = read_call(&mut reader).await? {
        if let Some(challenge) = gate.challenge(&call.method, &call.uri, &call.headers) {
            respond(&mut writer, "200 OK", &serde_json::to_string(&challenge)?).await?;
            continue;
        }
        if !gate.admits(&call) {
            respond(&mut writer, "401 Unauthorized", "dstack-shim").await?;
            continue;
        }
        match call.uri.path() {
            "/api/healthcheck" => {
                let health = r#"{"service":"dstack-shim","version":"0.0.1"}"#;
                respond(&mut writer, "200 OK", health).await?;
            }
            "/api/host" => {
                let host = json!({"cpus": 8, "memory": 64_u64 << 30, "disk_size": 512_u64 << 30, "addresses": ["127.0.0.1/8"]});
                let report =
                    json!({"host_info": host, "runtime": "process", "version": "0.0.1", "arch": "amd64"});
                respond(&mut writer, "200 OK", &report.to_string()).await?;
            }
            "/api/stream" => return stream(&mut writer).await,
            _ => respond(&mut writer, "404 Not Found", "").await?,
        }
    }
    Ok(())
}

/// The head of the next call, none of which has a body; `None`: there are no more.
async fn read_call(reader: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<Parts>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    Ok(Some(request.body(())?.into_parts().0))
}

async fn respond(writer: &mut (impl AsyncWrite + Unpin), status: &str, body: &str) -> Result<()> {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    writer.write_all(text.as_bytes()).await?;
    Ok(writer.flush().await?)
}

/// No tasks, and signs of life until the server goes away.
async fn stream(writer: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    writer.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let mut event = StreamEvent::Synced;
    loop {
        let line = serde_json::to_string(&event)? + "\n";
        writer.write_all(line.as_bytes()).await?;
        writer.flush().await?;
        tokio::time::sleep(TICK).await;
        event = StreamEvent::Tick;
    }
}
