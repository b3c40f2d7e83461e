//! An SSH server for images that have none: exec, shell with PTY, SFTP, port and agent forwarding. It knows nothing of who
//! starts it or why.
//!
//! [`serve`] starts it with [`SshOptions`]; the [`SshHandle`] tells of its connections and stops it. SFTP runs in a process of
//! the logged-in user, which calls [`sftp::serve_stdio`].

#![warn(missing_docs)]

mod agent;
mod environment;
mod forward;
mod handler;
mod host_keys;
mod keys;
mod login;
mod options;
mod process;
mod pump;
mod server;
mod session;
pub mod sftp;
mod terminal;

pub use options::{ByteStream, LocalService, ServeStream, SessionDefaults, SshOptions};
pub use server::{OpenConnection, ServeError, SshHandle, serve};
