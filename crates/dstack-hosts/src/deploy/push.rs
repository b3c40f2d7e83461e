//! Brings the agent's file to a host. What has arrived before a cut is kept, and the rest is sent.

use std::time::Duration;

use dstack_ssh::inbox::Event;
use dstack_ssh::{ExecChannel, ExitStatus};
use dstack_units::human;
use dstack_units::quoting::shell_word;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout};

use super::host::{As, Host, ended};
use super::package::Package;
use super::script::{Said, end_of, script};
use super::{DeployError, HostPaths};

const SCRIPT_LIMIT: Duration = Duration::from_secs(60);
/// A connection that takes nothing for so long is given up.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// The channel takes no more than its window at once, so that this is all that is held beside the file itself.
const CHUNK: usize = 32 * 1024;
/// A file that arrives damaged is sent anew so often.
const ATTEMPTS: usize = 2;

const BEGIN: &str = r#"
mkdir -p "$programs" && chmod 755 "$programs" || fail "$programs cannot be made"
cd "$programs" || fail "$programs cannot be entered"
programs=$(pwd -P)
if [ -f "$name" ] && [ "$(hash_of "$name")" = "$sha256" ]; then
  chmod 755 "$name"
  label bin_t "$name"
  say state there
  return 0
fi
part=$programs/$name.part
if have gzip; then
  say gzip yes
  part=$programs/$name.gz.part
fi
# One whose connection broke may still write what it has got.
if pid=$(cat "$part.pid" 2>/dev/null); then
  tries=0
  while [ "$(readlink "/proc/$pid/fd/1" 2>/dev/null)" = "$part" ] && [ "$tries" -lt 10 ]; do
    kill -9 "$pid" 2>/dev/null
    tries=$((tries + 1))
    sleep 1
  done
  rm -f "$part.pid"
fi
say part "$part"
if [ -f "$part" ]; then say size "$(wc -c < "$part")"; else say size 0; fi
"#;

const DISCARD: &str = r#"rm -f "$part" "$part.pid""#;

const FINISH: &str = r#"
cd "$programs" || fail "$programs cannot be entered"
new=$name.new
if [ "$gzip" = yes ]; then
  problem=$(gzip -dc < "$part" 2>&1 > "$new") || { case $problem in *[Nn]"o space"*) rm -f "$new"; fail "$programs: no space is left: make room";; esac; }
else
  mv -f "$part" "$new"
fi
if [ "$(hash_of "$new")" != "$sha256" ]; then
  rm -f "$new" "$part" "$part.pid"
  say state damaged
  return 0
fi
chmod 755 "$new"
label bin_t "$new"
if ! problem=$("./$new" shim --version 2>&1); then
  rm -f "$new" "$part" "$part.pid"
  fail "the agent does not run on this host: $problem"
fi
mv -f "$new" "$name" || fail "$programs/$name cannot be written"
rm -f "$part" "$part.pid"
say state there
"#;

/// What came of it.
#[derive(Debug)]
pub(super) enum Pushed {
    /// The file is there; what was done, for people.
    Whole(String),
    /// More of it is there than before: the line is slow.
    Partly,
}

