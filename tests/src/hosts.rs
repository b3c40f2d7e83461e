//! Hosts of SSH fleets: machines of their own made of this one by `tests/scripts/host.sh`, with a real OpenSSH, and with
//! systemd and a container engine where a test wants them.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use fs_err::File;
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::parts::Part;

/// Where the hosts of all tests of this machine are; each test has a number there, which is also that of its network.
const FOLDER: &str = "/tmp/dstack-test-hosts";

/// What a host has besides sshd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    /// systemd is process 1.
    Systemd,
    /// A container engine of its own, with the image `dstack-test/busybox:1`.
    Docker,
    /// User `me` may use sudo without a password.
    Sudo,
}

impl Has {
    const fn word(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Docker => "docker",
            Self::Sudo => "sudo",
        }
    }
}

/// What most hosts are.
pub const USUAL: &[Has] = &[Has::Systemd, Has::Docker, Has::Sudo];

/// The image that hosts with an engine have.
pub const IMAGE: &str = "dstack-test/busybox:1";

/// Hosts on a network of their own. Dropping it ends them with everything that runs there.
pub struct Lab {
    folder: PathBuf,
    network: String,
    // Nobody else has the number while this is open.
    _lock: File,
}

impl Lab {
    /// A network without hosts.
    ///
    /// # Errors
    /// The reason to skip the test.
    pub fn new() -> Part<Lab> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can make hosts".to_owned());
        }
        Self::first_free().map_err(|error| format!("no hosts can be made: {error:#}"))
    }

    fn first_free() -> Result<Lab> {
        for number in 0..250_u16 {
            let folder = Path::new(FOLDER).join(number.to_string());
            fs_err::create_dir_all(&folder)?;
            let lock = File::create(Path::new(FOLDER).join(format!("{number}.lock")))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let lab = Lab {
                folder,
                network: format!("10.214.{number}"),
                _lock: lock,
            };
            // A test that was killed may have left some.
            lab.script(&["clean"], "all", &[])?;
            lab.make_key("key")?;
            fs_err::copy(
                lab.key("key").with_extension("pub"),
                lab.folder.join("authorized_keys"),
            )?;
            return Ok(lab);
        }
        bail!("too many tests use hosts at the same time")
    }

    /// A network that lives as long as this process, with what ends its hosts before.
    ///
    /// # Errors
    /// The reason to skip the test.
    pub fn for_ever() -> Part<(&'static Lab, EndsHosts)> {
        let lab: &'static Lab = Box::leak(Box::new(Self::new()?));
        Ok((lab, EndsHosts(lab)))
    }

    /// The address of this machine on the network, from the first host on.
    pub fn gateway(&self) -> String {
        format!("{}.1", self.network)
    }

    fn make_key(&self, name: &str) -> Result<()> {
        let path = self.key(name);
        for old in [path.clone(), path.with_extension("pub")] {
            fs_err::remove_file(old).ok();
        }
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(&path)
            .status()?;
        if !made.success() {
            bail!("ssh-keygen failed");
        }
        Ok(())
    }

    fn key(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a host; `number` (2 to 254) is the end of its address.
    ///
    /// # Errors
    /// The reason to skip the test.
    ///
    /// # Panics
    /// The host does not come up.
    #[allow(clippy::panic)] // a test that needs the host must fail, and not be skipped
    pub fn host(&self, name: &str, number: u8, has: &[Has]) -> Part<Host<'_>> {
        let address = format!("{}.{number}", self.network);
        let mut words = vec![address.as_str()];
        words.extend(has.iter().map(|one| one.word()));
        if let Err(error) = self.script(&["start"], name, &words) {
            match error.downcast_ref::<CannotBeMade>() {
                Some(reason) => return Err(reason.to_string()),
                None => panic!("{error:#}"),
            }
        }
        Ok(Host {
            lab: self,
            name: name.to_owned(),
            address,
        })
    }

    fn script(&self, verb: &[&str], name: &str, words: &[&str]) -> Result<String> {
        let mut command = Command::new("sh");
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/host.sh"))
            .args(verb)
            .arg(&self.folder)
            .arg(name)
            .args(words)
            .stdin(Stdio::null());
        output(&command.output()?, &verb.join(" "))
    }

    /// The private key that opens the hosts, as text.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn private_key(&self) -> Result<String> {
        Ok(fs_err::read_to_string(self.key("key"))?)
    }

    /// File with the private key that opens the hosts.
    pub fn identity_file(&self) -> PathBuf {
        self.key("key")
    }

    /// A fleet of these hosts as the API takes it; `more` has further fields of `ssh_config`.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn fleet(&self, name: &str, hosts: &[Value], more: &Value) -> Result<Value> {
        let public = fs_err::read_to_string(self.key("key").with_extension("pub"))?;
        let mut ssh = json!({"user": "me", "ssh_key": {"public": public, "private": self.private_key()?}, "hosts": hosts});
        if let (Some(base), Some(more)) = (ssh.as_object_mut(), more.as_object()) {
            base.extend(more.clone());
        }
        let configuration = json!({"type": "fleet", "name": name, "ssh_config": ssh});
        Ok(json!({"configuration": configuration, "profile": {"name": "default"}}))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.script(&["clean"], "all", &[]).ok();
    }
}

/// Ends the hosts of a lab when it is dropped.
pub struct EndsHosts(&'static Lab);

impl Drop for EndsHosts {
    fn drop(&mut self) {
        self.0.script(&["clean"], "all", &[]).ok();
    }
}

/// A host of a [`Lab`].
pub struct Host<'a> {
    lab: &'a Lab,
    name: String,
    /// IPv4 address of the host on the lab's network.
    pub address: String,
}

impl Host<'_> {
    /// As a fleet names it.
    pub fn entry(&self) -> Value {
        json!(self.address)
    }

    /// Runs a command there as root; what it printed.
    ///
    /// # Errors
    /// With its error output, when it fails.
    pub fn run(&self, command: &str) -> Result<String> {
        self.lab.script(&["run"], &self.name, &["sh", "-c", command])
    }

    /// Moves the calling thread onto the host's network: what it opens from then on is there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter_network(&self) -> Result<()> {
        let pid = fs_err::read_to_string(self.lab.folder.join(&self.name).join("pid"))?;
        let network = File::open(format!("/proc/{}/ns/net", pid.trim()))?;
        move_into_link_name_space(network.file().as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// Takes its network away.
    ///
    /// # Errors
    /// The script failed.
    pub fn cut(&self) -> Result<()> {
        self.lab.script(&["cut"], &self.name, &[]).map(drop)
    }

    /// Gives the network back.
    ///
    /// # Errors
    /// The script failed.
    pub fn heal(&self) -> Result<()> {
        self.lab.script(&["heal"], &self.name, &[]).map(drop)
    }

    /// Ends it with everything that runs there.
    ///
    /// # Errors
    /// The script failed.
    pub fn stop(&self) -> Result<()> {
        self.lab.script(&["stop"], &self.name, &[]).map(drop)
    }
}

/// Hosts cannot be made on this machine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct CannotBeMade(String);

fn output(output: &Output, what: &str) -> Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        return Err(CannotBeMade(error.trim().to_owned()).into());
    }
    Err(anyhow::anyhow!("{text}{error}")).with_context(|| format!("host.sh {what}: {}", output.status))
}
