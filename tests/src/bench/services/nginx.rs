//! nginx in the place of the server.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::{NamedTempFile, TempDir};

use super::once;
use crate::parts;
use crate::runs::TEST_TIMEOUT;
use crate::server::{eventually, free_port};

/// nginx in front of a port of this machine. Ends when it is dropped.
pub(super) struct Nginx {
    child: Child,
    pub(super) port: u16,
    _folder: TempDir,
    _configuration: NamedTempFile,
}

impl Nginx {
    /// With these further directives of `http`; `None`: it is not installed, which is said.
    pub(super) fn start(upstream: u16, directives: &str) -> Result<Option<Nginx>> {
        match parts::program("nginx") {
            Ok(program) => Nginx::run(&program, upstream, directives).map(Some),
            Err(missing) => {
                println!("    without nginx: {missing}");
                Ok(None)
            }
        }
    }

    fn run(program: &Path, upstream: u16, directives: &str) -> Result<Nginx> {
        let folder = TempDir::with_prefix("dstack-bench-nginx-")?;
        let port = free_port()?;
        let at = folder.path().display();
        let mut configuration = NamedTempFile::new()?;
        write!(
            configuration,
            "daemon off; worker_processes auto; pid {at}/pid; error_log {at}/errors;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};\n\
             uwsgi_temp_path {at}; scgi_temp_path {at}; {directives}\n\
             upstream service {{ server 127.0.0.1:{upstream}; keepalive 64; }}\n\
             server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
        )?;
        let child = Command::new(program)
            .arg("-c")
            .arg(configuration.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nginx does not start")?;
        let nginx = Nginx {
            child,
            port,
            _folder: folder,
            _configuration: configuration,
        };
        eventually("nginx answers", TEST_TIMEOUT, || Ok(once(port, "/", None).ok()))?;
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It ends its workers.
        crate::server::signal(self.child.id(), "TERM");
        self.child.wait().ok();
    }
}