/// Brings the file there unless it is, or as much of it as a step may take.
pub(super) async fn push(host: &Host, paths: &HostPaths, package: &Package) -> Result<Pushed, DeployError> {
    let name = package.name();
    for _ in 0..ATTEMPTS {
        let variables = [
            ("programs", paths.programs.as_str()),
            ("name", name.as_str()),
            ("sha256", package.sha256.as_str()),
        ];
        let begun = root(host, "preparing for the agent's file", &script(&variables, BEGIN)).await?;
        if begun.get("state") == "there" {
            return Ok(Pushed::Whole("the agent's file is there".to_owned()));
        }
        let part = begun.get("part");
        let content = if begun.is("gzip") {
            package.gzip.clone()
        } else {
            package.raw().await?
        };
        let has = begun.get("size").parse().unwrap_or(0);
        let from = match content.get(has..) {
            Some(_) => has,
            // Longer than all of it: not ours.
            None => {
                root(
                    host,
                    "removing a damaged file",
                    &script(&[("part", part)], DISCARD),
                )
                .await?;
                0
            }
        };
        let rest = content.get(from..).unwrap_or_default();
        if !rest.is_empty() || has == 0 {
            let sent = send(host, part, rest, paths.send_limit).await?;
            if sent < rest.len() {
                return Ok(Pushed::Partly);
            }
        }
        let variables = [
            ("programs", paths.programs.as_str()),
            ("name", name.as_str()),
            ("sha256", package.sha256.as_str()),
            ("gzip", if begun.is("gzip") { "yes" } else { "no" }),
            ("part", part),
        ];
        let finished = root(host, "checking the agent's file", &script(&variables, FINISH)).await?;
        if finished.get("state") == "there" {
            let size = human::bytes(u64::try_from(rest.len()).unwrap_or(u64::MAX));
            return Ok(Pushed::Whole(match from {
                0 => format!("the agent's file was sent ({size})"),
                _ => format!("the rest of the agent's file was sent ({size})"),
            }));
        }
    }
    Err(host.transient("the agent's file arrived damaged again and again: check the disk of the host"))
}

async fn root(host: &Host, what: &str, script: &str) -> Result<Said, DeployError> {
    host.run(As::Root, SCRIPT_LIMIT, what, script).await
}

/// Appends to the file on the host, until all is sent or the time is over; how many bytes were appended.
async fn send(host: &Host, part: &str, rest: &[u8], limit: Duration) -> Result<usize, DeployError> {
    let part = shell_word(part);
    // The writer can be found by its id when this connection breaks.
    let writer = format!("umask 077; echo $$ > {part}.pid; exec cat >> {part}");
    let command = host.command(As::Root, &format!("sh -c {}", shell_word(&writer)));
    let what = "sending the agent's file";
    let started = timeout(STALL_LIMIT, host.connection.start(&command)).await;
    let mut channel = started
        .map_err(|_| host.transient(format!("{what}: no answer")))?
        .map_err(|error| host.broken(what, &error))?;
    let began = Instant::now();
    let (mut sent, mut written) = (0, Ok(()));
    for chunk in rest.chunks(CHUNK) {
        if sent > 0 && began.elapsed() >= limit {
            break;
        }
        let write = timeout(STALL_LIMIT, channel.stdin().write_all(chunk)).await;
        written = write.map_err(|_| host.transient(format!("{what}: it does not get on")))?;
        if written.is_err() {
            break;
        }
        sent += chunk.len();
    }
    if written.is_ok() {
        written = channel.stdin().shutdown().await;
    }
    let end = timeout(STALL_LIMIT, end(&mut channel)).await;
    let (status, said) = end.map_err(|_| host.transient(format!("{what}: it does not come to an end")))?;
    if status.success() && written.is_ok() {
        return Ok(sent);
    }
    if said.contains("No space left") {
        return Err(host.transient("no space is left for the agent's file: make room"));
    }
    Err(host.transient(format!(
        "{what} failed ({}): {}",
        ended(&status),
        end_of(said.trim())
    )))
}

async fn end(channel: &mut ExecChannel) -> (ExitStatus, String) {
    let mut status = ExitStatus::Unknown;
    let mut said = Vec::new();
    while let Some(event) = channel.next().await {
        match event {
            Event::Data(data) | Event::Stderr(data) => said.extend_from_slice(&data),
            Event::Exit(code) => status = ExitStatus::Code(code),
            Event::Killed(signal) => status = ExitStatus::Signal(signal),
            Event::Reply(_) | Event::Eof => {}
        }
    }
    (status, String::from_utf8_lossy(&said).into_owned())
}
