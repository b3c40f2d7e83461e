//! What one client's connection may do, and does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dstack_ssh::inbox::{Choke, Event, Inbox};
use dstack_system::task;
use russh::keys::PublicKey;
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, VerifiedPublicKey};
use russh::{Channel, ChannelId, Pty, Sig};

use crate::agent;
use crate::environment::client_may_set;
use crate::forward::{self, Back, Listeners, Target};
use crate::login::Login;
use crate::server::{ClientName, Server};
use crate::session::{Program, Session, Sessions, Surroundings};
use crate::terminal::{TerminalRequest, window_size};

/// Variables a client may set in one session: more is not a locale any more.
const MAX_CLIENT_VARIABLES: usize = 64;

/// The server's side of one client's connection.
pub(crate) struct Client {
    server: Arc<Server>,
    peer: SocketAddr,
    local: SocketAddr,
    inbox: Inbox,
    choke: Choke,
    authenticated: Arc<AtomicBool>,
    name: ClientName,
    login: Option<Login>,
    sessions: Sessions,
    listeners: Listeners,
    agents: Vec<agent::AgentSocket>,
}

impl Client {
    pub(crate) fn new(
        server: Arc<Server>,
        peer: SocketAddr,
        local: SocketAddr,
        authenticated: Arc<AtomicBool>,
        name: ClientName,
    ) -> Self {
        let choke = Choke::new(server.config.window_size);
        Self {
            server,
            peer,
            local,
            inbox: Inbox::new(),
            choke,
            authenticated,
            name,
            login: None,
            sessions: Sessions::new(),
            listeners: Listeners::default(),
            agents: Vec::new(),
        }
    }

    /// The account of `user` when `key` opens it.
    async fn admit(&self, user: &str, key: &PublicKey) -> Option<Login> {
        let (server, user, key) = (Arc::clone(&self.server), user.to_owned(), key.clone());
        let look = move || {
            let login = server.login(&user)?;
            server.keys.allow(&key, &login).then_some(login)
        };
        // A panic is logged already, and admits nobody.
        task::blocking("ssh-admit", look).await.ok().flatten()
    }

    fn back(&self, session: &server::Session) -> Back {
        Back {
            handle: session.handle(),
            inbox: self.inbox.clone(),
        }
    }

    /// Starts a program in a session channel and answers the request.
    fn start(
        &mut self,
        id: ChannelId,
        program: &Program,
        session: &mut server::Session,
    ) -> Result<(), russh::Error> {
        let (Some(login), Some(channel)) = (&self.login, self.sessions.get_mut(&id)) else {
            return session.channel_failure(id);
        };
        let around = Surroundings {
            options: &self.server.options,
            login,
            peer: self.peer,
            local: self.local,
            handle: session.handle(),
        };
        match channel.start(program, &around) {
            Ok(()) => session.channel_success(id),
            Err(error) => {
                tracing::warn!(ssh.user = login.name, %error, "session cannot be started");
                session.channel_failure(id)
            }
        }
    }

    fn forward(&self, channel: Channel<Msg>, reply: ChannelOpenHandle, target: Target) {
        let Some(login) = self.login.clone() else { return };
        let (_, sending) = channel.split();
        let incoming = self.inbox.reader(sending.id());
        let opening = forward::open(Arc::clone(&self.server), login, target, incoming, sending, reply);
        task::spawn("ssh-forward", opening);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inbox.close_all();
    }
}

impl server::Handler for Client {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        let admitted = self.admit(user, offer.public_key).await;
        Ok(if admitted.is_some() {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        self.login = self.admit(user, key.public_key).await;
        Ok(if self.login.is_some() {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }

    async fn auth_succeeded(&mut self, session: &mut server::Session) -> Result<(), Self::Error> {
        let name = String::from_utf8_lossy(session.remote_sshid()).trim().to_owned();
        // A client logs in once.
        let _ = self.name.set(name);
        self.authenticated.store(true, Ordering::Release);
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        let (_, sending) = channel.split();
        let incoming = self.inbox.reader(sending.id());
        self.sessions
            .insert(sending.id(), Session::new(sending, incoming));
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        // Dropping the reply of an impossible port refuses the channel.
        if let Ok(port) = u16::try_from(port) {
            self.forward(channel, reply, self.server.target(host, port));
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.forward(channel, reply, Target::Socket(path.into()));
        Ok(())
    }

    async fn channel_open_confirmation(
        &mut self,
        id: ChannelId,
        _max_packet_size: u32,
        _window_size: u32,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.inbox.expect(id);
        Ok(())
    }

    async fn data(
        &mut self,
        id: ChannelId,
        data: &[u8],
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Data(Bytes::copy_from_slice(data)));
        self.choke.pace(&self.inbox, data.len()).await;
        Ok(())
    }

    fn adjust_window(&mut self, _id: ChannelId, _current: u32) -> u32 {
        self.choke.window(self.inbox.unread())
    }

    async fn channel_eof(
        &mut self,
        id: ChannelId,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.inbox.push(id, Event::Eof);
        Ok(())
    }

    async fn channel_close(
        &mut self,
        id: ChannelId,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.inbox.close(id);
        self.sessions.remove(&id);
        Ok(())
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        modes: &[(Pty, u32)],
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        let Some(channel) = self.sessions.get_mut(&id) else {
            return session.channel_failure(id);
        };
        channel.terminal = Some(TerminalRequest {
            term: term.to_owned(),
            size: window_size(columns, rows, width, height),
            modes: modes.to_vec(),
        });
        session.channel_success(id)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        columns: u32,
        rows: u32,
        width: u32,
        height: u32,
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        if let Some(channel) = self.sessions.get_mut(&id) {
            channel.resize(window_size(columns, rows, width, height));
        }
        session.channel_success(id)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        match self.sessions.get_mut(&id) {
            Some(channel) if client_may_set(name) && channel.env.len() < MAX_CLIENT_VARIABLES => {
                channel.env.push((name.to_owned(), value.to_owned()));
                session.channel_success(id)
            }
            _ => session.channel_failure(id),
        }
    }

    async fn shell_request(
        &mut self,
        id: ChannelId,
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.start(id, &Program::Shell, session)
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.start(id, &Program::Command(command.to_vec()), session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        if name == "sftp" {
            return self.start(id, &Program::Sftp, session);
        }
        session.channel_failure(id)
    }

    async fn agent_request(
        &mut self,
        id: ChannelId,
        session: &mut server::Session,
    ) -> Result<bool, Self::Error> {
        let back = self.back(session);
        let (Some(login), Some(channel)) = (&self.login, self.sessions.get_mut(&id)) else {
            return Ok(false);
        };
        match agent::listen(login, back).await {
            Ok(agent) => {
                channel.agent = Some(agent.path().to_owned());
                self.agents.push(agent);
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, "agent forwarding failed");
                Ok(false)
            }
        }
    }

    async fn signal(
        &mut self,
        id: ChannelId,
        signal: Sig,
        _session: &mut server::Session,
    ) -> Result<(), Self::Error> {
        if let Some(channel) = self.sessions.get(&id) {
            channel.signal(&signal);
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut server::Session,
    ) -> Result<bool, Self::Error> {
        let back = self.back(session);
        let Some(login) = &self.login else {
            return Ok(false);
        };
        match self.listeners.listen_tcp(address, *port, &back, login).await {
            Ok(actual) => {
                *port = actual;
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, port, "remote forwarding refused");
                Ok(false)
            }
        }
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _session: &mut server::Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.listeners.cancel_tcp(address, port))
    }

    async fn streamlocal_forward(
        &mut self,
        path: &str,
        session: &mut server::Session,
    ) -> Result<bool, Self::Error> {
        let back = self.back(session);
        let Some(login) = &self.login else {
            return Ok(false);
        };
        match self.listeners.listen_socket(path, &back, login).await {
            Ok(()) => Ok(true),
            Err(error) => {
                tracing::debug!(%error, path, "remote forwarding refused");
                Ok(false)
            }
        }
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut server::Session,
    ) -> Result<bool, Self::Error> {
        Ok(self.listeners.cancel_socket(path))
    }
}
